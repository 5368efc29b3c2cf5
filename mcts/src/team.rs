//! The threads of all processes of a job, which search together.
//!
//! The first thread of the first process leads: it has the [`Search`](crate::Search), and gives orders. All others serve: they wait for an
//! order, do what it says, and answer. A phase is an order like others; in it workers send one another messages, as threads
//! of one process do, and it ends by the same count.
//!
//! ```text
//! leader        Begin to all -> its own part of the phase -> all Parts have come -> Look, Audit, ... -> End, Leave
//! who serves    wait for an order -> its part of the phase, until Stop -> Part to the leader -> wait -> ...
//! ```
//! A message of a phase may come before the order that begins it, which another thread has heard first: it waits in the inbox.
//!
//! # When a process ends
//! Whoever notices tells all others, and ends; so does each that hears it. Every thread is connected with the leader from the start, and with
//! each to which it has sent a rollout: so somebody notices, and nobody waits for ever. All say the name of the process that was the first.
//!
//! One that stands still has no end that could be noticed. So whoever has waited for long in a phase calls what costs nothing: the leader calls
//! all others, and they the leader. Who does not run that call in time counts as gone ([`Settings::patience`]). Between phases only
//! the leader's orders are waited for, and a leader may think as long as it likes.

mod post;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    collections::HashMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use hg_invoke::{Fabric, Group, Limits};

use self::post::{Answer, Begin, Inbox, LEADER, Order, Post, Word};
use crate::{
    Budget, Gone, Parallelism, Portable, Settings,
    crew::{self, Crew, Tell},
    message::Message,
    phase::{self, Control},
    search::check,
    stats::{Audit, Part, Progress, Sum, Sums},
    transport::Transport,
    wire,
    worker::{Root, Worker},
};

/// Why a team was not opened, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// The transport's reasons, or the job's.
    #[error("{0}")]
    Setup(#[from] hg_invoke::Error),
    /// A process has ended, or has sent what makes no sense.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// More threads than can be numbered.
    #[error("{0} threads in all processes, and there may be 65535")]
    TooMany(u64),
    /// The system has none.
    #[error("cannot start a thread ({0}): search with fewer, or raise the limit")]
    Thread(io::Error),
}

/// The threads of all processes of a job: [`Search::by`](crate::Search::by) searches with them.
///
/// Dropping it lets the other processes go.
#[derive(Debug)]
pub struct Team<G> {
    leader: Arc<Mutex<Leader<G>>>,
    /// The other threads of this process.
    serving: Vec<JoinHandle<Result<(), Gone>>>,
    threads: u16,
}

impl<G: Portable> Team<G> {
    /// Collective: each process of the job calls it with the same number of threads. The first one gets the team. In all others it returns
    /// when that one has dropped the team, with nothing.
    ///
    /// `url` is the transport: `sm://` between processes of one node, `tcp://host` between nodes, or libfabric's `ofi+...`.
    ///
    /// # Errors
    /// The transport's reasons; or a process has ended.
    ///
    /// # Panics
    /// A game does, on a thread of this process.
    pub fn open(group: &impl Group, threads: u8, url: &str) -> Result<Option<Self>, TeamError> {
        let threads = threads.max(1);
        let all = u64::from(group.size()) * u64::from(threads);
        if all > u64::from(u16::MAX) {
            return Err(TeamError::TooMany(all));
        }
        let leads = group.rank() == 0;
        // Before anybody waits for this process.
        let started = (u8::from(leads)..threads).map(|_| Serving::start());
        let serving = started.collect::<Result<Vec<_>, _>>().map_err(TeamError::Thread)?;
        // Who is connected hears of the other's end: these connections are kept however long nothing is searched.
        let fabric = Fabric::new().threads(threads).limits(Limits::default().idle(KEPT));
        let fabric = fabric.queue_max(post::WAITING_MAX);
        let here = fabric.register(post::deliver)?.register(post::hear)?.open(group, url)?;
        let mut members: Vec<Member<G>> =
            here.into_iter().map(|it| Member::new(Post::new(it, threads.into()))).collect();
        let leader = leads.then(|| members.remove(0));
        let serving: Vec<_> =
            serving.into_iter().zip(members).map(|(thread, it)| thread.serve(it)).collect();
        if let Some(member) = leader {
            let leader = Leader { member: Ok(member), searches: 0, phase: 0 };
            let leader = Arc::new(Mutex::new(leader));
            return Ok(Some(Self { leader, serving, threads: threads.into() }));
        }
        let ended: Vec<_> = serving.into_iter().map(joined).collect();
        ended.into_iter().collect::<Result<(), Gone>>()?;
        Ok(None)
    }

