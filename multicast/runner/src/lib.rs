//! What `multicast-cp` does with files, without a network: what a copy consists of, which blocks have to travel, and a receiver
//! that writes nowhere but below its folder and under a file's name only what is whole.
//!
//! | module | what it is |
//! |---|---|
//! | [`path`] | paths that lead nowhere else by their spelling |
//! | [`folder`] | a folder that no link leads out of |
//! | [`spool`] | where files lie that are not whole yet |
//! | [`offer`] | what a copy consists of, and sums |
//! | [`source`] | the sender's files |
//! | [`plan`](mod@plan) | which blocks have to travel |
//! | [`part`] | blocks of files in one object |
//! | [`outgoing`] | blocks of the sender's files, packed into parts |
//! | [`incoming`] | a copy on the receiver's side |
//!
//! # Threads
//! None.
//!
//! # Cleanup
//! A copy that ended well leaves nothing beside what was copied. One that did not leaves what it has in one folder below the
//! receiver's, where the next copy resumes it or removes it: [`spool`].
//!
//! # Features
//! None.

#![forbid(unsafe_code)]

pub mod folder;
pub mod incoming;
pub mod offer;
pub mod outgoing;
pub mod part;
pub mod path;
pub mod plan;
pub mod source;
pub mod spool;
#[cfg(test)]
mod test_folder;
