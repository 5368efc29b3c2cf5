//! What can go wrong in a run, beside objects.

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Job(#[from] hg_job::Error),
    #[error(transparent)]
    Multicast(#[from] hg_multicast::Error),
    #[error(transparent)]
    Failed(#[from] hg_multicast::Failure),
    #[error(transparent)]
    Engine(#[from] hg::Error),
    #[error("--{0}: {1}")]
    Argument(&'static str, String),
    #[error("a thread: {0}")]
    Thread(std::io::Error),
    #[error("the report cannot be printed: {0}")]
    Print(std::io::Error),
    #[error("--{0}: {1} cannot be written: {2}")]
    File(&'static str, std::path::PathBuf, std::io::Error),
    #[error("a rank's report cannot be read: {0}")]
    Report(#[from] serde_json::Error),
    #[error("{0}: {1}")]
    Beside(String, String),
    #[error("the bare link: {0}")]
    Link(std::io::Error),
}
