//! The barrier of a worker: when to say what, to whom, and what to believe.

use super::{
    Worker,
    calling::Head,
    running::{AGAIN, DONE, ENTER, FAILED, LEAVES, Malformed, REPORT, take_u64},
};
use crate::{Error, bounds::WHY_MAX, quiet::Out, service::Stage};

impl Worker {
    /// Waits until every call that any worker has made has run, those included that were made by functions meanwhile. Collective: each worker
    /// of each process enters it: who skips one, because its thread has panicked for instance, drops its worker, or ends the job.
    ///
    /// Whoever leaves it goes on making progress, or finishes: what it says to others may leave it only then. It does not wait for
    /// synchronizers: a call has run, and [`How::when_run`](crate::How::when_run) may tell so a little later.
    ///
    /// # Errors
    /// [`Error::Gone`] names a process without which it cannot end; [`Error::Inside`]; [`Error::Differ`].
    pub fn quiesce(&self) -> Result<(), Error> {
        self.quiesce_of(None)
    }

    /// The same for the calls of one group ([`How::of_group`](crate::How::of_group)), whatever becomes of others meanwhile. Collective: all workers
    /// enter the same barriers in the same order.
    ///
    /// # Errors
    /// As [`Worker::quiesce`]; [`Error::Differ`].
    pub fn quiesce_group(&self, group: u32) -> Result<(), Error> {
        self.quiesce_of(Some(group))
    }

    fn quiesce_of(&self, group: Option<u32>) -> Result<(), Error> {
        if self.is_inside.get() {
            return Err(Error::Inside);
        }
        self.enter(group);
        let ended = self.wait_until(|| self.take_part());
        // Others wait for what is said here, and this worker may make no progress from now on.
        self.port.borrow_mut().send_all();
        ended
    }

    /// Those below are to report: that they are gone is heard of, too. The one above is heard of from the report on.
    fn enter(&self, group: Option<u32>) {
        let mut quiet = self.quiet.borrow_mut();
        quiet.enter(group);
        self.send_to(quiet.services(), ENTER, group, [0, 0]);
        quiet.below().for_each(|end| self.port.borrow_mut().keep(end));
    }

    /// It has ended, or cannot.
    fn leave(&self) {
        let mut quiet = self.quiet.borrow_mut();
        let mut port = self.port.borrow_mut();
        quiet.below().for_each(|end| port.let_go(end));
        if quiet.leave()
            && let Some(above) = quiet.above()
        {
            port.let_go(above);
        }
    }

    /// Asked again and again inside a barrier; an answer ends it.
    pub(super) fn take_part(&self) -> Option<Result<(), Error>> {
        let mut quiet = self.quiet.borrow_mut();
        let group = quiet.group();
        let all = (self.made.get(), self.run.get());
        let (made, run) = group.map_or(all, |group| self.groups.borrow().counts(group));
        let out = quiet.step(made, run);
        drop(quiet);
        if out.is_some() {
            group.into_iter().for_each(|group| self.groups.borrow_mut().reported(group));
        }
        if let Some(Out::Differ(end, theirs)) = out {
            let of = |group: Option<u32>| match group {
                None => "all calls".to_owned(),
                Some(group) => format!("group {group}"),
            };
            let (here, there) = (self.place(), self.place_of(end));
            let why = format!("{there} that of {}, {here} that of {}", of(theirs), of(group));
            self.gone.borrow_mut().get_or_insert(Error::Differ(why.into()));
        } else if let Some(out) = out {
            self.send(out);
        }
        let quiet = self.quiet.borrow();
        if quiet.is_over() {
            if let Some(group) = group {
                self.groups.borrow_mut().settle(group, quiet.reported_last());
            }
            drop(quiet);
            self.leave();
            return Some(Ok(()));
        }
        drop(quiet);
        let gone = self.gone.borrow().clone().or_else(|| self.has_left.borrow().clone())?;
        self.gone.borrow_mut().get_or_insert_with(|| gone.clone());
        if !self.has_failed.replace(true) {
            self.send_failure(&gone, self.quiet.borrow().beside());
        }
        self.leave();
        Some(Err(gone))
    }

