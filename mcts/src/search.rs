//! A search: workers, their threads, and what they have found.

use std::time::{Duration, Instant};

use crate::{
    Budget, Game, Gone, Outcome, Parallelism, Player, Portable, SIMULATIONS_A_LEAF_MAX, Settings,
    Team, WINDOW_MAX,
    crew::{Crew, Tell, Threads},
    merge::Share,
    stats::{Audit, Part, Progress, Sum, Sums, WorkerStats},
    worker::Root,
};

/// The least [`Settings::memory`] for each worker: room for a root and some nodes. Workers whose trees are merged need
/// somewhat more, so that the root of each can be told to all others.
pub const MEMORY_MIN: usize = 64 << 10;

/// Settings with which nothing can be searched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A number is zero or too large.
    #[error("{name} is {value}, and must be {}", bounds(*.least, *.most))]
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
    /// [`Settings::exploration`] is negative or not finite.
    #[error("exploration is {0}, and must be a number from 0 on")]
    Exploration(f32),
    /// This machine lacks the instructions.
    #[error("this machine has no {0:?}")]
    NoInstructions(crate::Instructions),
}

/// The search of one position, and of those that follow it.
///
/// Between two phases nothing is under way. The tree is kept for the next one.
#[derive(Debug)]
pub struct Search<G> {
    settings: Settings,
    root: Root<G>,
    crew: Box<dyn Crew<G>>,
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

impl<G: Game> Search<G> {
    /// Of a position, by threads of this process.
    ///
    /// # Errors
    /// A setting is out of bounds.
    pub fn new(position: G, settings: Settings) -> Result<Self, SettingsError> {
        check::<G>(&settings, settings.workers)?;
        let root = Root::of(position);
        let crew = Box::new(Threads::new(&root, &settings));
        Ok(Self { settings, root, crew })
    }

