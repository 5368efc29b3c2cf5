//! What can go wrong in a run, beside calls.

use hg_job_runner::Error as RunnerError;

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Invoke(#[from] hg_invoke::Error),
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error("rank {0}: {1}")]
    Cut(u32, String),
}

impl From<hg_job::Error> for Error {
    fn from(error: hg_job::Error) -> Self {
        RunnerError::from(error).into()
    }
}
