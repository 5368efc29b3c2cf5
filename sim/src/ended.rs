//! How a call ends.

use std::fmt;

/// How a call has ended.
#[derive(Debug, Clone)]
pub(crate) enum Ended {
    /// By an answer, which was right.
    Value,
    /// A one-way call was accepted, or has left.
    Sent,
    /// Its caller has dropped it.
    GivenUp,
    /// By an error: the name of its kind, its sentence.
    Failed(&'static str, String),
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value => out.write_str("a value"),
            Self::Sent => out.write_str("sent"),
            Self::GivenUp => out.write_str("given up"),
            Self::Failed(kind, _) => out.write_str(kind),
        }
    }
}