    /// Of a position, by all threads of all processes of a job. [`Settings::workers`] are those of the team.
    ///
    /// # Errors
    /// A setting is out of bounds.
    pub fn by(team: &Team<G>, position: G, settings: Settings) -> Result<Self, SettingsError>
    where
        G: Portable,
    {
        let settings = Settings { workers: team.threads(), ..settings };
        check::<G>(&settings, team.workers())?;
        let root = Root::of(position);
        Ok(Self { crew: team.crew(&settings), settings, root })
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
    /// # Errors
    /// A process of the team has ended: the team searches no more. Without a team: the system has no thread, or the game has panicked
    /// in a phase before; this search is over.
    ///
    /// # Panics
    /// The game does, on any thread of this process, or breaks the rules of [`Game`].
    pub fn run(&mut self, budget: Budget) -> Result<Analysis, Gone> {
        self.run_phase(budget, None)
    }

    /// The same; every now and then `tell` is called, on this thread. It may make and drop searches of the same team, and drop the
    /// team, which ends with this phase. A phase of another one is refused, and a move that one makes meanwhile may cost it its tree.
    ///
    /// # Errors
    /// As [`Search::run`].
    ///
    /// # Panics
    /// As [`Search::run`].
    pub fn run_with(
        &mut self,
        budget: Budget,
        mut tell: impl FnMut(&Progress),
    ) -> Result<Analysis, Gone> {
        self.run_phase(budget, Some(&mut tell))
    }

    /// Makes a move. What the tree knows about the position after it is kept.
    ///
    /// # Panics
    /// The move is not legal.
    pub fn advance(&mut self, mv: u16) {
        assert!(self.root.position.is_legal(mv), "move {mv} cannot be made in this position");
        let owner = match self.settings.parallelism {
            // Of a team that has broken nobody is asked: the next phase says so.
            Parallelism::Tree => (self.crew.look(self.root.key).unwrap_or_default().into_iter())
                .filter(|(worker, _)| *worker == self.root.owner)
                .find_map(|(_, sums)| sums.children.into_iter().find(|child| child.mv == mv))
                .map_or(0, |child| child.owner),
            Parallelism::Root | Parallelism::Merged => 0,
        };
        // Of another process it is a claim.
        let owner = if owner < self.crew.size() { owner } else { 0 };
        self.root = Root { owner, ..self.root_after(&self.root, mv) };
    }

    /// The line of best moves, as far as each was visited by a tenth of the visits of the one before, at most `most`.
    #[must_use]
    pub fn variation(&self, most: usize) -> Vec<u16> {
        let (mut line, mut root) = (Vec::new(), self.root.clone());
        while line.len() < most {
            let Ok(found) = self.crew.look(root.key) else { break };
            let found = found.into_iter().map(|(_, sums)| sums).collect();
            let Some(candidates) = self.candidates(found) else { break };
            let best = best_of(&candidates, root.position.turn());
            // Of another process it is a claim.
            let Some(best) = best.filter(|it| root.position.is_legal(it.mv)) else { break };
            line.push(best.mv);
            root = self.root_after(&root, best.mv);
        }
        line
    }

    /// Adds up what must be in balance between phases. All of it is zero but `nodes`.
    ///
    /// # Errors
    /// As [`Search::run`].
    pub fn audit(&self) -> Result<Audit, Gone> {
        self.crew.audit()
    }

    fn root_after(&self, root: &Root<G>, mv: u16) -> Root<G> {
        let mut position = root.position.clone();
        position.play(mv);
        let key = self.settings.placement.child_key(root.key, mv, &position);
        Root { position, key, owner: root.owner }
    }

    /// The moves from a position, by what workers know about it. None where nobody does.
    fn candidates(&self, found: Vec<Sums>) -> Option<Vec<Candidate>> {
        let mut sums: Vec<Sum> = match self.settings.parallelism {
            // After moves were made somebody else may hold an old node of it.
            Parallelism::Tree | Parallelism::Merged => {
                found.into_iter().max_by_key(|it| it.visits)?.children
            }
            Parallelism::Root => found.into_iter().flat_map(|it| it.children).collect(),
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

    fn run_phase(&mut self, budget: Budget, mut tell: Tell<'_>) -> Result<Analysis, Gone> {
        let began = Instant::now();
        // Nobody begins a rollout in a game that is over.
        let is_over = self.root.position.outcome().is_some();
        let budget = if is_over { Budget::rollouts(0) } else { budget };
        // With a tree each, the others are about as far as the first one.
        let trees = match self.settings.parallelism {
            Parallelism::Tree => 1,
            Parallelism::Root | Parallelism::Merged => u64::from(self.crew.size()),
        };
        let mut of_all = tell.as_mut().map(|tell| |one: &Progress| tell(&one.times(trees)));
        let tell = of_all.as_mut().map(|tell| tell as &mut dyn FnMut(&Progress));
        let parts = self.crew.run(&self.root, budget, tell)?;
        Ok(self.analysis(parts, trees, began.elapsed()))
    }

    fn analysis(&self, mut parts: Vec<Part>, trees: u64, elapsed: Duration) -> Analysis {
        let turn = self.root.position.turn();
        let owner = usize::from(self.root.owner);
        let roots = match self.settings.parallelism {
            Parallelism::Tree => &mut parts[owner..=owner],
            Parallelism::Root | Parallelism::Merged => &mut parts[..],
        };
        let rollouts: u64 = roots.iter().map(|it| it.counted).sum();
        let simulations = rollouts.saturating_mul(u64::from(self.settings.simulations));
        let mut visits = roots.iter().flat_map(|it| &it.root).map(|root| root.visits);
        let visits = match self.settings.parallelism {
            // All have counted what all have.
            Parallelism::Merged => visits.next().unwrap_or(0),
            Parallelism::Tree | Parallelism::Root => visits.sum(),
        };
        let proven = roots.iter().find_map(|it| it.proven);
        let samples = std::mem::take(&mut roots[0].samples);
        let workers = parts.iter().map(|it| it.stats).collect();
        let found = parts.into_iter().filter_map(|it| it.root).collect();
        let candidates = self.candidates(found).unwrap_or_default();
        Analysis {
            best: best_of(&candidates, turn).map(|it| it.mv),
            proof: self.root.position.outcome().or(proven),
            visits,
            candidates,
            last: Progress { elapsed, rollouts, simulations },
            samples: samples.iter().map(|it| it.times(trees)).collect(),
            workers,
        }
    }
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

fn bounds(least: usize, most: usize) -> String {
    if most == usize::MAX { format!("{least} or more") } else { format!("from {least} to {most}") }
}

fn milliseconds(time: Duration) -> usize {
    usize::try_from(time.as_millis()).unwrap_or(usize::MAX)
}

/// Of a search by so many workers, of all processes.
pub(crate) fn check<G>(settings: &Settings, all: u16) -> Result<(), SettingsError> {
    let workers = usize::from(settings.workers);
    let memory = match settings.parallelism {
        Parallelism::Merged => MEMORY_MIN + Share::new::<G>(all.saturating_sub(1)).least(),
        Parallelism::Tree | Parallelism::Root => MEMORY_MIN,
    };
    let bounds = [
        ("workers", workers, 1, usize::from(u16::MAX)),
        ("simulations", settings.simulations as usize, 1, SIMULATIONS_A_LEAF_MAX as usize),
        ("window", settings.window as usize, 1, WINDOW_MAX as usize),
        ("memory", settings.memory, memory.saturating_mul(workers), usize::MAX),
        ("patience in milliseconds", milliseconds(settings.patience), 100, usize::MAX),
    ];
    for (name, value, least, most) in bounds {
        if value < least || value > most {
            return Err(SettingsError::OutOfBounds { name, value, least, most });
        }
    }
    if !settings.exploration.is_finite() || settings.exploration < 0.0 {
        return Err(SettingsError::Exploration(settings.exploration));
    }
    if !settings.instructions.are_here() {
        return Err(SettingsError::NoInstructions(settings.instructions));
    }
    Ok(())
}
