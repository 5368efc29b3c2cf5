//! A caller: one thread for each call of a story.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hg_core::{error::CallError, rpc::Rpc};
use hg_engine::{Bulk, CallOptions, Engine, OneWay, Peer};
use hg_na::{Frozen, Rights};
use serde_bytes::ByteBuf;

use crate::{
    ended::Ended,
    rpcs::{Answered, Asked, Async, Blocking, Kind, Later, Plain, Refused},
    serve,
    stage::{Stage, block_on, block_until},
    story::{Act, Call, Manner},
};

/// Nanoseconds between two looks at a call at first, and at last.
const LOOK_MIN: u64 = 20_000;
const LOOK_MAX: u64 = 4_000_000;

/// Makes a call, and records what became of it.
pub(crate) fn call(stage: &dyn Stage, number: usize) {
    let Some((call, handle, address)) = stage.opening(number) else { return };
    let ended = match handle.lookup(&address) {
        Ok(peer) => call_peer(stage, number, &call, (&handle, &peer)),
        Err(error) => Ended::Failed("NotMade", error.to_string()),
    };
    stage.ended(number, &call, ended);
}

fn call_peer(stage: &dyn Stage, number: usize, call: &Call, way: (&Engine, &Peer)) -> Ended {
    let made = Made { stage, call, number };
    if call.waits_for_room
        && let Some(ended) = made.wait_for_room(way.0)
    {
        return ended;
    }
    let memory = match expose(number, call.act, way.0) {
        Ok(memory) => memory,
        Err(error) => return Ended::Failed("NotMade", error.to_string()),
    };
    let asked = Asked {
        call: number as u64,
        memory: memory.as_ref().map(Bulk::descriptor),
        frozen: (call.frozen > 0)
            .then(|| Frozen::from(serve::bytes(number as u64, call.frozen).to_vec())),
        bytes: ByteBuf::from(serve::bytes(number as u64, call.len)),
    };
    stage.begun(number);
    let ended = match call.kind {
        Kind::Plain => made.go(Plain, way, asked),
        Kind::Async => made.go(Async, way, asked),
        Kind::Later => made.go(Later, way, asked),
        Kind::Blocking => made.go(Blocking, way, asked),
    };
    made.check_memory(memory.as_ref(), &ended);
    ended
}

/// Memory that the handler pulls from or pushes to.
fn expose(number: usize, act: Act, handle: &Engine) -> Result<Option<Bulk>, hg_na::Error> {
    let (bytes, rights) = match act {
        Act::Pull(len) | Act::Fetch(len) | Act::View(len) => {
            (serve::bytes(number as u64, usize::try_from(len).unwrap_or(0)).to_vec(), Rights::READ)
        }
        Act::Push(len) => (vec![0; usize::try_from(len).unwrap_or(0)], Rights::WRITE),
        _ => return Ok(None),
    };
    handle.expose(bytes, rights).map(Some)
}

/// A call that is made.
struct Made<'a> {
    stage: &'a dyn Stage,
    call: &'a Call,
    number: usize,
}

