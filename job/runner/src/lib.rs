//! What programs share that run as a job, verify what it does and say what came of it: `shuffle-runner`, `invoke-runner`.
//!
//! | module | what it is |
//! |---|---|
//! | [`program`] | the whole of one: `main`, its own ranks or a launcher's |
//! | [`say`](mod@say) | lines on standard error; what is wrong with all ranks is said once |
//! | [`watch`] | whether every rank answers |
//! | [`room`] | whether this machine can hold the ranks |
//! | [`samples`] | what is looked at while a rank runs, and a bar that fills |
//! | [`plot`] | samples of all ranks, drawn |
//! | [`process`] | processor time and memory of this process |
//!
//! # Threads
//! A [`Watch`](watch::Watch) and a [`Sampler`](samples::Sampler) have one each.
//!
//! # Cleanup
//! Dropping a sampler ends its thread; that of a watch ends with the job.
//!
//! # Features
//! None.

#![forbid(unsafe_code)]

mod error;
pub mod plot;
pub mod process;
pub mod program;
pub mod room;
pub mod samples;
pub mod say;
pub mod watch;

pub use error::Error;
