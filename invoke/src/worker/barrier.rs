//! The barrier of a worker: when to say what, to whom, and what to believe.

use super::{
    Worker,
    running::{AGAIN, DONE, FAILED, Malformed, REPORT, take_u64},
};
use crate::{Error, quiet::Out};

impl Worker {
    /// Waits until every call that any worker has made has run, those included that were made by functions meanwhile. Collective: each worker
    /// of each process enters it.
    ///
    /// # Errors
    /// [`Error::Gone`] names a process without which it cannot end; [`Error::Inside`].
    pub fn quiesce(&self) -> Result<(), Error> {
        self.quiet.borrow_mut().enter();
        self.wait_until(|| {
            let out = self.quiet.borrow_mut().step(self.made.get(), self.run.get());
            if let Some(out) = out {
                self.send(out);
            }
            if self.quiet.borrow().is_over() {
                return Some(Ok(()));
            }
            self.gone.borrow().clone().map(|gone| {
                self.send_failure(&gone);
                Err(gone)
            })
        })
    }

    /// The barrier's own messages are no calls, and are not counted.
    #[cold]
    pub(super) fn hear_of_barrier(
        &self,
        from: u32,
        tag: u32,
        mut bytes: &[u8],
    ) -> Result<(), Malformed> {
        let mut quiet = self.quiet.borrow_mut();
        let words = (take_u64(&mut bytes)?, take_u64(&mut bytes)?);
        let is_above = quiet.above() == Some(from);
        match tag {
            REPORT if quiet.reported(from, words.0, words.1) => {}
            AGAIN | DONE if is_above => {
                if quiet.decided(tag == DONE) {
                    drop(quiet);
                    self.send(if tag == DONE { Out::Done } else { Out::Again });
                }
            }
            FAILED if quiet.is_beside(from) => {
                let process = u32::try_from(words.0).ok();
                let process = process.filter(|it| *it < self.processes());
                let process = process.ok_or("no process has that number")?;
                let why = "so says another process".into();
                self.gone.borrow_mut().get_or_insert(Error::Gone { process, why });
            }
            _ => return Err("a message of the barrier from who has no say in it"),
        }
        Ok(())
    }

    #[cold]
    fn send(&self, out: Out) {
        let quiet = self.quiet.borrow();
        match out {
            Out::Report(made, run) => self.send_to(quiet.above().into_iter(), REPORT, [made, run]),
            Out::Again => self.send_to(quiet.below(), AGAIN, [0, 0]),
            Out::Done => self.send_to(quiet.below(), DONE, [0, 0]),
        }
    }

    /// Whoever waits beside this worker in the barrier hears of it, too.
    #[cold]
    fn send_failure(&self, gone: &Error) {
        if let Error::Gone { process, .. } = gone {
            let quiet = self.quiet.borrow();
            let beside = quiet.above().into_iter().chain(quiet.below());
            self.send_to(beside, FAILED, [u64::from(*process), 0]);
        }
    }

    fn send_to(&self, ends: impl Iterator<Item = u32>, tag: u32, words: [u64; 2]) {
        let mut port = self.port.borrow_mut();
        for end in ends {
            // Who is gone is told by `Event::Gone`. There is always room: these wait behind calls that were let in.
            if let Ok(room) = port.record(end, tag, 16, u64::MAX) {
                room[..8].copy_from_slice(&words[0].to_le_bytes());
                room[8..].copy_from_slice(&words[1].to_le_bytes());
                port.flush(end);
            }
        }
    }
}