    /// Of a service thread: runs what others call as long as there are workers, and enters each barrier with the first of them. Whether
    /// all that was called here has left at the end.
    pub(crate) fn serve(self, stage: &Stage) -> bool {
        // It was possible a moment ago; elsewhere it serves as well.
        let _ = self.bind();
        // Whoever ends it waits for it, maybe until a deadline.
        self.port.borrow_mut().wait_for_no_memory();
        let served = self.wait_until(|| {
            if self.is_asked.get() && self.take_part().is_some() {
                self.is_asked.set(false);
            }
            (!stage.is_working()).then_some(Ok(()))
        });
        // A transport that is of no use any more: whoever calls this thread hears that it is gone.
        served.is_ok() && self.leave_or(|| stage.is_over()).unwrap_or(false)
    }

    /// The barrier's own messages are no calls, and are not counted.
    #[cold]
    pub(super) fn hear_of_barrier(
        &self,
        from: u32,
        tag: u32,
        group: Option<u32>,
        mut bytes: &[u8],
    ) -> Result<(), Malformed> {
        let mut quiet = self.quiet.borrow_mut();
        let words = (take_u64(&mut bytes)?, take_u64(&mut bytes)?);
        let is_above = quiet.above() == Some(from);
        match tag {
            REPORT if quiet.reported(from, group, words) => {}
            ENTER if is_above && self.is_service() => {
                drop(quiet);
                // The one before has ended, and its end may have been heard of in this very round: it is to be counted first.
                if self.is_asked.get() {
                    let _ended = self.take_part();
                }
                self.enter(group);
                self.is_asked.set(true);
            }
            AGAIN | DONE if is_above => {
                if quiet.decided(tag == DONE) {
                    drop(quiet);
                    self.port.borrow_mut().let_go(from);
                    self.send(if tag == DONE { Out::Done } else { Out::Again });
                }
            }
            FAILED if quiet.is_beside(from) => {
                let process = u32::try_from(words.0).ok();
                let process = process.filter(|it| *it < self.processes());
                // What it says is text of at most so much, whatever it is.
                let said = String::from_utf8_lossy(&bytes[..bytes.len().min(WHY_MAX)]);
                let (error, witness) = match process {
                    Some(process) => {
                        let witness = u32::try_from(words.1).unwrap_or(u32::MAX);
                        let why = format!("{said}, says process {witness}").into();
                        (Error::Gone { process, why }, Some(witness))
                    }
                    None if words.0 == DIFFER => (Error::Differ(said.into()), None),
                    None => return Err("no process has that number"),
                };
                // What is known already has its own witness.
                let mut gone = self.gone.borrow_mut();
                if gone.is_none() {
                    *gone = Some(error);
                    self.heard.set(witness);
                }
            }
            LEAVES if quiet.is_beside(from) && !self.leaving.borrow().contains(&from) => {
                self.leaving.borrow_mut().push(from);
            }
            _ => return Err("a message of the barrier from who has no say in it"),
        }
        Ok(())
    }

    #[cold]
    fn send(&self, out: Out) {
        let quiet = self.quiet.borrow();
        match out {
            Out::Report(made, run) => {
                self.send_to(quiet.above().into_iter(), REPORT, quiet.group(), [made, run]);
                quiet.above().into_iter().for_each(|end| self.port.borrow_mut().keep(end));
            }
            Out::Again => self.send_to(quiet.below(), AGAIN, None, [0, 0]),
            Out::Done => self.send_to(quiet.below(), DONE, None, [0, 0]),
            Out::Differ(..) => {}
        }
    }

