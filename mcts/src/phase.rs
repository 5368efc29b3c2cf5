//! A phase: rollouts are begun until the budget is spent, and it ends when as many have come back.
//!
//! That is by counting alone: the owner of the root counts what it begins and what comes back to it. When the counts are
//! equal nothing is under way anywhere, since every message belongs to a rollout that has not come back. Then it tells
//! the others. Where trees are merged each counts its own rollouts, and ends when all have told all ([`run_merged`]).

use std::time::{Duration, Instant};

use crate::{
    Budget, Game, SIMULATIONS_MAX, Settings,
    message::{Body, Message},
    stats::Progress,
    transport::{Gone, Transport},
    worker::Worker,
};

/// Decides when rollouts are begun: the part of the root's owner.
pub(crate) struct Control<'a> {
    budget: Budget,
    window: u64,
    simulations: u32,
    began: Instant,
    ticks: u32,
    is_over: bool,
    on_progress: Option<&'a mut dyn FnMut(&Progress)>,
    next_sample: Duration,
    every: Duration,
    pub(crate) samples: Vec<Progress>,
}

/// A window begins with so many rollouts, and grows with those that have come back.
const WINDOW_MIN: u64 = 64;
const KNOWN_PER_WINDOW: u64 = 16;
/// A clock is asked once in so many turns.
const TURNS_PER_LOOK: u32 = 8;
/// The first distance of samples; it doubles whenever there are [`SAMPLES_MAX`].
const SAMPLE_EVERY: Duration = Duration::from_millis(5);
const SAMPLES_MAX: usize = 400;

impl<'a> Control<'a> {
    pub(crate) fn new(
        budget: Budget,
        window: u32,
        settings: &Settings,
        on_progress: Option<&'a mut dyn FnMut(&Progress)>,
    ) -> Self {
        Self {
            budget,
            window: window.into(),
            simulations: settings.simulations,
            began: Instant::now(),
            ticks: 0,
            is_over: false,
            on_progress,
            next_sample: Duration::ZERO,
            every: SAMPLE_EVERY,
            samples: Vec::new(),
        }
    }

    /// The phase began then: a thread that starts late has less time, not the same time later.
    pub(crate) fn since(self, began: Instant) -> Self {
        Self { began, ..self }
    }

    /// Begins rollouts as far as window and budget go. Whether the phase goes on.
    fn turn<G: Game>(&mut self, worker: &mut Worker<G>) -> bool {
        if self.ticks == 0 {
            self.ticks = TURNS_PER_LOOK;
            self.look(worker);
        }
        self.ticks -= 1;
        let most = self.budget.rollouts.unwrap_or(u64::MAX);
        let window = self.window(worker);
        if !self.is_over && worker.proven.is_none() {
            let under_way = worker.begun - worker.counted;
            // Not more than the window, even where all of them end at once, since their results are known.
            let may = (most - worker.begun).min(window.saturating_sub(under_way));
            worker.begin_rollouts(u32::try_from(may).unwrap_or(0));
        }
        let is_over = self.is_over || worker.proven.is_some() || worker.begun >= most;
        !(is_over && worker.begun == worker.counted)
    }

    /// Rollouts that may be under way: a part of those whose results are known, so that few selections know little.
    fn window<G: Game>(&self, worker: &Worker<G>) -> u64 {
        let known = worker.root_visits() / u64::from(self.simulations);
        self.window.min(WINDOW_MIN.max(known / KNOWN_PER_WINDOW))
    }

    /// Looks at the clock, and tells about the progress.
    fn look<G: Game>(&mut self, worker: &Worker<G>) {
        let elapsed = self.began.elapsed();
        self.is_over = self.budget.time.is_some_and(|most| elapsed >= most)
            || worker.root_visits() >= SIMULATIONS_MAX;
        if elapsed >= self.next_sample {
            self.sample(worker, elapsed);
        }
    }