    /// Of each process.
    #[must_use]
    pub fn threads(&self) -> u16 {
        self.threads
    }

    /// Of all processes together.
    pub(crate) fn workers(&self) -> u16 {
        lock(&self.leader).member.as_ref().map_or(1, |member| member.post.all())
    }

    /// The workers of another search.
    pub(crate) fn crew(&self, settings: &Settings) -> Box<dyn Crew<G>> {
        let size = self.workers();
        let mut leader = lock(&self.leader);
        leader.searches += 1;
        let search = leader.searches;
        let settings = settings.clone();
        Box::new(Away { leader: Arc::clone(&self.leader), search, size, settings })
    }
}

impl<G> Drop for Team<G> {
    fn drop(&mut self) {
        lock(&self.leader).end();
        for thread in self.serving.drain(..) {
            // Its panic was told to all; its error is the leader's, too.
            let _ = thread.join();
        }
    }
}

/// A thread that waits for its part in a team, or for the end of whoever started it.
struct Serving<G> {
    thread: JoinHandle<Result<(), Gone>>,
    member: mpsc::Sender<Member<G>>,
}

impl<G: Portable> Serving<G> {
    fn start() -> io::Result<Self> {
        let (member, given) = mpsc::channel();
        let run = move || given.recv().map_or(Ok(()), Member::serve);
        let thread = crew::may_start().and_then(|()| thread::Builder::new().spawn(run))?;
        Ok(Self { thread, member })
    }

    fn serve(self, member: Member<G>) -> JoinHandle<Result<(), Gone>> {
        self.member.send(member).expect("it waits for it");
        self.thread
    }
}

/// For as good as ever.
const KEPT: Duration = Duration::from_secs(365 * 24 * 3600);

fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// A panic of a game has broken the team before it poisons this.
fn lock<G>(leader: &Mutex<Leader<G>>) -> MutexGuard<'_, Leader<G>> {
    leader.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread of the job, and its workers of all searches.
#[derive(Debug)]
struct Member<G> {
    post: Post,
    workers: HashMap<u32, Worker<G>>,
}

impl<G> Member<G> {
    fn new(post: Post) -> Self {
        Self { post, workers: HashMap::new() }
    }
}

