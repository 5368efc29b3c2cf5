//! The workers of a search: what a search asks of them, and those that are threads of this process.

use std::{convert::Infallible, fmt::Debug, thread, time::Instant};

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
    fn run_tree(&mut self, owner: u16, mut control: Control<'_>) -> Vec<Part> {
        let mailboxes = &self.mailboxes;
        thread::scope(|scope| {
            let mut at_root = None;
            for worker in &mut self.workers {
                if worker.number() == owner {
                    at_root = Some(worker);
                } else {
                    scope.spawn(move || drive(worker, mailboxes, None));
                }
            }
            drive(at_root.expect("the root has an owner"), mailboxes, Some(&mut control));
        });
        let mut samples = Some(control.samples);
        let part = |worker: &Worker<G>| {
            let its_own = if worker.number() == owner { samples.take() } else { None };
            worker.part(its_own.unwrap_or_default())
        };
        self.workers.iter().map(part).collect()
    }

    /// A tree each.
    fn run_trees(&mut self, budget: Budget, mut tell: Tell<'_>) -> Vec<Part> {
        let (settings, trees) = (&self.settings, self.settings.workers);
        let (boxes, began) = (&self.mailboxes, Instant::now());
        let run = |number: u16, worker: &mut Worker<G>, tell: Tell<'_>| {
            let control = Control::new(budget.share(number, trees), 1, settings, tell);
            let mut control = control.since(began);
            if settings.parallelism == Parallelism::Merged {
                let _broken = BreakOff(boxes);
                let mut transport = boxes.of(number);
                // Whoever is gone has panicked, and joining its thread goes on with that.
                let shape = (number, trees);
                let _ = phase::run_merged(worker, shape, &mut transport, &mut control);
            } else {
                let Ok(()) = phase::run_alone(worker, &mut control, || Ok::<(), Infallible>(()));
            }
            worker.part(control.samples)
        };
        let run = &run;
        thread::scope(|scope| {
            let (first, others) = self.workers.split_first_mut().expect("at least one worker");
            let others: Vec<_> = (1..)
                .zip(others)
                .map(|(number, worker)| scope.spawn(move || run(number, worker, None)))
                .collect();
            let first = run(0, first, tell.as_mut().map(|tell| &mut **tell as _));
            let joined = others
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(first).chain(joined).collect()
        })
    }
}

impl<G: Game> Crew<G> for Threads<G> {
    fn size(&self) -> u16 {
        self.settings.workers
    }

    fn run(&mut self, root: &Root<G>, budget: Budget, tell: Tell<'_>) -> Result<Vec<Part>, Gone> {
        self.phase += 1;
        self.workers.iter_mut().for_each(|it| it.begin_phase(self.phase, root));
        Ok(match self.settings.parallelism {
            Parallelism::Tree if self.settings.workers > 1 => {
                let window = self.settings.window;
                let settings = self.settings.clone();
                self.run_tree(root.owner, Control::new(budget, window, &settings, tell))
            }
            Parallelism::Tree | Parallelism::Root | Parallelism::Merged => {
                self.run_trees(budget, tell)
            }
        })
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
