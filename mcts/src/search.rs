//! A search: workers, their threads, and what they have found.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Budget, Game, Outcome, Parallelism, Player, SIMULATIONS_A_LEAF_MAX, Settings, WINDOW_MAX,
    phase::{self, Control, Progress},
    stats::{Sum, WorkerStats},
    transport::Mailboxes,
    worker::{Root, Worker},
};

/// The least [`Settings::memory`] for each worker: room for a root and some nodes.
pub const MEMORY_MIN: usize = 64 << 10;

/// Settings with which nothing can be searched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A number is zero or too large.
    #[error("{name} is {value}, and must be from {least} to {most}")]
    OutOfBounds {
        /// Which setting.
        name: &'static str,
        /// What it is.
        value: usize,
        /// The least that is good.
        least: usize,
        /// The most.
        most: usize,
    },
    /// This machine lacks the instructions.
    #[error("this machine has no {0:?}")]
    NoInstructions(crate::Instructions),
}

/// The search of one position, and of those that follow it.
///
/// Between two phases nothing is under way. A phase starts a thread for each worker but one; its tree is kept for the
/// next one.
#[derive(Debug)]
pub struct Search<G> {
    settings: Settings,
    root: Root<G>,
    workers: Vec<Worker<G>>,
    mailboxes: Arc<Mailboxes>,
    phase: u32,
}

/// A move from the position searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The move.
    pub mv: u16,
    /// Simulations that went there.
    pub visits: u64,
    /// What part of them whoever makes the move has won, a draw being half; 0.5 where there are none.
    pub value: f64,
    /// How the game ends after it, where that is known.
    pub proof: Option<Outcome>,
}

/// What a search has found.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The best move: a proven win, else of those that are not proven the one that was visited most, unless a proven draw
    /// is better, else a proven loss. None where the game is over or nothing was searched.
    pub best: Option<u16>,
    /// All moves, the one with most visits first.
    pub candidates: Vec<Candidate>,
    /// How the game ends if both play right, where that is known.
    pub proof: Option<Outcome>,
    /// Simulations that the root has counted, in this phase and before.
    pub visits: u64,
    /// Of the last phase: rollouts, simulations, time.
    pub last: Progress,
    /// The same during it.
    pub samples: Vec<Progress>,
    /// What each worker did in it.
    pub workers: Vec<WorkerStats>,
}

/// What adds up at the end of a phase, and what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Nodes looked at.
    pub nodes: u64,
    /// Nodes whose visits are not those of their children and their own.
    pub unbalanced: u64,
    /// Rollouts that nodes or children take for under way.
    pub under_way: u64,
    /// Messages, and leaves to be simulated, that wait.
    pub waiting: u64,
}

impl<G: Game> Search<G> {
    /// Of a position.
    ///
    /// # Errors
    /// A setting is out of bounds.
    pub fn new(position: G, settings: Settings) -> Result<Self, SettingsError> {
        check(&settings)?;
        let key = position.hash();
        let root = Root { position, key, owner: 0 };
        let workers = (0..settings.workers).map(|number| match settings.parallelism {
            Parallelism::Tree => {
                Worker::new(number, &settings, number.into(), settings.workers, root.clone())
            }
            Parallelism::Root => Worker::new(0, &settings, number.into(), 1, root.clone()),
        });
        let workers = workers.collect();
        let mailboxes = Arc::new(Mailboxes::new(settings.workers));
        Ok(Self { settings, root, workers, mailboxes, phase: 0 })
    }

    /// The position searched.
    #[must_use]
    pub fn position(&self) -> &G {
        &self.root.position
    }

    /// How it is searched.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Searches for a phase.
    ///
    /// # Panics
    /// The game does, on any thread.
    pub fn run(&mut self, budget: Budget) -> Analysis {
        self.run_phase(budget, None)
    }

    /// The same; every now and then `tell` is called, on this thread.
    ///
    /// # Panics
    /// The game does, on any thread.
    pub fn run_with(&mut self, budget: Budget, mut tell: impl FnMut(&Progress)) -> Analysis {
        self.run_phase(budget, Some(&mut tell))
    }

    /// Makes a move. What the tree knows about the position after it is kept.
    pub fn advance(&mut self, mv: u16) {
        let found = self.owner_of_root().tree.find(self.root.key).and_then(|slot| {
            let tree = &self.owner_of_root().tree;
            let tried = tree.node(slot).tried;
            (0..tried).map(|edge| tree.child(slot, edge)).find(|child| child.mv == mv)
        });
        self.root = self.root_after(&self.root, mv);
        if self.settings.parallelism == Parallelism::Tree {
            self.root.owner = found.map_or(0, |child| child.owner);
        }
        for worker in &mut self.workers {
            worker.set_root(self.root.clone());
        }
    }

