//! What the threads of a job say to one another beside the messages of a search, and where all of it arrives.
//!
//! A function that is called finds the post of its thread in [`HERE`]: it is there while progress is made.

use std::{
    cell::RefCell,
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_invoke::{Error, How, Place, Request, Synchronizer, rpc};
use serde::{Deserialize, Serialize};

use crate::{
    Budget, Gone, Settings, WINDOW_MAX,
    merge::Share,
    message::Message,
    stats::{Audit, Part, Progress, Sums},
    wire,
};

/// Anything that is said beside the messages of a search.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// A thread is there; so that it hears when the leader's process ends, and the leader when its own does. Later: whether the other one runs
    /// what it is sent.
    Hello,
    /// The leader says what is to be done.
    Order(Order),
    /// The leader says that a search is over.
    Close { search: u32 },
    /// The leader is told what came of it.
    Answer(Answer),
    /// The leader is told how far a phase has come.
    Progress(Progress),
    /// A process is gone: who hears it has not, perhaps, seen it.
    Broken { process: u32, why: String },
}

/// What the leader wants of all others, one thing at a time. All but `Leave` are answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Begin(Begin),
    Look {
        search: u32,
        key: u64,
    },
    Audit {
        search: u32,
    },
    /// Nothing more is searched.
    End,
    /// Everybody knows that.
    Leave,
}

/// A phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) search: u32,
    pub(crate) phase: u32,
    pub(crate) settings: Settings,
    pub(crate) position: Vec<u8>,
    pub(crate) key: u64,
    pub(crate) owner: u16,
    pub(crate) budget: Budget,
    /// The leader wants to know how far it comes.
    pub(crate) tells: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Part(Part),
    Look(Option<Sums>),
    Audit(Audit),
    Ended,
}

/// One thread's way to all others.
#[derive(Debug)]
pub(crate) struct Post {
    here: hg_invoke::Worker,
    pub(crate) inbox: Inbox,
    /// As [`Settings::patience`] of the latest phase.
    pub(crate) patience: Duration,
}

/// What has come.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Of each process.
    threads: u32,
    pub(crate) messages: Vec<Message>,
    messages_max: usize,
    /// How much work each thread has said to wait for it.
    pub(crate) loads: Vec<u32>,
    pub(crate) orders: VecDeque<Order>,
    /// Searches that are over. No number is used again, so it does not matter which orders these came between.
    pub(crate) closed: Vec<u32>,
    pub(crate) answers: Vec<Option<Answer>>,
    pub(crate) progress: Option<Progress>,
    /// Who was the first to be gone, or to send what makes no sense.
    broken: Option<Gone>,
}

thread_local! {
    static HERE: RefCell<Inbox> = RefCell::default();
}

/// Orders that may wait: the leader gives the next one when the last one was answered.
const ORDERS_MAX: usize = 2;
/// Searches that may have ended since this thread has last looked: more than any process has memory for.
const CLOSED_MAX: usize = 1 << 20;
/// Messages that may wait at one of so many threads: one for each rollout under way, or two rounds of news of all others; and ends of phases.
fn messages_max(all: u16) -> usize {
    let news = Share::new::<()>(all - 1).messages();
    news.max(WINDOW_MAX as usize) + 1024
}

#[rpc(crate = hg_invoke)]
pub(crate) fn deliver(here: &Request, batch: &[u8]) {
    HERE.with_borrow_mut(|inbox| {
        let from = inbox.number(here.caller());
        match wire::read(batch, from, &mut inbox.messages) {
            Ok(head) => inbox.loads[usize::from(from)] = head.load,
            Err(wire::Malformed) => inbox.accuse(from, "has sent bytes that are no messages"),
        }
        if inbox.messages.len() > inbox.messages_max {
            inbox.accuse(from, "has sent more messages than there may be");
        }
    });
}

#[rpc(crate = hg_invoke)]
pub(crate) fn hear(here: &Request, word: Word) {
    HERE.with_borrow_mut(|inbox| {
        let from = inbox.number(here.caller());
        match word {
            Word::Hello => {}
            Word::Order(order) if from == LEADER && inbox.orders.len() < ORDERS_MAX => {
                inbox.orders.push_back(order);
            }
            Word::Close { search } if from == LEADER && inbox.closed.len() < CLOSED_MAX => {
                inbox.closed.push(search);
            }
            Word::Answer(answer) => inbox.answers[usize::from(from)] = Some(answer),
            Word::Progress(progress) => inbox.progress = Some(progress),
            Word::Broken { process, why } => {
                inbox.broken.get_or_insert(Gone { process, why: why.into() });
            }
            Word::Order(_) | Word::Close { .. } => {
                inbox.accuse(from, "has given orders that are not its to give");
            }
        }
    });
}