impl<G: Portable> Member<G> {
    /// Does what the leader says, to the end.
    fn serve(mut self) -> Result<(), Gone> {
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
            let order = self.post.wait(|inbox| inbox.orders.pop_front())?;
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
            Order::Close { search } => {
                self.workers.remove(search);
                None
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
        let part = if settings.parallelism == Parallelism::Root || all == 1 {
            let budget = begin.budget.share(me, all);
            let mut control = Control::new(budget, 1, &settings, tell);
            phase::run_alone(&mut worker, &mut control, || self.post.progress())?;
            worker.part(control.samples)
        } else if settings.parallelism == Parallelism::Merged {
            self.run_merged(&mut worker, begin, &settings, tell)?
        } else {
            self.run_tree(&mut worker, begin, &settings, tell)?
        };
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
        // Few enough to fit in a message of any transport; the last one among them.
        let every = control.samples.len().div_ceil(SAMPLES_MAX).max(1);
        let mut samples: Vec<_> = control.samples.into_iter().rev().step_by(every).collect();
        samples.reverse();
        Ok(worker.part(samples))
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

/// The thread that gives orders.
#[derive(Debug)]
struct Leader<G> {
    /// Itself as one that searches; or why the team has ended.
    member: Result<Member<G>, Gone>,
    searches: u32,
    phase: u32,
}

impl<G> Leader<G> {
    /// Lets the others go.
    fn end(&mut self) {
        let ended = Gone { process: 0, why: "has let its team go".into() };
        let Ok(mut member) = std::mem::replace(&mut self.member, Err(ended)) else { return };
        match member.end() {
            Ok(()) => member.post.finish(),
            Err(gone) => member.post.break_off(&gone),
        }
    }

    /// Nothing is searched any more.
    fn fail(&mut self, gone: &Gone) {
        if let Ok(member) = std::mem::replace(&mut self.member, Err(gone.clone())) {
            member.post.break_off(gone);
        }
    }
}

impl<G: Portable> Leader<G> {
    /// Gives an order, does what it says, and waits until all others have. Their answers, in the order of their numbers.
    fn give(&mut self, order: &Order, tell: Tell<'_>) -> Result<Vec<Answer>, Gone> {
        let member = self.member.as_mut().map_err(|gone| gone.clone())?;
        match catch_unwind(AssertUnwindSafe(|| member.lead(order, tell))) {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(gone)) => {
                self.fail(&gone);
                Err(gone)
            }
            Err(panic) => {
                let gone = member.post.own(PANICKED);
                self.fail(&gone);
                resume_unwind(panic)
            }
        }
    }

    /// Somebody has answered what it was not asked.
    fn refuse(&mut self, worker: u16, why: &str) -> Gone {
        let gone = match &self.member {
            Ok(member) => member.post.accuse(worker, why),
            Err(gone) => gone.clone(),
        };
        self.fail(&gone);
        gone
    }
}

const PANICKED: &str = "has panicked";

impl<G> Member<G> {
    fn end(&mut self) -> Result<(), Gone> {
        self.tell_all(&Order::End)?;
        self.answers(Answer::Ended)?;
        self.tell_all(&Order::Leave)
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
    fn lead(&mut self, order: &Order, tell: Tell<'_>) -> Result<Vec<Answer>, Gone> {
        self.tell_all(order)?;
        let own = self.obey(order, tell)?.expect("an order that is answered");
        self.answers(own)
    }
}

/// A search of a team's.
#[derive(Debug)]
struct Away<G> {
    leader: Arc<Mutex<Leader<G>>>,
    search: u32,
    size: u16,
    settings: Settings,
}

impl<G: Portable> Crew<G> for Away<G> {
    fn size(&self) -> u16 {
        self.size
    }

    fn run(&mut self, root: &Root<G>, budget: Budget, tell: Tell<'_>) -> Result<Vec<Part>, Gone> {
        let mut leader = lock(&self.leader);
        leader.phase += 1;
        let begin = Begin {
            search: self.search,
            phase: leader.phase,
            settings: self.settings.clone(),
            position: root.position.to_bytes(),
            key: root.key,
            owner: root.owner,
            budget,
            tells: tell.is_some(),
        };
        let mut parts = Vec::new();
        for (from, answer) in (0..).zip(leader.give(&Order::Begin(begin), tell)?) {
            match answer {
                Answer::Part(part) if is_sane(&part, &root.position) => parts.push(part),
                _ => return Err(leader.refuse(from, "has told what it cannot have found")),
            }
        }
        Ok(parts)
    }

    fn look(&self, key: u64) -> Result<Vec<(u16, Sums)>, Gone> {
        let answers = lock(&self.leader).give(&Order::Look { search: self.search, key }, None)?;
        let found = (0..).zip(answers).filter_map(|(from, answer)| match answer {
            Answer::Look(Some(sums)) if are_sane(&sums) => Some((from, sums)),
            _ => None,
        });
        Ok(found.collect())
    }

    fn audit(&self) -> Result<Audit, Gone> {
        let mut audit = Audit::default();
        for answer in lock(&self.leader).give(&Order::Audit { search: self.search }, None)? {
            if let Answer::Audit(other) = answer {
                audit.add(other);
            }
        }
        Ok(audit)
    }
}

impl<G> Drop for Away<G> {
    fn drop(&mut self) {
        if let Ok(member) = &mut lock(&self.leader).member {
            member.workers.remove(&self.search);
            // Who is gone is found out by the next order that is answered.
            let _ = member.tell_all(&Order::Close { search: self.search });
        }
    }
}

/// Whether numbers of another process can be added up, and its moves made.
fn is_sane(part: &Part, position: &impl Portable) -> bool {
    let root = part.root.as_ref().is_none_or(|root| {
        are_sane(root) && root.children.iter().all(|child| position.is_legal(child.mv))
    });
    root && part.counted <= COUNT_MAX && part.stats.most() <= COUNT_MAX
}

fn are_sane(sums: &Sums) -> bool {
    let is_sane =
        |child: &Sum| child.visits <= COUNT_MAX && child.score.unsigned_abs() <= COUNT_MAX;
    sums.visits <= COUNT_MAX && sums.children.iter().all(is_sane)
}

/// More than any worker counts, and so little that the counts of all of them can be added up.
const COUNT_MAX: u64 = 1 << 47;