    fn sample<G: Game>(&mut self, worker: &Worker<G>, elapsed: Duration) {
        let rollouts = worker.counted;
        let simulations = rollouts * u64::from(self.simulations);
        let sample = Progress { elapsed, rollouts, simulations };
        self.samples.push(sample);
        if self.samples.len() == SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| (at % 2 == 0, at += 1).0);
            self.every *= 2;
        }
        self.next_sample = elapsed + self.every;
        if let Some(tell) = &mut self.on_progress {
            tell(&sample);
        }
    }

    /// The last sample.
    pub(crate) fn finish<G: Game>(&mut self, worker: &Worker<G>) {
        self.sample(worker, self.began.elapsed());
    }
}

/// Turns of a worker alone after which it does something else: some tenths of a millisecond.
const TURNS_ALONE: u32 = 256;

/// A phase of one worker alone, which does something else now and then.
pub(crate) fn run_alone<G: Game, E>(
    worker: &mut Worker<G>,
    control: &mut Control<'_>,
    mut meanwhile: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut turns = 0;
    while control.turn(worker) {
        while worker.simulate() {}
        turns += 1;
        if turns == TURNS_ALONE {
            turns = 0;
            meanwhile()?;
        }
    }
    control.finish(worker);
    Ok(())
}

/// Leaves that are simulated between two looks at the messages. What waits meanwhile at others are messages that
/// were sent before, since these go first.
const LEAVES_PER_TURN: usize = 16;

/// A phase of one worker among several. `control`: of the root's owner.
pub(crate) fn run_together<G: Game>(
    worker: &mut Worker<G>,
    transport: &mut impl Transport,
    mut control: Option<&mut Control<'_>>,
) -> Result<(), Gone> {
    let mut inbox: Vec<Message> = Vec::new();
    let mut is_idle = false;
    loop {
        transport.receive(&mut inbox, is_idle)?;
        let waits = u32::try_from(worker.jobs()).unwrap_or(u32::MAX);
        let waits = inbox.iter().fold(waits, |sum, it| sum.saturating_add(it.rollouts()));
        transport.exchange_loads(waits, &mut worker.loads);
        let mut goes_on = true;
        for message in inbox.drain(..) {
            let from = message.from;
            goes_on &= worker.handle(message);
            if let Some(why) = worker.fault {
                return Err(transport.accuse(from, why));
            }
        }
        if let Some(begins) = &mut control
            && !begins.turn(worker)
        {
            begins.finish(worker);
            worker.outbox.stop_all();
            control = None;
        }
        flush(worker, transport)?;
        if !goes_on {
            return Ok(());
        }
        let leaves = (0..LEAVES_PER_TURN).take_while(|_| worker.simulate()).count();
        flush(worker, transport)?;
        if let Some(why) = worker.fault {
            return Err(transport.accuse(worker.number(), why));
        }
        // Then only a message can bring work: what is under way is elsewhere.
        is_idle = leaves == 0 && (control.is_none() || worker.begun > worker.counted);
    }
}

/// A worker tells what it has counted when that is one of so many parts of all that it has counted in the phase, within these
/// bounds. A hundredth or two of the time goes into that.
const PARTS_TOLD: u64 = 16;
const ROLLOUTS_TOLD: std::ops::RangeInclusive<u64> = 32..=4096;
/// Its turns between two looks at what others tell.
const TURNS_MERGED: u32 = 32;

/// A phase of one worker among several with a tree each, whose upper nodes are merged.
pub(crate) fn run_merged<G: Game>(
    worker: &mut Worker<G>,
    (me, all): (u16, u16),
    transport: &mut impl Transport,
    control: &mut Control<'_>,
) -> Result<(), Gone> {
    let mut rounds = Rounds::new(me, all);
    let mut inbox: Vec<Message> = Vec::new();
    worker.begin_merging();
    let (mut goes_on, mut tells_at) = (true, *ROLLOUTS_TOLD.start());
    loop {
        for _ in 0..TURNS_MERGED {
            goes_on = goes_on && control.turn(worker);
            if !goes_on {
                break;
            }
            while worker.simulate() {}
        }
        if (worker.counted >= tells_at || !goes_on) && rounds.may_tell() {
            rounds.tell(worker, !goes_on);
            let (least, most) = ROLLOUTS_TOLD.into_inner();
            tells_at = worker.counted + (worker.counted / PARTS_TOLD).clamp(least, most);
        }
        if rounds.may_stop() {
            worker.outbox.tell_all(&Body::Stop);
            rounds.is_stopped = true;
        }
        flush(worker, transport)?;
        if rounds.is_over() {
            control.finish(worker);
            return Ok(());
        }
        // Who has finished has nothing else to do.
        transport.receive(&mut inbox, !goes_on)?;
        for Message { phase, from, body } in inbox.drain(..) {
            if phase == worker.phase() {
                rounds.hear(worker, from, body);
            }
            if let Some(why) = worker.fault {
                return Err(transport.accuse(from, why));
            }
        }
    }
}