/// Bytes of messages that may wait for one thread: a whole window of the longest ones. So nobody waits for room.
pub(crate) const WAITING_MAX: u64 = ((WINDOW_MAX as usize + 1024) * wire::MESSAGE_MAX) as u64;
/// How long what is said of an end may take to leave.
const BREAKING_MAX: Duration = Duration::from_secs(2);

/// Whether others still run what they are sent, while somebody waits for them.
struct Watch {
    others: Range<u16>,
    /// Of each process.
    threads: u32,
    patience: Duration,
    state: RefCell<Watched>,
}

struct Watched {
    since: Instant,
    /// Those that were asked, and whether they have run that.
    asked: Vec<(Place, Synchronizer)>,
}

impl Watch {
    fn of(others: Range<u16>, threads: u32, patience: Duration) -> Self {
        let state = Watched { since: Instant::now(), asked: Vec::new() };
        Self { others, threads, patience, state: RefCell::new(state) }
    }

    /// Asks all others after half of the patience, and names who has not run that after the other half. Then it begins anew.
    fn look(&self, here: &hg_invoke::Worker) -> Result<(), Gone> {
        let mut state = self.state.borrow_mut();
        let waited = state.since.elapsed();
        if waited < self.patience / 2 {
            return Ok(());
        }
        state.since = Instant::now();
        let asked = std::mem::take(&mut state.asked);
        if let Some((silent, _)) = asked.iter().find(|(_, ran)| ran.left() > 0) {
            let why = format!("has not answered for {waited:.1?}, and is taken for gone");
            return Err(Gone { process: silent.process, why: why.into() });
        }
        if asked.is_empty() {
            for to in self.others.clone().map(|number| place_of(number, self.threads)) {
                let (ran, word) = (Synchronizer::new(), Word::Hello);
                match here.call_with(to, hear, (word,), How::default().when_run(&ran)) {
                    Ok(()) => state.asked.push((to, ran)),
                    // The worker tells of it.
                    Err(refused) if matches!(refused.error, Error::Gone { .. }) => {}
                    Err(refused) => {
                        let why = format!("cannot be asked whether it is there: {}", refused.error);
                        return Err(Gone { process: to.process, why: why.into() });
                    }
                }
            }
            here.flush();
        }
        Ok(())
    }
}

/// Where the thread of this number is, with so many threads in each process.
fn place_of(number: u16, threads: u32) -> Place {
    let number = u32::from(number);
    Place { process: number / threads, thread: number % threads }
}

/// The first thread of the first process.
pub(crate) const LEADER: u16 = 0;

impl Inbox {
    /// The number of a thread among all.
    fn number(&self, place: Option<Place>) -> u16 {
        let place = place.expect("a function runs when somebody has called it");
        u16::try_from(place.process * self.threads + place.thread).expect("looked at when opened")
    }

    pub(crate) fn accuse(&mut self, from: u16, why: &str) {
        let process = u32::from(from) / self.threads;
        self.broken.get_or_insert(Gone { process, why: why.into() });
    }
}

impl Post {
    pub(crate) fn new(here: hg_invoke::Worker, threads: u32) -> Self {
        let all = here.everybody().count();
        let inbox =
            Inbox { threads, loads: vec![0; all], answers: vec![None; all], ..Inbox::default() };
        let messages_max = messages_max(u16::try_from(all).expect("looked at when opened"));
        let inbox = Inbox { messages_max, ..inbox };
        Self { here, inbox, patience: Settings::default().patience }
    }

    /// The number of this thread among all.
    pub(crate) fn me(&self) -> u16 {
        self.inbox.number(Some(self.here.place()))
    }

    /// How many threads all processes have.
    pub(crate) fn all(&self) -> u16 {
        u16::try_from(self.inbox.answers.len()).expect("looked at when opened")
    }

    /// An error of this process's own.
    pub(crate) fn own(&self, why: impl Into<Arc<str>>) -> Gone {
        Gone { process: self.here.place().process, why: why.into() }
    }

    /// The process of a thread has sent what makes no sense.
    pub(crate) fn accuse(&self, from: u16, why: &str) -> Gone {
        Gone { process: u32::from(from) / self.inbox.threads, why: why.into() }
    }

    /// Whether everybody is there.
    pub(crate) fn check(&self) -> Result<(), Gone> {
        match (&self.inbox.broken, self.here.gone()) {
            (Some(broken), _) => Err(broken.clone()),
            (None, Some(gone)) => Err(self.gone(gone)),
            (None, None) => Ok(()),
        }
    }

