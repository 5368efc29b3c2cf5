//! A context with what it has reported, and a server that sleeps.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Domain, Done, Error, GoneReason, Message, Op, OpId, OpenOptions,
    Peer, Plugin as _, QUIET, Returned, Token, Waiter,
};
use hg_na_tcp::TcpPlugin;
use watchdog::{LIMIT, in_time};

pub(crate) const LOOPBACK: &str = "tcp://127.0.0.1";

pub(crate) fn address(text: &str) -> Address {
    Address::new(text).unwrap()
}

/// Says that a test cannot be made here.
#[expect(clippy::print_stdout, reason = "whoever counts skipped tests reads it")]
pub(crate) fn skipped(name: &str, why: &str) {
    println!("SKIPPED: {name}: {why}");
}

/// A domain and its context 0. Of every peer that is gone it checks that it had hung up once, for the same reason.
pub(crate) struct End {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) context: Box<dyn Context>,
    pub(crate) seen: VecDeque<Completion>,
    hung_up: HashMap<Peer, GoneReason>,
}

impl End {
    pub(crate) fn try_open(url: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let mut options = OpenOptions::listening();
        for (name, value) in settings {
            options = options.with(name, value);
        }
        let domain = TcpPlugin.open(&address(url), &options)?;
        let context = domain.context(0)?;
        Ok(Self { domain, context, seen: VecDeque::new(), hung_up: HashMap::new() })
    }

    /// Another context of the same domain.
    pub(crate) fn beside(&self, id: u8) -> Self {
        let (domain, context) = (Arc::clone(&self.domain), self.domain.context(id).unwrap());
        Self { domain, context, seen: VecDeque::new(), hung_up: HashMap::new() }
    }

    pub(crate) fn open(url: &str, settings: &[(&str, &str)]) -> Self {
        Self::try_open(url, settings).unwrap()
    }

    pub(crate) fn text(&self) -> String {
        self.context.address().to_string()
    }

    pub(crate) fn lookup(&mut self, text: &str) -> Peer {
        self.context.lookup(&address(text)).unwrap()
    }

    pub(crate) fn post(&mut self, token: Token, op: Op) -> OpId {
        self.context.post(token, op).map_err(|rejected| rejected.error).unwrap()
    }

    pub(crate) fn send(&mut self, token: Token, to: Peer, bytes: &[u8]) {
        self.post(token, Op::SendUnexpected { to, message: Message::copied(bytes) });
    }

    pub(crate) fn round(&mut self) {
        self.round_at(Instant::now());
    }

    pub(crate) fn round_at(&mut self, now: Instant) {
        let mut done = Vec::new();
        self.context.progress(now, &mut done).unwrap();
        for completion in done {
            match &completion {
                Completion::HungUp { peer, reason } => {
                    let before = self.hung_up.insert(*peer, reason.clone());
                    assert_eq!(before, None, "told twice");
                }
                Completion::Gone { peer, reason } => {
                    assert_eq!(self.hung_up.remove(peer).as_ref(), Some(reason), "told before");
                }
                Completion::Control { from, .. } => assert!(!self.hung_up.contains_key(from)),
                _ => {}
            }
            self.seen.push_back(completion);
        }
    }

    pub(crate) fn take<T>(&mut self, mut pick: impl FnMut(&Completion) -> Option<T>) -> Option<T> {
        let at = self.seen.iter().position(|completion| pick(completion).is_some())?;
        pick(&self.seen.remove(at)?)
    }

    /// Makes progress, and sleeps whenever it may, until something was reported.
    pub(crate) fn until<T>(&mut self, mut pick: impl FnMut(&Completion) -> Option<T>) -> T {
        let (start, waiter) = (Instant::now(), self.context.waiter());
        loop {
            self.round();
            if let Some(found) = self.take(&mut pick) {
                return found;
            }
            in_time!(start, "it never came; instead: {:?}", self.seen);
            if self.context.may_sleep() {
                let timer = self.context.next_deadline();
                let timer = timer.map(|at| at.saturating_duration_since(Instant::now()));
                waiter.wait(Some(timer.unwrap_or(LIMIT).min(LIMIT))).unwrap();
            }
        }
    }

