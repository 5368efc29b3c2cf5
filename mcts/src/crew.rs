//! The workers of a search: what a search asks of them, and those that are threads of this process.

use std::{
    fmt::Debug,
    io,
    thread::{self, Scope, ScopedJoinHandle},
    time::Instant,
};

use crate::{
    Budget, Game, Parallelism, Settings,
    phase::{self, Control},
    stats::{Audit, Part, Progress, Sums},
    transport::{Gone, Mailboxes},
    worker::{Root, Worker},
};

/// Told every now and then how far a phase has come.
pub(crate) type Tell<'a> = Option<&'a mut dyn FnMut(&Progress)>;

/// All workers of a search, wherever they are.
pub(crate) trait Crew<G>: Debug + Send {
    /// How many there are.
    fn size(&self) -> u16;

    /// A phase. What came of it at each worker, in the order of their numbers.
    fn run(&mut self, root: &Root<G>, budget: Budget, tell: Tell<'_>) -> Result<Vec<Part>, Gone>;

    /// What each worker that has a node of this key knows about it.
    fn look(&self, key: u64) -> Result<Vec<(u16, Sums)>, Gone>;

    /// Of all of them together.
    fn audit(&self) -> Result<Audit, Gone>;
}

/// Threads of this process. A phase starts one for each worker but one.
#[derive(Debug)]
pub(crate) struct Threads<G> {
    settings: Settings,
    workers: Vec<Worker<G>>,
    mailboxes: Mailboxes,
    phase: u32,
}

impl<G: Game> Threads<G> {
    pub(crate) fn new(root: &Root<G>, settings: &Settings) -> Self {
        let all = settings.workers;
        Self {
            workers: (0..all).map(|number| Worker::one_of(number, all, settings, root)).collect(),
            settings: settings.clone(),
            mailboxes: Mailboxes::new(all),
            phase: 0,
        }
    }

    /// One tree. The root's owner runs on this thread.
    fn run_tree(&mut self, owner: u16, mut control: Control<'_>) -> Result<Vec<Part>, Gone> {
        let mailboxes = &self.mailboxes;
        thread::scope(|scope| {
            let mut at_root = None;
            for worker in &mut self.workers {
                if worker.number() == owner {
                    at_root = Some(worker);
                } else {
                    let run = move || drive(worker, mailboxes, None);
                    start(scope, mailboxes, run)?;
                }
            }
            drive(at_root.expect("the root has an owner"), mailboxes, Some(&mut control));
            Ok(())
        })?;
        let mut samples = Some(control.samples);
        let part = |worker: &Worker<G>| {
            let its_own = if worker.number() == owner { samples.take() } else { None };
            worker.part(its_own.unwrap_or_default())
        };
        Ok(self.workers.iter().map(part).collect())
    }

    /// A tree each.
    fn run_trees(&mut self, budget: Budget, mut tell: Tell<'_>) -> Result<Vec<Part>, Gone> {
        let (settings, trees) = (&self.settings, self.settings.workers);
        let (boxes, began) = (&self.mailboxes, Instant::now());
        let run = |number: u16, worker: &mut Worker<G>, tell: Tell<'_>| {
            let control = Control::new(budget.share(number, trees), 1, settings, tell);
            let mut control = control.since(began);
            let _broken = BreakOff(boxes);
            if settings.parallelism == Parallelism::Merged {
                let mut transport = boxes.of(number);
                // Whoever is gone has panicked, and joining its thread goes on with that.
                let shape = (number, trees);
                let _ = phase::run_merged(worker, shape, &mut transport, &mut control);
            } else {
                // The same: nobody else has anything to say.
                let goes_on = || if boxes.is_broken() { Err(()) } else { Ok(()) };
                let _ = phase::run_alone(worker, &mut control, goes_on);
            }
            worker.part(control.samples)
        };
        let run = &run;
        thread::scope(|scope| {
            let (first, others) = self.workers.split_first_mut().expect("at least one worker");
            let others: Vec<_> = (1..)
                .zip(others)
                .map(|(number, worker)| start(scope, boxes, move || run(number, worker, None)))
                .collect::<Result<_, Gone>>()?;
            let first = run(0, first, tell.as_mut().map(|tell| &mut **tell as _));
            let joined = others
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            Ok(std::iter::once(first).chain(joined).collect())
        })
    }
}

