//! What is said when a signal ends this program.
//!
//! Figures come at the end alone. Whoever ends a run before (a limit of time in a script does) would see nothing, and could take
//! that for a run without figures.

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::error::{Context, Error};

/// Says so for each of these signals, unless it is ignored, as `nohup` has it.
pub(crate) fn say_so() -> Result<(), Error> {
    let say = SigAction::new(SigHandler::Handler(say), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY:
        // - valid: `say` does nothing that may not be done in the middle of anything else.
        // - shared: nobody else in this program handles these signals.
        let before = unsafe { sigaction(signal, &say) }.context("sigaction")?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: as above; nothing is run.
            unsafe { sigaction(signal, &before) }.context("sigaction")?;
        }
    }
    Ok(())
}

extern "C" fn say(signal: libc::c_int) {
    // Whoever has closed standard error is not told.
    let _ = nix::unistd::write(std::io::stderr(), SAID);
    // SAFETY:
    // - valid: it may be called in a handler, and runs nothing of this process.
    unsafe { libc::_exit(128 + signal) }
}

const SAID: &[u8] = b"hg-perf: ended by a signal before the figures, which come at the end alone\n";