    /// Whoever waits beside this worker in the barrier hears of it, too. Once: no barrier of theirs ends then.
    #[cold]
    fn send_failure(&self, gone: &Error, ends: impl Iterator<Item = u32>) {
        let (process, why) = match gone {
            Error::Gone { process, why } => (u64::from(*process), &**why),
            Error::Differ(why) => (DIFFER, &**why),
            _ => (DIFFER, ""),
        };
        // Who has found it is named once, however many pass it on.
        let witness = self.heard.get().unwrap_or(self.place().process);
        let why = why.strip_suffix(&format!(", says process {witness}")).unwrap_or(why);
        // That it fails is said in the shortest record; why, as far as there is room.
        let most = self.port.borrow().record_max().saturating_sub(size_of::<[u64; 2]>());
        let why = &why.as_bytes()[..why.len().min(WHY_MAX).min(most)];
        self.send_with(ends, FAILED, None, [process, witness.into()], why);
    }

    /// Those beside it are to know that it leaves in good order. Who has no connection, or no room, is not told, and sees no more than its end. What was
    /// said, as room was there, and is refused by the transport all the same, is waited for like a call.
    #[cold]
    pub(super) fn say_goodbye(&self) {
        let beside = self.beside_open();
        // Without that one no barrier ends: it is not this one who is to blame for that.
        if let Some(dead) = self.found_dead() {
            self.send_failure(&dead, beside.iter().copied());
        }
        self.send_to(beside.into_iter(), LEAVES, None, [0, 0]);
    }

    /// Of a worker that is dropped without that: those beside it are to know whom it has found dead, as far as that leaves now.
    #[cold]
    pub(super) fn say_why(&self) {
        if !self.is_leaving.get()
            && let Some(dead) = self.found_dead()
        {
            self.send_failure(&dead, self.beside_open().into_iter());
            self.port.borrow_mut().send_all();
        }
    }

    /// What others are to hear outside of a barrier, once: not what is hearsay here, which whoever lies might spread so.
    fn found_dead(&self) -> Option<Error> {
        let is_due = self.has_died.get() && !self.has_failed.replace(true);
        self.gone.borrow().clone().filter(|_| is_due)
    }

    /// An end is gone, as is found here. That its process `has_died` is named before what others have said, and before who has closed its worker.
    #[cold]
    pub(super) fn find_gone(&self, error: &Error, has_died: bool) {
        let mut gone = self.gone.borrow_mut();
        let is_news = match &*gone {
            None => true,
            Some(Error::Gone { .. }) => has_died && !self.has_died.get(),
            Some(_) => false,
        };
        if is_news {
            *gone = Some(error.clone());
            self.has_died.set(has_died);
            self.heard.set(None);
        }
    }

    fn beside_open(&self) -> Vec<u32> {
        let (beside, port) = (self.quiet.borrow().beside(), self.port.borrow());
        beside.filter(|end| port.is_open(*end)).collect()
    }

    fn send_to(
        &self,
        ends: impl Iterator<Item = u32>,
        tag: u32,
        group: Option<u32>,
        words: [u64; 2],
    ) {
        self.send_with(ends, tag, group, words, &[]);
    }

    fn send_with(
        &self,
        ends: impl Iterator<Item = u32>,
        tag: u32,
        group: Option<u32>,
        words: [u64; 2],
        more: &[u8],
    ) {
        let head = Head::default().with(tag, &words[0].to_le_bytes());
        let head = head.with(0, &words[1].to_le_bytes()).behind(group).before(more);
        let mut port = self.port.borrow_mut();
        for end in ends {
            // Who is gone is told by `Event::Gone`. There is always room: these wait behind calls that were let in.
            if let Ok(room) = port.record(end, head.flags, head.len(), u64::MAX) {
                head.write(room);
                port.flush(end);
            }
        }
    }
}

/// In the place of a process that is gone: workers have entered different barriers.
const DIFFER: u64 = u64::MAX;
