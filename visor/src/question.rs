//! Questions to a daemon, from a process that is no application of its.

use std::time::{Duration, Instant};

use hg_na::{Address, Completion, Error, GoneReason, Op, OpenOptions, Plugin, QUIET};
use hg_na_sm::SmPlugin;

use crate::{
    settings::{ALLOW_UID, ROOT},
    wire::{Header, Kind},
};

/// What a daemon can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What it does: JSON.
    Status,
    /// To take nothing new, and to end when nothing is left. With a limit, what is left then is ended, and the answer comes at the end.
    Drain {
        /// The limit.
        within: Option<Duration>,
    },
}

/// What a daemon has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// In its words.
    pub text: String,
    /// It did as it was asked, and ended nothing by force.
    pub is_well: bool,
}

/// Asks the daemon of this name, and waits for its answer: `patience`, and the limit that it was given.
///
/// # Errors
/// [`Error::Missing`] where there is none, or it does not answer within `patience`; those of `sm`.
pub fn ask(name: &str, question: Question, patience: Duration) -> Result<Answer, Error> {
    let options = OpenOptions::default().with("regions", "off").with(ALLOW_UID, ROOT);
    let mut local = SmPlugin.open(&Address::new("sm://")?, &options)?.context(0)?;
    let daemon = Address::new(&format!("sm://{name}"))?;
    let to = local.lookup(&daemon)?;
    let (kind, within) = match question {
        Question::Status => (Kind::Status, None),
        Question::Drain { within } => (Kind::Drain, within),
    };
    let word = within.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX).max(1));
    let message = Header::new(kind, 0, word).frame(&[]);
    local.post(QUIET, Op::SendUnexpected { to, message }).map_err(|rejected| rejected.error)?;
    let patience = patience.saturating_add(within.unwrap_or_default());
    let end = Instant::now().checked_add(patience).unwrap_or_else(Instant::now);
    let waiter = local.waiter();
    let mut done = Vec::new();
    loop {
        let now = Instant::now();
        let found = local.progress(now, &mut done)?;
        for completion in done.drain(..) {
            match completion {
                Completion::Unexpected { message, .. } => return report(message.as_slice()),
                Completion::Gone { reason, .. } => return Err(missing(&daemon, &reason)),
                _ => {}
            }
        }
        if now >= end {
            return Err(missing(&daemon, &GoneReason::TimedOut));
        }
        if !found && local.may_sleep() {
            let due = local.next_deadline().map_or(end, |due| due.min(end));
            waiter.wait(Some(due.saturating_duration_since(now)))?;
        }
    }
}

fn report(frame: &[u8]) -> Result<Answer, Error> {
    match Header::decode(frame) {
        Ok((Header { kind: Kind::Report, word, .. }, text)) => {
            Ok(Answer { text: String::from_utf8_lossy(text).into_owned(), is_well: word == 0 })
        }
        _ => Err(Error::missing("what answers is no daemon hg-visor")),
    }
}

fn missing(daemon: &Address, reason: &GoneReason) -> Error {
    Error::missing(format!("no daemon hg-visor at {daemon}: {reason}"))
}
