//! What several transports are made of: no I/O and no `unsafe` of its own.
//!
//! | part | what |
//! |---|---|
//! | [`regions`] | memory that its owner serves to peers, named by claims with tokens |
//! | [`receives`] | matches expected messages with posted receives |
//! | [`Subnet`] | a range of internet addresses |
//! | [`Reader`] | reads a domain's settings |

pub mod receives;
pub mod regions;
mod settings;
mod subnet;

pub use settings::Reader;
pub use subnet::Subnet;