    /// The line of best moves, as far as each was visited by a tenth of the visits of the one before, at most `most`.
    #[must_use]
    pub fn variation(&self, most: usize) -> Vec<u16> {
        let (mut line, mut root) = (Vec::new(), self.root.clone());
        while line.len() < most {
            let Some(candidates) = self.children(&root) else { break };
            let Some(best) = best_of(&candidates, root.position.turn()) else { break };
            line.push(best.mv);
            root = self.root_after(&root, best.mv);
        }
        line
    }

    /// Adds up what must be in balance between phases. With [`Parallelism::Tree`] all of it is zero but `nodes`.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit { waiting: self.mailboxes.pending() as u64, ..Audit::default() };
        for worker in &self.workers {
            audit.waiting += worker.jobs() as u64 + u64::from(!worker.outbox.is_empty());
            for slot in worker.tree.slots() {
                let node = worker.tree.node(slot);
                let mut sum = node.own;
                audit.under_way += u64::from(node.pending);
                for edge in 0..node.children {
                    let child = worker.tree.child(slot, edge);
                    sum += u64::from(child.visits);
                    audit.under_way += u64::from(child.pending);
                }
                audit.nodes += 1;
                audit.unbalanced += u64::from(sum != node.visits);
            }
        }
        audit
    }

    fn owner_of_root(&self) -> &Worker<G> {
        &self.workers[usize::from(self.root.owner)]
    }

    fn root_after(&self, root: &Root<G>, mv: u16) -> Root<G> {
        let mut position = root.position.clone();
        position.play(mv);
        let key = self.settings.placement.child_key(root.key, mv, &position);
        Root { position, key, owner: root.owner }
    }

    /// The moves from a position, with what is known about them. None where nothing is.
    fn children(&self, root: &Root<G>) -> Option<Vec<Candidate>> {
        let found = self.workers.iter().filter_map(|it| Some((it, it.tree.find(root.key)?)));
        let mut sums: Vec<Sum> = match self.settings.parallelism {
            // After moves were made somebody else may hold an old node of it.
            Parallelism::Tree => {
                let (worker, slot) = found.max_by_key(|(it, slot)| it.tree.node(*slot).visits)?;
                worker.children(slot).collect()
            }
            Parallelism::Root => found.flat_map(|(it, slot)| it.children(slot)).collect(),
        };
        sums.sort_by_key(|sum| sum.mv);
        sums.dedup_by(|next, sum| {
            let same = next.mv == sum.mv;
            if same {
                sum.visits += next.visits;
                sum.score += next.score;
                sum.proof = sum.proof.or(next.proof);
            }
            same
        });
        // Stable: of equal ones the first by number.
        sums.sort_by_key(|sum| std::cmp::Reverse(sum.visits));
        (!sums.is_empty()).then(|| sums.iter().map(candidate).collect())
    }

    fn run_phase(&mut self, budget: Budget, tell: Option<&mut dyn FnMut(&Progress)>) -> Analysis {
        let began = Instant::now();
        self.phase += 1;
        self.workers.iter_mut().for_each(|it| it.begin_phase(self.phase));
        let is_over = self.root.position.outcome().is_some();
        let samples = match self.settings.parallelism {
            _ if is_over => Vec::new(),
            Parallelism::Tree => self.run_tree(budget, tell),
            Parallelism::Root => self.run_roots(budget, tell),
        };
        self.analysis(samples, began.elapsed())
    }

    fn run_tree(
        &mut self,
        budget: Budget,
        tell: Option<&mut dyn FnMut(&Progress)>,
    ) -> Vec<Progress> {
        let Settings { window, simulations, workers, .. } = self.settings;
        if workers == 1 {
            let mut control = Control::new(budget, 1, simulations, tell);
            phase::run_alone(&mut self.workers[0], &mut control);
            return control.samples;
        }
        let mut control = Control::new(budget, window, simulations, tell);
        let mailboxes = &*self.mailboxes;
        thread::scope(|scope| {
            let mut at_root = None;
            for worker in &mut self.workers {
                if worker.owns_root() {
                    at_root = Some(worker);
                } else {
                    scope.spawn(move || drive(worker, mailboxes, None));
                }
            }
            drive(at_root.expect("the root has an owner"), mailboxes, Some(&mut control));
        });
        control.samples
    }

    fn run_roots(
        &mut self,
        budget: Budget,
        mut tell: Option<&mut dyn FnMut(&Progress)>,
    ) -> Vec<Progress> {
        let workers = u64::from(self.settings.workers);
        let simulations = self.settings.simulations;
        let mut all_told = tell.as_mut().map(|tell| {
            // The others are about as far.
            move |one: &Progress| {
                let rollouts = one.rollouts * workers;
                let simulations = one.simulations * workers;
                tell(&Progress { rollouts, simulations, ..*one });
            }
        });
        let mut rest = budget.rollouts;
        let mut shares = (0..workers).map(|done| Budget {
            rollouts: rest.as_mut().map(|rest| {
                let share = *rest / (workers - done);
                *rest -= share;
                share
            }),
            ..budget
        });
        let (first, others) = self.workers.split_first_mut().expect("at least one worker");
        let share = shares.next().expect("as many shares as workers");
        let mut control = Control::new(
            share,
            1,
            simulations,
            all_told.as_mut().map(|tell| tell as &mut dyn FnMut(&Progress)),
        );
        thread::scope(|scope| {
            for (worker, share) in others.iter_mut().zip(shares) {
                scope.spawn(move || {
                    phase::run_alone(worker, &mut Control::new(share, 1, simulations, None));
                });
            }
            phase::run_alone(first, &mut control);
        });
        let mut samples = control.samples;
        for sample in &mut samples {
            sample.rollouts *= workers;
            sample.simulations *= workers;
        }
        samples
    }

    fn analysis(&mut self, samples: Vec<Progress>, elapsed: Duration) -> Analysis {
        let turn = self.root.position.turn();
        let candidates = self.children(&self.root).unwrap_or_default();
        let roots = match self.settings.parallelism {
            Parallelism::Tree => std::slice::from_ref(self.owner_of_root()),
            Parallelism::Root => &self.workers[..],
        };
        let rollouts = roots.iter().map(|it| it.counted).sum();
        let simulations = rollouts * u64::from(self.settings.simulations);
        Analysis {
            best: best_of(&candidates, turn).map(|it| it.mv),
            proof: (self.root.position.outcome()).or_else(|| roots.iter().find_map(|it| it.proven)),
            visits: roots.iter().map(Worker::root_visits).sum(),
            candidates,
            last: Progress { elapsed, rollouts, simulations },
            samples,
            workers: self.workers.iter().map(Worker::final_stats).collect(),
        }
    }
}

