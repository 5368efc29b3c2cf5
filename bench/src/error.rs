//! What can go wrong in a measurement, ordered by what the caller can do.

use std::fmt::Write;
use std::io;

use crate::product::store::Refused;

/// A measurement that could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The second process of a measurement has exited, or said something unexpected.
    #[error("the second process of {0} is gone")]
    PeerGone(&'static str),
    /// An answer did not carry what was sent: the measurement itself is wrong.
    #[error("{figure}: sent {sent}, got {got} back")]
    WrongAnswer { figure: &'static str, sent: u64, got: u64 },
    /// A program that counts for this one is not installed.
    #[error("`{tool}` is needed to count this and was not found: install the package `{tool}`")]
    NoTool { tool: &'static str },
    /// A program that figures are held against is not installed.
    #[error("`{program}` was not found: install the package `{package}`")]
    NoProgram { program: &'static str, package: &'static str },
    /// The program that a figure is held against cannot be built.
    #[error(
        "`{compiler}` cannot build the program to compare with: {said} (its headers are in the package `{package}`)"
    )]
    NotBuilt { compiler: &'static str, package: &'static str, said: String },
    /// A program that counts for this one ended without a count.
    #[error("`{tool}` gave no count: {said}")]
    NoCount { tool: &'static str, said: String },
    /// A measurement cannot be taken as asked.
    #[error("{0}")]
    Impossible(String),
    /// The product did what it must not do.
    #[error("{0}")]
    Failed(String),
    /// A call failed.
    #[error("a call failed")]
    Call(#[from] hg::CallError),
    /// An engine could not be opened, or an address not be looked up.
    #[error("the engine refused")]
    Engine(#[from] hg::Error),
    /// A call to a worker was not made, or did not run.
    #[error("a call to a worker failed")]
    Invoke(#[from] hg_invoke::Error),
    /// A transfer failed.
    #[error("a transfer failed")]
    Transfer(#[from] hg::bulk::TransferError),
    /// The target could not do what it was asked to.
    #[error("a call failed")]
    Refused(#[from] hg::CallError<Refused>),
    /// An RPC could not be registered.
    #[error("an RPC was refused")]
    Register(#[from] hg::RegisterError),
    /// The figure could not be written as JSON.
    #[error("cannot write a figure")]
    Json(#[from] serde_json::Error),
    /// The operating system refused.
    #[error("{call} failed")]
    Os { call: &'static str, source: io::Error },
}

/// Names the call that failed, in the style of `context("memfd_create")`.
pub(crate) trait Context<T> {
    /// The error becomes [`Error::Os`] with the name of the system call.
    fn context(self, call: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, call: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Os { call, source: error.into() })
    }
}

/// The error and everything that caused it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        // Writing to a string does not fail.
        let _ = write!(line, ": {next}");
        cause = next.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_the_call_and_its_cause() {
        let refused: io::Result<()> = Err(io::Error::other("no such thing"));
        let error = refused.context("memfd_create").unwrap_err();
        assert_eq!(chain(&error), "memfd_create failed: no such thing");
    }
}
