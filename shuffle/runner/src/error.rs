//! What can go wrong in a run, beside messages.

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Job(#[from] hg_job::Error),
    #[error(transparent)]
    Shuffle(#[from] hg_shuffle::Error),
    #[error("--nodes: {0}")]
    Nodes(#[from] hg_job::MapError),
    #[error("--{0}: {1}")]
    Argument(&'static str, String),
    #[error("{0}: {1}")]
    Os(&'static str, std::io::Error),
    #[error("the report cannot be printed: {0}")]
    Print(std::io::Error),
    #[error("--plot: {0} cannot be written: {1}")]
    Plot(std::path::PathBuf, std::io::Error),
    #[error("{0} cannot be run: {1}")]
    Program(String, std::io::Error),
    #[error("a rank's report cannot be read: {0}")]
    Report(#[from] serde_json::Error),
}
