//! What can go wrong, in sentences that name ranks.

use std::{fmt, io, time::Duration};

use crate::{MapError, frame::Broken};

/// Why a rank cannot take part, or cannot go on. The program should end with a non-zero status.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment, or a setting, contradicts itself. Start the program as the sentence says.
    #[error("{0}")]
    Environment(String),
    /// The launcher does not answer as its protocol says, or refuses.
    #[error("{launcher}: {why}")]
    Launcher {
        /// The protocol: `PMI-1`, `PMI-2` or `PMIx`.
        launcher: &'static str,
        /// What was wrong.
        why: String,
    },
    /// Some ranks did not join the job within the bound.
    #[error("{missing} of {size} did not join within {within:?}")]
    Missing {
        /// Who.
        missing: Ranks,
        /// Ranks in the job.
        size: u32,
        /// The bound: [`Settings::timeout`](crate::Settings::timeout).
        within: Duration,
    },
    /// The launcher's own barrier did not end within the bound, and it does not say whom it waits for.
    #[error(
        "not all of {size} ranks joined within {within:?}: of this node {here} did, and {elsewhere}"
    )]
    MissingElsewhere {
        /// Ranks that this process has seen, itself included.
        here: Ranks,
        /// Ranks in the job.
        size: u32,
        /// The bound: [`Settings::timeout`](crate::Settings::timeout).
        within: Duration,
        /// What is known about the others.
        elsewhere: String,
    },
    /// A rank ended, or was cut off, without leaving the job.
    #[error("rank {rank} {how}")]
    Lost {
        /// Who.
        rank: u32,
        /// In words: what was seen.
        how: &'static str,
    },
    /// The process that holds the job together has gone: rank 0, or the runner.
    #[error("{0}, which holds the job together, is gone")]
    HubGone(&'static str),
    /// A rank called [`Job::abort`](crate::Job::abort).
    #[error("rank {by} aborted the job with status {code}: {why}")]
    Aborted {
        /// Who.
        by: u32,
        /// The exit status that it asked for.
        code: u8,
        /// Its reason.
        why: String,
    },
    /// Ranks called different things where all must call the same.
    #[error("the ranks disagree: {0}")]
    Disagree(String),
    /// A collective call did not end within its bound. Whether it ends later is not known to this rank.
    #[error("{what} number {number} did not end within {within:?}: waiting for {missing}")]
    Late {
        /// `all-gather` or `barrier`.
        what: &'static str,
        /// Which one of its channel, from 1.
        number: u64,
        /// The bound: [`Settings::wait`](crate::Settings::wait).
        within: Duration,
        /// Who had not called it.
        missing: Ranks,
    },
    /// What this rank sent before has not left yet, so the call was not made: it may be made again.
    #[error("{what} was not made within {within:?}: what this rank sent before has not left yet")]
    NotMade {
        /// `all-gather`, `barrier` or `share`.
        what: &'static str,
        /// The bound: [`Settings::wait`](crate::Settings::wait).
        within: Duration,
    },
    /// A rank wanted to leave that others are connected through, and these stay.
    #[error("others are connected through this rank, and did not leave within {within:?}")]
    StillHere {
        /// The bound: [`Settings::wait`](crate::Settings::wait).
        within: Duration,
    },
    /// The process that holds the job together does not answer: stopped, overloaded, or cut off.
    #[error(
        "{what} did not end within {within:?}, and {hub}, which holds the job together, does not answer"
    )]
    Silent {
        /// What this rank waited for.
        what: &'static str,
        /// Rank 0, or the runner.
        hub: &'static str,
        /// The bound that has passed.
        within: Duration,
    },
    /// A value is too long for an all-gather.
    #[error("a value of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit: [`VALUE_MAX`](crate::VALUE_MAX).
        max: usize,
    },
    /// The node map does not fit.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The operating system refused.
    #[error("{call}: {source}")]
    Os {
        /// What was asked of it.
        call: String,
        /// Its answer.
        source: io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Environment(_) => "Environment",
            Self::Launcher { .. } => "Launcher",
            Self::Missing { .. } => "Missing",
            Self::MissingElsewhere { .. } => "MissingElsewhere",
            Self::Lost { .. } => "Lost",
            Self::HubGone(_) => "HubGone",
            Self::Aborted { .. } => "Aborted",
            Self::Disagree(_) => "Disagree",
            Self::Late { .. } => "Late",
            Self::NotMade { .. } => "NotMade",
            Self::StillHere { .. } => "StillHere",
            Self::Silent { .. } => "Silent",
            Self::TooLong { .. } => "TooLong",
            Self::Map(_) => "Map",
            Self::Os { .. } => "Os",
        };
        write!(out, "{self} [{kind}]")
    }
}