/// A worker's thread. Where it panics the others are told, so that they end too.
fn drive<G: Game>(worker: &mut Worker<G>, boxes: &Mailboxes, control: Option<&mut Control<'_>>) {
    struct BreakOff<'a>(&'a Mailboxes);
    impl Drop for BreakOff<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                self.0.break_off();
            }
        }
    }
    let _broken = BreakOff(boxes);
    let mut transport = boxes.of(worker.number());
    // Whoever is gone has panicked, and joining its thread goes on with that.
    let _ = phase::run_together(worker, &mut transport, control);
}

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn candidate(sum: &Sum) -> Candidate {
    let mean = if sum.visits == 0 { 0.0 } else { sum.score as f64 / sum.visits as f64 };
    let value = f64::midpoint(1.0, mean);
    Candidate { mv: sum.mv, visits: sum.visits, value, proof: sum.proof }
}

/// The best of moves that are sorted by visits.
fn best_of(candidates: &[Candidate], turn: Player) -> Option<Candidate> {
    let proven = |outcome| candidates.iter().find(move |it| it.proof == Some(outcome));
    let drawn = proven(Outcome::Drawn);
    let open = candidates.iter().find(|it| it.proof.is_none() && it.visits > 0);
    proven(Outcome::Won(turn))
        .or(open.filter(|it| drawn.is_none() || it.value >= 0.5))
        .or(drawn)
        .or(proven(Outcome::Won(turn.opponent())))
        .copied()
}

fn check(settings: &Settings) -> Result<(), SettingsError> {
    let workers = usize::from(settings.workers);
    let bounds = [
        ("workers", workers, 1, usize::from(u16::MAX)),
        ("simulations", settings.simulations as usize, 1, SIMULATIONS_A_LEAF_MAX as usize),
        ("window", settings.window as usize, 1, WINDOW_MAX as usize),
        ("memory", settings.memory, MEMORY_MIN * workers, usize::MAX),
    ];
    for (name, value, least, most) in bounds {
        if value < least || value > most {
            return Err(SettingsError::OutOfBounds { name, value, least, most });
        }
    }
    if !settings.instructions.are_here() {
        return Err(SettingsError::NoInstructions(settings.instructions));
    }
    Ok(())
}