/// Starts a worker's thread. Where the system has none, the others are told, so that they end too.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    boxes: &Mailboxes,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Gone> {
    let started = may_start().and_then(|()| thread::Builder::new().spawn_scoped(scope, run));
    started.map_err(|error| {
        boxes.break_off();
        let why = format!("cannot start a thread ({error}): search with fewer, or raise the limit");
        Gone { process: 0, why: why.into() }
    })
}

/// Always, but in tests.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "tests refuse")]
pub(crate) fn may_start() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use tests::may_start;

impl<G: Game> Crew<G> for Threads<G> {
    fn size(&self) -> u16 {
        self.settings.workers
    }

    fn run(&mut self, root: &Root<G>, budget: Budget, tell: Tell<'_>) -> Result<Vec<Part>, Gone> {
        if self.mailboxes.is_broken() {
            // What was under way is lost, and counts with it.
            return Err(Gone { process: 0, why: "has lost a thread of this search".into() });
        }
        self.phase += 1;
        self.workers.iter_mut().for_each(|it| it.begin_phase(self.phase, root));
        match self.settings.parallelism {
            Parallelism::Tree if self.settings.workers > 1 => {
                let window = self.settings.window;
                let settings = self.settings.clone();
                self.run_tree(root.owner, Control::new(budget, window, &settings, tell))
            }
            Parallelism::Tree | Parallelism::Root | Parallelism::Merged => {
                self.run_trees(budget, tell)
            }
        }
    }

    fn look(&self, key: u64) -> Result<Vec<(u16, Sums)>, Gone> {
        let found = (0..).zip(&self.workers).filter_map(|(at, it)| Some((at, it.look(key)?)));
        Ok(found.collect())
    }

    fn audit(&self) -> Result<Audit, Gone> {
        let mut audit = Audit { waiting: self.mailboxes.pending() as u64, ..Audit::default() };
        self.workers.iter().for_each(|it| audit.add(it.audit()));
        Ok(audit)
    }
}

/// A worker's thread. Where it panics the others are told, so that they end too.
fn drive<G: Game>(worker: &mut Worker<G>, boxes: &Mailboxes, control: Option<&mut Control<'_>>) {
    let _broken = BreakOff(boxes);
    let mut transport = boxes.of(worker.number());
    // Whoever is gone has panicked, and joining its thread goes on with that.
    let _ = phase::run_together(worker, &mut transport, control);
}

/// Tells all others when this thread panics.
struct BreakOff<'a>(&'a Mailboxes);

impl Drop for BreakOff<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.break_off();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Search, hex::Hex};

    thread_local! {
        /// Threads that this one may start before it is refused one.
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Lets this thread start so many more.
    pub(crate) fn allow(threads: usize) {
        LEFT.set(threads);
    }

    pub(crate) fn may_start() -> io::Result<()> {
        let left = LEFT.get().checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
        LEFT.set(left);
        Ok(())
    }

    #[test]
    fn where_there_is_no_thread_to_be_had_a_search_ends_with_a_word_and_nobody_waits() {
        let _watchdog = watchdog::Watchdog::start();
        for parallelism in [Parallelism::Merged, Parallelism::Tree, Parallelism::Root] {
            for left in 0..3 {
                let settings = Settings { workers: 4, parallelism, ..Settings::default() };
                let mut search =
                    Search::new(Hex::new(4).expect("a size"), settings).expect("valid");
                allow(left);
                let ended = search.run(Budget::rollouts(1000));
                allow(usize::MAX);
                let error = ended.expect_err("a thread is missing").to_string();
                assert!(error.contains("cannot start a thread"), "{parallelism:?}: {error}");
                let again = search.run(Budget::rollouts(1000)).map(|found| found.last.rollouts);
                assert!(again.is_err_and(|error| error.why.contains("has lost a thread")));
            }
        }
    }
}