    /// Asks a [`Server`] for an echo.
    pub(crate) fn call(&mut self, peer: Peer, tag: u64, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        self.post(tag, Op::RecvExpected { from: peer, tag });
        self.send(QUIET, peer, &[&tag.to_le_bytes(), bytes].concat());
        self.until(ended(tag))
    }
}

pub(crate) fn arrived(completion: &Completion) -> Option<(Peer, Vec<u8>)> {
    match completion {
        Completion::Unexpected { from, message } => Some((*from, message.as_slice().to_vec())),
        _ => None,
    }
}

/// The end of an operation: what was received, if it was a receive.
pub(crate) fn ended(token: Token) -> impl FnMut(&Completion) -> Option<Result<Vec<u8>, Error>> {
    move |completion| match completion {
        Completion::Done(Done { token: of, result, returned, .. }) if *of == token => {
            let bytes = match returned {
                Returned::Message(message) => message.as_slice().to_vec(),
                _ => Vec::new(),
            };
            Some(result.as_ref().map(|()| bytes).map_err(|failure| failure.error.clone()))
        }
        _ => None,
    }
}

pub(crate) fn control(completion: &Completion) -> Option<(Peer, Vec<u8>)> {
    match completion {
        Completion::Control { from, message } => Some((*from, message.as_slice().to_vec())),
        _ => None,
    }
}

pub(crate) fn hung_up(completion: &Completion) -> Option<(Peer, GoneReason)> {
    match completion {
        Completion::HungUp { peer, reason } => Some((*peer, reason.clone())),
        _ => None,
    }
}

pub(crate) fn gone(completion: &Completion) -> Option<(Peer, GoneReason)> {
    match completion {
        Completion::Gone { peer, reason } => Some((*peer, reason.clone())),
        _ => None,
    }
}

/// A thread that answers every message: the first eight bytes are the tag of the answer. It sleeps when it may.
pub(crate) struct Server {
    pub(crate) address: String,
    stop: Arc<AtomicBool>,
    waiter: Arc<dyn Waiter>,
    thread: Option<JoinHandle<End>>,
}

impl Server {
    pub(crate) fn start(url: &str, settings: &[(&str, &str)]) -> Self {
        Self::of(End::open(url, settings))
    }

    pub(crate) fn of(mut end: End) -> Self {
        let (stop, waiter) = (Arc::new(AtomicBool::new(false)), end.context.waiter());
        let address = end.text();
        let (stopped, sleeper) = (Arc::clone(&stop), Arc::clone(&waiter));
        let (started, starts) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            started.send(()).unwrap();
            while !stopped.load(Ordering::Acquire) {
                end.round();
                while let Some((from, bytes)) = end.take(arrived) {
                    answer(&mut end, from, &bytes);
                }
                if end.context.may_sleep() {
                    let timer = end.context.next_deadline();
                    let timer = timer.map(|at| at.saturating_duration_since(Instant::now()));
                    sleeper.wait(timer).unwrap();
                }
            }
            end
        });
        starts.recv().unwrap();
        Self { address, stop, waiter, thread: Some(thread) }
    }

    /// Ends the thread; gives its context.
    pub(crate) fn stop(mut self) -> End {
        self.stop.store(true, Ordering::Release);
        self.waiter.wake();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waiter.wake();
    }
}

fn answer(end: &mut End, to: Peer, bytes: &[u8]) {
    let Some((tag, rest)) = bytes.split_first_chunk() else { return };
    let message = Message::copied(rest);
    // The asker may be gone already.
    let _ =
        end.context.post(QUIET, Op::SendExpected { to, tag: u64::from_le_bytes(*tag), message });
}
