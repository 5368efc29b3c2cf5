//! What can go wrong around what a program does.

use std::{io, path::PathBuf};

/// Why a program ends before its end, whatever it does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Of the job.
    #[error(transparent)]
    Job(#[from] hg_job::Error),
    /// An argument asks for what cannot be.
    #[error("--{0}: {1}")]
    Argument(&'static str, String),
    /// There is none to be had.
    #[error("a thread: {0}")]
    Thread(io::Error),
    /// Standard output is no good.
    #[error("the report cannot be printed: {0}")]
    Print(io::Error),
    /// The file of a plot is no good.
    #[error("--plot: {0} cannot be written: {1}")]
    Plot(PathBuf, io::Error),
    /// Another rank has sent something else.
    #[error("a rank's report cannot be read: {0}")]
    Report(#[from] serde_json::Error),
}
