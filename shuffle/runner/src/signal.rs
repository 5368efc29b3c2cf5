//! `SIGUSR1`: prints the state of the shuffle and of its engines, also when it is stuck.

use std::{io::Write as _, thread};

use hg_shuffle::Dump;
use nix::sys::signal::{SigSet, Signal};

use crate::Error;

/// Keeps the signal for [`answer`]: in this thread and those that it starts. A rank that is not that far yet, and the
/// runner that starts ranks, are not ended by it either.
pub(crate) fn hold() -> Result<(), Error> {
    signals().thread_block().map_err(|errno| Error::Os("SIGUSR1 cannot be held", errno.into()))
}

/// Prints the state whenever the signal comes, from now on.
pub(crate) fn answer(dump: Dump) -> Result<(), Error> {
    let run = move || {
        let signals = signals();
        while signals.wait().is_ok() {
            // At once, so that the ranks' states are not mixed up; of the longer one, so that its lines are not.
            let text = dump.to_string();
            let _ = std::io::stderr().write_all(text.as_bytes());
            for line in dump.engines().split_inclusive('\n') {
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        }
    };
    let thread = thread::Builder::new().name("state dump".to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Error::Os("a thread", error))
}

fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGUSR1])
}
