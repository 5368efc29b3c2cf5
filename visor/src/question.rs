//! Questions to a daemon, from a process that is no application of its.

use std::time::{Duration, Instant};

use hg_na::{Address, Completion, Error, GoneReason, Op, OpenOptions, Plugin, QUIET};
use hg_na_sm::SmPlugin;

use crate::wire::{Header, Kind};

/// What a daemon can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// What it does: JSON.
    Status,
    /// To take nothing new, and to end when nothing is left.
    Drain,
}

/// Asks the daemon of this name, and waits for its answer.
///
/// # Errors
/// [`Error::Missing`] where there is none, or it does not answer within `patience`; those of `sm`.
pub fn ask(name: &str, question: Question, patience: Duration) -> Result<String, Error> {
    let mut local = SmPlugin.open(&Address::new("sm://")?, &OpenOptions::default())?.context(0)?;
    let daemon = Address::new(&format!("sm://{name}"))?;
    let to = local.lookup(&daemon)?;
    let kind = match question {
        Question::Status => Kind::Status,
        Question::Drain => Kind::Drain,
    };
    let message = Header::new(kind, 0, 0).frame(&[]);
    local.post(QUIET, Op::SendUnexpected { to, message }).map_err(|rejected| rejected.error)?;
    let (end, waiter) = (Instant::now() + patience, local.waiter());
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

fn report(frame: &[u8]) -> Result<String, Error> {
    match Header::decode(frame) {
        Ok((Header { kind: Kind::Report, .. }, text)) => {
            Ok(String::from_utf8_lossy(text).into_owned())
        }
        _ => Err(Error::missing("what answers is no daemon hg-visor")),
    }
}

fn missing(daemon: &Address, reason: &GoneReason) -> Error {
    Error::missing(format!("no daemon hg-visor at {daemon}: {reason}"))
}
