//! The measurement of calls: back to back, or several in flight.
//!
//! One repetition is a batch between two readings of the clock. With one call in flight the figure
//! is the time of a call, with more it is calls per second: the oldest is waited for, a new one made.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::target::Target;
use super::{Via, call_once, echo, hold, length, origin};
use crate::error::Error;
use crate::measure::{Measure, Subject, Unit, Wait};

/// What is called and how.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Chooses the transport.
    pub(crate) url: String,
    /// Bytes of the argument; the answer has 8.
    pub(crate) size: usize,
    /// Calls in flight.
    pub(crate) inflight: u32,
    /// How both sides wait.
    pub(crate) wait: Wait,
    /// Peers that the target has, this one included.
    pub(crate) peers: u64,
}

impl Shape {
    /// The keys of a figure of such calls.
    pub(crate) fn subject(&self) -> Subject {
        let unit = if self.inflight == 1 { Unit::Microseconds } else { Unit::PerSecond };
        Subject {
            url: Some(self.url.clone()),
            size: Some(self.size as u64),
            inflight: Some(u64::from(self.inflight)),
            wait: Some(self.wait),
            peers: Some(self.peers),
            ..Subject::new("call", unit)
        }
    }

    /// The figure: with one call in flight its time, with more their rate.
    pub(crate) fn figure(&self, calls: u64, seconds: f64) -> f64 {
        let calls = calls as f64;
        if self.inflight == 1 { seconds * 1e6 / calls } else { calls / seconds }
    }
}

/// An origin with one connection.
#[derive(Debug)]
pub(crate) struct Caller {
    shape: Shape,
    target: Rc<Target>,
    engine: hg::Engine,
    peer: hg::Peer,
    via: Via,
    argument: Vec<u8>,
}

impl Caller {
    /// Connects and makes the first call.
    pub(crate) fn connect(shape: Shape, target: &Rc<Target>) -> Result<Caller, Error> {
        let engine = origin(&shape.url, shape.wait)?;
        Caller::over(engine, shape, target)
    }

    /// The same with an engine that is there.
    pub(crate) fn over(
        engine: hg::Engine,
        shape: Shape,
        target: &Rc<Target>,
    ) -> Result<Caller, Error> {
        let peer = engine.lookup(target.address())?;
        target.running(|| call_once(&engine, &peer, 1))?;
        let via = Via::of(&engine, &peer, &shape.url);
        let argument = vec![FILL; shape.size];
        Ok(Caller { shape, target: Rc::clone(target), engine, peer, via, argument })
    }

    /// `count` calls, checked.
    pub(crate) fn calls(&self, count: u32) -> Result<(), Error> {
        let (engine, peer) = (&self.engine, &self.peer);
        let (count, inflight) = (u64::from(count), self.shape.inflight);
        if self.shape.size == WORD {
            let start = |n| engine.call(echo, peer, (n,));
            return pipelined(count, inflight, start, |n, call| check(n, call.wait()?));
        }
        let (argument, len) = (self.argument.as_slice(), self.argument.len() as u64);
        let start = |_| engine.call(length, peer, (argument,));
        pipelined(count, inflight, start, |_, call| check(len, call.wait()?))
    }

    /// Starts calls that the target never answers, and cancels them.
    pub(crate) fn cancel(&self, count: usize) -> Result<(), Error> {
        self.target.running(|| {
            for _ in 0..count {
                let call = self.engine.call(hold, &self.peer, ());
                call.cancel();
                let _it_is_cancelled = call.wait();
            }
            call_once(&self.engine, &self.peer, 1)
        })
    }

    /// The transport that the calls take.
    pub(crate) fn via(&self) -> &Via {
        &self.via
    }

    /// Makes progress without calls.
    pub(crate) fn idle_for(&self, time: Duration) {
        let limit = Instant::now() + time;
        while let Some(left) = limit.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            self.engine.progress(left);
        }
    }

    /// Calls before the clock starts, and calls of one repetition: about a millisecond, so that many
    /// repetitions see no other process.
    fn batch(&self) -> (u32, u32) {
        match (self.shape.wait, self.shape.inflight, self.shape.size) {
            (Wait::Block, 1, _) => (10, 100),
            (_, _, size) if size > LARGE => (10, 100),
            (_, _, size) if size > SMALL => (50, 400),
            (Wait::Block, _, _) => (100, 1_000),
            (_, 1, _) => (500, 2_000),
            _ => (500, 4_000),
        }
    }
}

impl Measure for Caller {
    fn subject(&self) -> Subject {
        Subject { via: self.via.key(), ..self.shape.subject() }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let (warm_up, batch) = self.batch();
        let seconds = self.target.timed(|| self.calls(warm_up), || self.calls(batch))?;
        Ok(self.shape.figure(u64::from(batch), seconds))
    }
}

/// Starts `count` operations, `inflight` at a time, and finishes them in the same order.
#[inline]
pub(crate) fn pipelined<T>(
    count: u64,
    inflight: u32,
    mut start: impl FnMut(u64) -> T,
    mut finish: impl FnMut(u64, T) -> Result<(), Error>,
) -> Result<(), Error> {
    if inflight == 1 {
        return (0..count).try_for_each(|n| finish(n, start(n)));
    }
    let inflight = u64::from(inflight).min(count);
    let mut open: VecDeque<_> = (0..inflight).map(&mut start).collect();
    let mut next = inflight;
    let mut done = 0;
    while let Some(oldest) = open.pop_front() {
        finish(done, oldest)?;
        done += 1;
        if next < count {
            open.push_back(start(next));
            next += 1;
        }
    }
    Ok(())
}

/// An answer is what was expected.
pub(crate) fn check(sent: u64, got: u64) -> Result<(), Error> {
    if sent == got {
        return Ok(());
    }
    Err(Error::WrongAnswer { figure: "call", sent, got })
}

/// The argument that is a `u64`; every other size is a slice.
pub(crate) const WORD: usize = 8;

/// Above these, a batch has fewer calls.
const SMALL: usize = 1 << 10;
const LARGE: usize = 16 << 10;

const FILL: u8 = 0x5a;