impl Error {
    pub(crate) fn os(call: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let call = call.into();
        move |source| Self::Os { call, source }
    }

    /// What the hub told everybody, as an error of this rank.
    pub(crate) fn from_broken(broken: &Broken, size: u32, within: Duration) -> Self {
        match broken.clone() {
            Broken::NeverCame { ranks } => Self::Missing { missing: Ranks(ranks), size, within },
            Broken::Early { rank } => Self::Lost { rank, how: "ended before it joined the job" },
            Broken::Lost { rank } => Self::Lost { rank, how: "ended without leaving the job" },
            Broken::Left { rank } => {
                Self::Lost { rank, how: "has left the job while others still work together" }
            }
            Broken::Aborted { by, code, why } => Self::Aborted { by, code, why },
            Broken::Disagree { why } => Self::Disagree(why),
        }
    }
}

/// Some ranks, ascending; reads `rank 3`, or `ranks 0, 2-5 and 9`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranks(pub Vec<u32>);

impl fmt::Display for Ranks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => return write!(out, "no rank"),
            1 => write!(out, "rank ")?,
            _ => write!(out, "ranks ")?,
        }
        write_runs(out, &self.0)
    }
}

/// Runs of three and more consecutive numbers as `2-5`; at most [`RUNS_MAX`] pieces.
fn write_runs(out: &mut fmt::Formatter<'_>, ranks: &[u32]) -> fmt::Result {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    // Two are as short by themselves.
    let pieces = runs.flat_map(|run| run.chunks(if run.len() > 2 { run.len() } else { 1 }));
    let mut pieces = pieces.peekable();
    let mut written = 0;
    while let Some(piece) = pieces.next() {
        if written == RUNS_MAX {
            let rest = piece.len() + pieces.map(<[u32]>::len).sum::<usize>();
            return write!(out, " and {rest} more");
        }
        match (written, pieces.peek()) {
            (0, _) => {}
            (_, None) => write!(out, " and ")?,
            _ => write!(out, ", ")?,
        }
        match piece {
            [first, .., last] => write!(out, "{first}-{last}")?,
            _ => write!(out, "{}", piece[0])?,
        }
        written += 1;
    }
    Ok(())
}

/// Runs of ranks that a sentence names before it only counts the rest.
const RUNS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_of_an_error_is_its_sentence_and_its_kind() {
        let said = format!("{:?}", Error::Lost { rank: 3, how: "ended" });
        assert_eq!(said, "rank 3 ended [Lost]");
    }

    #[test]
    fn ranks_read_as_runs() {
        let text = |ranks: &[u32]| Ranks(ranks.to_vec()).to_string();
        assert_eq!(text(&[]), "no rank");
        assert_eq!(text(&[7]), "rank 7");
        assert_eq!(text(&[0, 2, 3, 4, 9]), "ranks 0, 2-4 and 9");
        assert_eq!(text(&[1, 2]), "ranks 1 and 2");
        assert_eq!(text(&[0, 2, 3]), "ranks 0, 2 and 3");
        assert_eq!(text(&[0, 1, 3, 4, 5]), "ranks 0, 1 and 3-5");
        let odd: Vec<u32> = (0..20).map(|index| 2 * index).collect();
        assert!(text(&odd).ends_with(", 30 and 4 more"), "{}", text(&odd));
    }
}
