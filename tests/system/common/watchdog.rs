//! Ends the process when a test hangs. Its children end with it.

use std::{
    io::Write as _,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Watches over a test until it is dropped.
pub(crate) struct Watchdog(
    #[expect(dead_code, reason = "dropping it is what it is for")] Sender<()>,
);

impl Watchdog {
    /// Aborts the process unless it is dropped in time.
    pub(crate) fn start() -> Self {
        Self::within(LIMIT)
    }

    /// The same for a test of minutes of processor time.
    pub(crate) fn patient() -> Self {
        Self::within(2 * LIMIT)
    }

    fn within(limit: Duration) -> Self {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let mut out = std::io::stderr();
                let _nobody_to_tell = writeln!(out, "{test} takes longer than {limit:?}: aborting");
                std::process::abort();
            }
        });
        Self(sender)
    }
}