impl Made<'_> {
    /// Gives how the call has ended, if it comes to none.
    fn wait_for_room(&self, handle: &Engine) -> Option<Ended> {
        let found = match self.call.manner {
            Manner::Wait => Some(handle.ready().wait()),
            _ => self.block_or_over(&mut handle.ready()),
        };
        match found {
            Some(Ok(())) => None,
            Some(Err(failure)) => Some(Ended::Failed(kind_of(&failure), failure.to_string())),
            None => Some(Ended::GivenUp),
        }
    }

    fn go<R>(&self, rpc: R, (handle, peer): (&Engine, &Peer), asked: Asked) -> Ended
    where
        R: Rpc<Output = Answered, Error = Refused>,
        for<'a> R: Rpc<Args<'a> = Asked>,
    {
        let Self { stage, call, .. } = *self;
        let options = match call.deadline {
            Some(nanos) => CallOptions::within(Duration::from_nanos(nanos)),
            None => CallOptions::default(),
        };
        if call.manner.is_one_way() {
            return self.wait_for_one_way(handle.notify_with(rpc, peer, asked, options));
        }
        if call.manner == Manner::AwaitOwned {
            let mut made = handle.call_owned_with(rpc, peer, asked, options);
            let outcome = self.block_or_over(&mut made);
            return outcome.map_or(Ended::GivenUp, |outcome| self.end_of(outcome));
        }
        let begun = stage.now();
        let mut made = handle.call_with(rpc, peer, asked, options);
        let outcome = match call.manner {
            Manner::Wait if call.act != Act::UntilCancelled => Some(made.wait()),
            Manner::Look => self.look_until_over(|| made.try_wait()),
            Manner::Poll => self.block_or_over(&mut poll_fn(|context| made.poll_outcome(context))),
            Manner::Drop(nanos) => block_until(stage, &mut made, begun + nanos),
            Manner::Cancel(nanos) => {
                let outcome = block_until(stage, &mut made, begun + nanos);
                outcome.or_else(|| {
                    made.cancel();
                    Some(block_on(stage, made))
                })
            }
            _ => self.block_or_over(&mut made),
        };
        outcome.map_or(Ended::GivenUp, |outcome| self.end_of(outcome))
    }

    /// Waits for a future, or until the story is over and nobody wants it any more.
    fn block_or_over<F: Future + Unpin>(&self, future: &mut F) -> Option<F::Output> {
        let mut asks = true;
        let poll = |context: &mut Context<'_>| {
            if let Poll::Ready(output) = Pin::new(&mut *future).poll(context) {
                return Poll::Ready(Some(output));
            }
            // Asked for first: it may be over between the two.
            if std::mem::take(&mut asks) {
                self.stage.wake_when_over(context.waker().clone());
            }
            if self.stage.is_given_up(self.call) { Poll::Ready(None) } else { Poll::Pending }
        };
        block_on(self.stage, poll_fn(poll))
    }

    /// Looks seldomer and seldomer whether something is there, unless the story is over and nobody wants it any more.
    fn look_until_over<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut nanos = LOOK_MIN;
        loop {
            let found = look();
            if found.is_some() || self.stage.is_given_up(self.call) {
                return found;
            }
            self.stage.park(Some(self.stage.now() + nanos));
            nanos = (2 * nanos).min(LOOK_MAX);
        }
    }

    fn wait_for_one_way(&self, mut one_way: OneWay<'_>) -> Ended {
        let sent = match self.call.manner {
            Manner::Notify => one_way.accepted(),
            Manner::NotifyAndWait => match self.block_or_over(&mut one_way) {
                Some(sent) => sent,
                None => return Ended::GivenUp,
            },
            _ => {
                drop(one_way);
                Ok(())
            }
        };
        match sent {
            Ok(()) => Ended::Sent,
            Err(failure) => Ended::Failed(kind_of(&failure), failure.to_string()),
        }
    }

    /// Compares the answer with what it is to be.
    fn end_of(&self, outcome: Result<Answered, CallError<Refused>>) -> Ended {
        let Self { stage, call, number } = *self;
        match outcome {
            Ok(Answered { call: of, by, bytes, .. }) => {
                let len = if let Act::Answer(len) = call.act { len } else { 0 };
                let is_right =
                    of == number as u64 && by == call.to as u64 && *bytes == *serve::bytes(of, len);
                if !is_right {
                    stage.fail(format!("value: call {number} got an answer of call {of} by {by}"));
                }
                Ended::Value
            }
            Err(CallError::Handler(Refused(of))) if of != number as u64 => {
                stage.fail(format!("value: call {number} got the error of call {of}"));
                Ended::Value
            }
            Err(error) => Ended::Failed(kind_of(&error), error.to_string()),
        }
    }

    fn check_memory(&self, memory: Option<&Bulk>, ended: &Ended) {
        if let (Act::Push(_), Some(memory), Ended::Value) = (self.call.act, memory, ended) {
            let (number, bytes) = (self.number, memory.to_vec().unwrap_or_default());
            if bytes != serve::bytes(number as u64, bytes.len()) {
                let why = format!("value: what call {number} was pushed is not what was sent");
                self.stage.fail(why);
            }
        }
    }
}

fn kind_of<E>(error: &CallError<E>) -> &'static str {
    match error {
        CallError::Handler(_) => "Handler",
        CallError::DeadlineExceeded(_) => "DeadlineExceeded",
        CallError::Cancelled => "Cancelled",
        CallError::PeerGone { .. } => "PeerGone",
        CallError::NoSuchRpc { .. } => "NoSuchRpc",
        CallError::Rejected(_) => "Rejected",
        CallError::Overloaded(_) => "Overloaded",
        CallError::Decode(_) => "Decode",
        CallError::Panicked(_) => "Panicked",
        CallError::NotMade(hg_na::Error::PeerGone(_)) => "PeerGone",
        CallError::NotMade(_) => "NotMade",
        CallError::WouldDeadlock => "WouldDeadlock",
        CallError::Draining => "Draining",
        CallError::Closed => "Closed",
        _ => "unknown",
    }
}
