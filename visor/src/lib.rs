//! One daemon per node that owns the network, after RDMAvisor, and the transport `visor://` that goes through it.

#![forbid(unsafe_code)]

mod address;
mod arrive;
#[cfg(feature = "daemon")]
mod config;
mod context;
#[cfg(feature = "daemon")]
mod daemon;
mod domain;
#[cfg(feature = "daemon")]
mod idle;
#[cfg(feature = "daemon")]
mod machine;
#[cfg(feature = "daemon")]
mod metrics;
#[cfg(feature = "daemon")]
mod network;
mod plugin;
mod question;
mod send;
mod session;
mod settings;
mod shared;
mod way;
mod wire;

#[cfg(feature = "daemon")]
pub use config::{Config, Further, User};
#[cfg(feature = "daemon")]
pub use daemon::{Daemon, Stopper};
#[cfg(all(feature = "daemon", any(test, feature = "fuzzing")))]
pub use machine::{fuzz_applications, fuzz_daemons};
#[cfg(feature = "daemon")]
pub use metrics::prometheus;
pub use plugin::VisorPlugin;
pub use question::{Answer, Question, ask};
pub use settings::NAME;
