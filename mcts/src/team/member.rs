//! One thread of a team: what it does when the leader says so, and its messages of a phase.

use std::{
    cell::Cell,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use super::post::{Answer, Begin, Inbox, LEADER, Order, Post, Word};
use crate::{
    Gone, Parallelism, Portable, Settings,
    crew::Tell,
    message::Message,
    phase::{self, Control},
    search::check,
    stats::{Part, Progress},
    transport::Transport,
    wire,
    worker::{Root, Worker},
};

/// One thread of the job, and its workers of all searches.
#[derive(Debug)]
pub(super) struct Member<G> {
    pub(super) post: Post,
    workers: HashMap<u32, Worker<G>>,
}

impl<G> Member<G> {
    pub(super) fn new(post: Post) -> Self {
        Self { post, workers: HashMap::new() }
    }
}

impl<G: Portable> Member<G> {
    /// Does what the leader says, to the end.
    pub(super) fn serve(mut self) -> Result<(), Gone> {
        let served = catch_unwind(AssertUnwindSafe(|| self.obey_all()));
        match &served {
            Ok(Ok(())) => self.post.finish(),
            Ok(Err(gone)) => self.post.break_off(gone),
            Err(_) => {
                let gone = self.post.own(PANICKED);
                self.post.break_off(&gone);
            }
        }
        served.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn obey_all(&mut self) -> Result<(), Gone> {
        self.post.say(LEADER, Word::Hello)?;
        loop {
            let (closed, order) = self.post.wait(|inbox| {
                let (closed, order) = (std::mem::take(&mut inbox.closed), inbox.orders.pop_front());
                (order.is_some() || !closed.is_empty()).then_some((closed, order))
            })?;
            closed.iter().for_each(|search| drop(self.workers.remove(search)));
            let Some(order) = order else { continue };
            let is_end = matches!(order, Order::End);
            if let Some(answer) = self.obey(&order, None)? {
                self.post.say(LEADER, Word::Answer(answer))?;
            }
            if is_end {
                // Who leaves before is no loss any more.
                let _ = self.post.wait(|inbox| inbox.orders.pop_front());
                return Ok(());
            }
        }
    }

    fn obey(&mut self, order: &Order, tell: Tell<'_>) -> Result<Option<Answer>, Gone> {
        let worker = |search: &u32| self.workers.get(search);
        Ok(match order {
            Order::Begin(begin) => Some(Answer::Part(self.run(begin, tell)?)),
            Order::Look { search, key } => {
                Some(Answer::Look(worker(search).and_then(|it| it.look(*key))))
            }
            Order::Audit { search } => {
                let mut audit = worker(search).map(Worker::audit).unwrap_or_default();
                audit.waiting += self.post.inbox.messages.len() as u64;
                Some(Answer::Audit(audit))
            }
            Order::End => Some(Answer::Ended),
            Order::Leave => None,
        })
    }

    /// This thread's part of a phase.
    fn run(&mut self, begin: &Begin, tell: Tell<'_>) -> Result<Part, Gone> {
        let settings = self.settings(&begin.settings)?;
        self.post.patience = settings.patience;
        let Some(position) = G::from_bytes(&begin.position) else {
            return Err(self.post.accuse(LEADER, "has sent a position that there is not"));
        };
        let root = Root { position, key: begin.key, owner: begin.owner };
        let (me, all) = (self.post.me(), self.post.all());
        if root.owner >= all {
            return Err(self.post.accuse(LEADER, "has named an owner that there is not"));
        }
        let known = self.workers.remove(&begin.search);
        let mut worker =
            known.unwrap_or_else(|| Worker::one_of(me, all, &settings, &root).among_strangers());
        worker.begin_phase(begin.phase, &root);
        self.post.inbox.loads.fill(0);
        let mut part = if settings.parallelism == Parallelism::Root || all == 1 {
            let budget = begin.budget.share(me, all);
            let mut control = Control::new(budget, 1, &settings, tell);
            phase::run_alone(&mut worker, &mut control, || self.post.progress())?;
            worker.part(control.samples)
        } else if settings.parallelism == Parallelism::Merged {
            self.run_merged(&mut worker, begin, &settings, tell)?
        } else {
            self.run_tree(&mut worker, begin, &settings, tell)?
        };
        part.samples = few(part.samples);
        self.workers.insert(begin.search, worker);
        Ok(part)
    }

    /// Its part of a phase on one tree.
    fn run_tree(
        &mut self,
        worker: &mut Worker<G>,
        begin: &Begin,
        settings: &Settings,
        tell: Tell<'_>,
    ) -> Result<Part, Gone> {
        let (me, latest) = (self.post.me(), Cell::new(None));
        let mut far = Far::new(&mut self.post, begin, &latest);
        if begin.owner != me {
            far.tell = tell.map(|tell| tell as _);
            phase::run_together(worker, &mut far, None)?;
            return Ok(worker.part(Vec::new()));
        }
        let mut told = |progress: &Progress| latest.set(Some(*progress));
        let far_tell: Tell<'_> = begin.tells.then_some(&mut told);
        let tell = if me == LEADER { tell.map(|tell| tell as _) } else { far_tell };
        let mut control = Control::new(begin.budget, settings.window, settings, tell);
        phase::run_together(worker, &mut far, Some(&mut control))?;
        Ok(worker.part(control.samples))
    }

    /// Its part of a phase on trees that are merged.
    fn run_merged(
        &mut self,
        worker: &mut Worker<G>,
        begin: &Begin,
        settings: &Settings,
        tell: Tell<'_>,
    ) -> Result<Part, Gone> {
        let (me, all) = (self.post.me(), self.post.all());
        let latest = Cell::new(None);
        let mut far = Far::new(&mut self.post, begin, &latest);
        let mut control = Control::new(begin.budget.share(me, all), 1, settings, tell);
        phase::run_merged(worker, (me, all), &mut far, &mut control)?;
        Ok(worker.part(control.samples))
    }

    /// The leader's settings, as far as they can be had here.
    fn settings(&self, told: &Settings) -> Result<Settings, Gone> {
        let mut settings = told.clone();
        if !settings.instructions.are_here() {
            settings.instructions = crate::Instructions::best();
        }
        match check::<G>(&settings, self.post.all()) {
            Ok(()) => Ok(settings),
            Err(error) => Err(self.post.accuse(LEADER, &format!("has sent settings: {error}"))),
        }
    }
}

/// What the leader's own does beside.
impl<G> Member<G> {
    /// Lets the others go.
    pub(super) fn end(&mut self) -> Result<(), Gone> {
        self.tell_all(&Order::End)?;
        self.answers(Answer::Ended)?;
        self.tell_all(&Order::Leave)
    }

    /// A search is over: nobody answers that. Who is gone is found out by the next order.
    pub(super) fn close(&mut self, search: u32) {
        self.workers.remove(&search);
        let others = 1..self.post.all();
        let _ = others.into_iter().try_for_each(|to| self.post.say(to, Word::Close { search }));
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), Gone> {
        (1..self.post.all()).try_for_each(|to| self.post.say(to, Word::Order(order.clone())))
    }

    /// What all have answered; this one's own is given.
    fn answers(&mut self, own: Answer) -> Result<Vec<Answer>, Gone> {
        self.post.inbox.answers[usize::from(LEADER)] = Some(own);
        let all = |inbox: &mut Inbox| inbox.answers.iter().all(Option::is_some).then_some(());
        self.post.wait_for_others(all)?;
        let answers = self.post.inbox.answers.iter_mut();
        Ok(answers.map(|it| it.take().expect("all have answered")).collect())
    }
}

impl<G: Portable> Member<G> {
    /// Gives an order, does what it says, and waits until all others have. Their answers, in the order of their numbers.
    pub(super) fn lead(&mut self, order: &Order, tell: Tell<'_>) -> Result<Vec<Answer>, Gone> {
        self.tell_all(order)?;
        let own = self.obey(order, tell)?.expect("an order that is answered");
        self.answers(own)
    }
}

/// Few enough of them to fit in a message of any transport; the last one among them.
pub(super) fn few(samples: Vec<Progress>) -> Vec<Progress> {
    let every = samples.len().div_ceil(SAMPLES_MAX).max(1);
    let mut few: Vec<_> = samples.into_iter().rev().step_by(every).collect();
    few.reverse();
    few
}

/// Samples of a phase that are sent to the leader.
const SAMPLES_MAX: usize = 100;

/// The messages of a phase between threads of the job.
struct Far<'a> {
    post: &'a mut Post,
    phase: u32,
    load: u32,
    buffer: Vec<u8>,
    /// How far the phase has come, which the leader wants to know.
    latest: &'a Cell<Option<Progress>>,
    /// At the leader: to be told what it is told.
    tell: Tell<'a>,
}

impl<'a> Far<'a> {
    fn new(post: &'a mut Post, begin: &Begin, latest: &'a Cell<Option<Progress>>) -> Self {
        Self { post, phase: begin.phase, load: 0, buffer: Vec::new(), latest, tell: None }
    }
}

/// Bytes of messages that are sent in one piece: somewhat less than a block of a channel.
const BATCH_BYTES: usize = 3800;

impl Transport for Far<'_> {
    fn send(&mut self, to: u16, batch: &mut Vec<Message>) -> Result<u64, Gone> {
        if to == self.post.me() {
            // The end of the phase, which its leader tells itself, too.
            self.post.inbox.messages.append(batch);
            return Ok(0);
        }
        let head = wire::Head { phase: self.phase, load: self.load };
        let (mut bytes, mut messages) = (0, batch.iter().peekable());
        while messages.peek().is_some() {
            self.buffer.clear();
            head.write(&mut self.buffer);
            while self.buffer.len() < BATCH_BYTES
                && let Some(message) = messages.next()
            {
                wire::write(&message.body, &mut self.buffer);
            }
            bytes += self.buffer.len() as u64;
            self.post.deliver(to, &self.buffer)?;
        }
        self.post.flush();
        Ok(bytes)
    }

    fn receive(&mut self, into: &mut Vec<Message>, wait: bool) -> Result<(), Gone> {
        if let Some(progress) = self.latest.take() {
            self.post.say(LEADER, Word::Progress(progress))?;
        }
        if wait && self.post.inbox.messages.is_empty() {
            self.post.wait_for_others(|inbox| {
                (!inbox.messages.is_empty() || inbox.progress.is_some()).then_some(())
            })?;
        } else {
            self.post.progress()?;
        }
        if let Some(progress) = self.post.inbox.progress.take()
            && let Some(tell) = &mut self.tell
        {
            tell(&progress);
        }
        into.append(&mut self.post.inbox.messages);
        Ok(())
    }

    fn exchange_loads(&mut self, own: u32, all: &mut [u32]) {
        self.load = own;
        all.copy_from_slice(&self.post.inbox.loads);
        all[usize::from(self.post.me())] = own;
    }

    fn accuse(&self, worker: u16, why: &'static str) -> Gone {
        self.post.accuse(worker, why)
    }
}

/// What a thread says whose game has.
pub(super) const PANICKED: &str = "has panicked";