    /// Sends messages of a search.
    pub(crate) fn deliver(&mut self, to: u16, batch: &[u8]) -> Result<(), Gone> {
        let to = self.place(to);
        self.with(|here| here.call(to, deliver, (batch,))).map_err(|error| self.why(error))
    }

    /// What was sent leaves.
    pub(crate) fn flush(&self) {
        self.here.flush();
    }

    pub(crate) fn say(&mut self, to: u16, word: Word) -> Result<(), Gone> {
        let to = self.place(to);
        let called = self.with(|here| {
            let called = here.call(to, hear, (word,));
            here.flush();
            called
        });
        called.map_err(|error| self.why(error))
    }

    /// Takes in what has come.
    pub(crate) fn progress(&mut self) -> Result<(), Gone> {
        let made = self.with(hg_invoke::Worker::progress);
        made.map_err(|error| self.why(error))?;
        self.check()
    }

    /// Waits until something that has come is `found`, or somebody is gone.
    pub(crate) fn wait<T>(&mut self, found: impl Fn(&mut Inbox) -> Option<T>) -> Result<T, Gone> {
        self.wait_or(found, |_| Ok(()))
    }

    /// The same where others have to do something first; somebody who stands still counts as gone.
    pub(crate) fn wait_for_others<T>(
        &mut self,
        found: impl Fn(&mut Inbox) -> Option<T>,
    ) -> Result<T, Gone> {
        let all = if self.me() == LEADER { LEADER + 1..self.all() } else { LEADER..LEADER + 1 };
        let watch = Watch::of(all, self.inbox.threads, self.patience);
        self.wait_or(found, |here| watch.look(here))
    }

    /// Waits until something that has come is `found`, somebody is gone, or it may not be `endured` any longer.
    fn wait_or<T>(
        &mut self,
        found: impl Fn(&mut Inbox) -> Option<T>,
        endured: impl Fn(&hg_invoke::Worker) -> Result<(), Gone>,
    ) -> Result<T, Gone> {
        let waited = self.with(|here| {
            here.wait_until(|| {
                let come = HERE.with_borrow_mut(|inbox| {
                    let found = found(inbox).map(Ok);
                    found.or_else(|| inbox.broken.clone().map(Err))
                });
                match come {
                    Some(come) => Some(Ok(come)),
                    None => match here.gone() {
                        Some(gone) => Some(Err(gone)),
                        None => endured(here).err().map(|gone| Ok(Err(gone))),
                    },
                }
            })
        });
        waited.unwrap_or_else(|error| Err(self.why(error)))
    }

    /// Tells everybody who is gone, and ends once that has left, or cannot leave: to somebody who stands still.
    pub(crate) fn break_off(mut self, gone: &Gone) {
        let me = self.me();
        for to in (0..self.all()).filter(|to| *to != me) {
            let (process, why) = (gone.process, gone.why.as_ref().into());
            // Who is gone need not be told.
            let _ = self.say(to, Word::Broken { process, why });
        }
        self.end(|here| {
            let _ = here.finish_within(BREAKING_MAX);
        });
    }

    pub(crate) fn finish(self) {
        self.end(|here| {
            let _ = here.finish();
        });
    }

    /// Whoever is gone by now was told, or need not be.
    fn end(self, finish: impl FnOnce(hg_invoke::Worker)) {
        // What comes meanwhile finds the inbox, as ever.
        HERE.set(self.inbox);
        finish(self.here);
        HERE.take();
    }

    fn place(&self, number: u16) -> Place {
        place_of(number, self.inbox.threads)
    }

    /// What lies behind an error: who ends because of another one has said so before.
    fn why(&mut self, error: Error) -> Gone {
        // It may have come, and not be looked at yet.
        let _ = self.with(hg_invoke::Worker::progress);
        self.check().err().unwrap_or_else(|| self.gone(error))
    }

    fn gone(&self, error: Error) -> Gone {
        match error {
            Error::Gone { process, why } => Gone { process, why: format!("is gone: {why}").into() },
            other => self.own(format!("cannot go on: {other}")),
        }
    }

    /// Functions that are called meanwhile find the inbox.
    fn with<R>(&mut self, act: impl FnOnce(&hg_invoke::Worker) -> R) -> R {
        HERE.with_borrow_mut(|there| std::mem::swap(there, &mut self.inbox));
        let result = act(&self.here);
        HERE.with_borrow_mut(|there| std::mem::swap(there, &mut self.inbox));
        result
    }
}
