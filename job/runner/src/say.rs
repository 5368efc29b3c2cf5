//! Lines on standard error, what is wrong with all ranks, which one of them says, and what all have to say.

use std::io::{self, IsTerminal as _, Write as _};

use hg_job::{Job, Settings};
use serde::{Serialize, de::DeserializeOwned};

use crate::Error;

/// A line on standard error, in one piece: other ranks write there, too.
pub fn say(line: &str) {
    // Nobody is left to be told that this failed.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// To whoever looks at the figures of a build that is not optimised.
pub fn if_debug() {
    if cfg!(debug_assertions) && io::stderr().is_terminal() {
        say("this is a debug build: its figures mean nothing; build with --release");
    }
}

/// Whether help is this process's to print: of a launcher's ranks, the first one's.
#[must_use]
pub fn prints() -> bool {
    Settings::new().rank().is_none_or(|rank| rank == 0)
}

/// If any rank fails, its words are said: of those with the same words the first one says them. A launcher ends all ranks
/// when one ends, so nobody goes on before that. Collective; whether all is well.
///
/// # Errors
/// Of the job.
pub fn once(job: &Job, program: &str, wrong: Option<&str>) -> Result<bool, hg_job::Error> {
    let words = wrong.unwrap_or_default();
    let told = job.all_gather(words.as_bytes())?;
    if told.iter().all(Vec::is_empty) {
        return Ok(true);
    }
    let before = &told[..job.rank() as usize];
    if !words.is_empty() && !before.iter().any(|theirs| theirs == words.as_bytes()) {
        say(&format!("{program}: {words}"));
    }
    // Whoever does not come has ended already.
    let _ = job.barrier();
    Ok(false)
}

/// What every rank has to say, in their order. Collective.
///
/// # Errors
/// Of the job; what another one has said cannot be read.
pub fn gather<T: Serialize + DeserializeOwned>(job: &Job, own: &T) -> Result<Vec<T>, Error> {
    let all = job.all_gather(&serde_json::to_vec(own)?)?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}

/// What is wrong with the command line. Ranks of a launcher have one, most likely: the first of them says it.
pub fn unreadable(program: &str, sentence: &str) {
    let told = Settings::new().connect().and_then(|job| {
        let told = once(&job, program, Some(sentence));
        // Fails only where others have ended otherwise.
        let _ = job.leave();
        told
    });
    if told.is_err() {
        say(&format!("{program}: {sentence}"));
    }
}

/// Whoever reads standard output has enough: that is no error.
///
/// # Errors
/// Any other one.
pub fn unless_closed(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