/// How far all workers have come with telling what they have counted.
pub(crate) struct Rounds {
    /// How often this one has.
    told: u64,
    /// It has told all that it will count, and said so.
    is_last: bool,
    /// It says nothing more.
    is_stopped: bool,
    /// The same of the others.
    others: Vec<Heard>,
    me: u16,
}

#[derive(Clone, Copy, Default)]
struct Heard {
    told: u64,
    is_last: bool,
    is_stopped: bool,
}

impl Rounds {
    pub(crate) fn new(me: u16, all: u16) -> Self {
        let others = vec![Heard::default(); all.into()];
        Self { told: 0, is_last: false, is_stopped: false, others, me }
    }

    fn others(&self) -> impl Iterator<Item = &Heard> {
        (0..).zip(&self.others).filter(|(number, _)| *number != self.me).map(|(_, it)| it)
    }

    /// Nobody is told anything before all have answered what was told before the last time. Who has finished answers, too.
    pub(crate) fn may_tell(&self) -> bool {
        !self.may_stop() && !self.is_stopped && self.others().all(|it| it.told + 1 >= self.told)
    }

    /// Tells all others what was counted here, or that this one still listens.
    pub(crate) fn tell<G: Game>(&mut self, worker: &mut Worker<G>, is_last: bool) {
        if self.is_last {
            worker.outbox.tell_all(&Body::Told { is_last: true });
        } else {
            worker.tell(is_last);
        }
        self.told += 1;
        self.is_last |= is_last;
    }

    /// Nobody has news any more.
    fn may_stop(&self) -> bool {
        self.is_last && !self.is_stopped && self.others().all(|it| it.is_last)
    }

    /// Nobody says anything any more, so nothing is left behind.
    fn is_over(&self) -> bool {
        self.is_stopped && self.others().all(|it| it.is_stopped)
    }

    pub(crate) fn hear<G: Game>(&mut self, worker: &mut Worker<G>, from: u16, body: Body) {
        let other = &mut self.others[usize::from(from)];
        match body {
            _ if other.is_stopped => worker.fault = Some("has gone on after its end"),
            Body::News { .. } if other.is_last => worker.fault = Some("has told more than all"),
            Body::News { moves, news } => worker.add(&moves, &news),
            Body::Told { is_last } => {
                other.told += 1;
                other.is_last |= is_last;
            }
            Body::Stop if other.is_last => other.is_stopped = true,
            Body::Stop => worker.fault = Some("has ended before it has told all"),
            Body::Select { .. } | Body::Report { .. } => {
                worker.fault = Some("has sent rollouts, though everybody has a tree of its own");
            }
        }
    }
}

fn flush<G: Game>(worker: &mut Worker<G>, transport: &mut impl Transport) -> Result<(), Gone> {
    for (to, batch) in worker.outbox.filled() {
        worker.stats.batches += 1;
        worker.stats.messages += batch.len() as u64;
        worker.stats.bytes += transport.send(to, batch)?;
        batch.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::{hex::Hex, worker::Root};

    #[test]
    fn who_starts_when_the_time_is_over_begins_no_rollout() {
        let (settings, root) = (Settings::default(), Root::of(Hex::new(5).expect("a size")));
        let millisecond = Duration::from_millis(1);
        let began = Instant::now().checked_sub(millisecond).expect("after the start of time");
        let budget = Budget::time(millisecond);
        let mut late = Control::new(budget, 1, &settings, None).since(began);
        let mut worker = Worker::one_of(0, 1, &settings, &root);
        worker.begin_phase(1, &root);
        let Ok(()) = run_alone(&mut worker, &mut late, || Ok::<(), Infallible>(()));
        assert_eq!(worker.counted, 0);
    }
}
