//! A caller: one logical thread for each call of a story.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use hg_core::{error::CallError, rpc::Rpc};
use hg_engine::{Bulk, CallOptions, Handle, Peer};
use hg_na::Rights;
use serde_bytes::ByteBuf;

use crate::{
    futures::{block_on, block_until},
    judge::Ended,
    rpcs::{Answered, Asked, Async, Blocking, Kind, Later, Plain, Refused},
    run, serve,
    story::{Act, Call, Manner},
    world,
};

/// Makes a call, and records what became of it.
pub(crate) fn call(number: usize) {
    let (call, handle, address) = run::with(|run| {
        let call = run.calls[number].clone();
        let from = &run.processes[call.from];
        // Another incarnation's is none of its business.
        let is_own = from.id == run.records[number].sides.0;
        let handle = from.handle.clone().filter(|_| is_own);
        let address = run.processes[call.to].address.clone();
        (call, handle, address)
    });
    let Some(handle) = handle else { return };
    let ended = match handle.lookup(&address) {
        Ok(peer) => call_peer(number, &call, &handle, &peer),
        Err(error) => Ended::Failed("NotMade", error.to_string()),
    };
    world::trace(|out| write!(out, "call {number} has ended: {ended}"));
    let now = world::now();
    run::with(|run| {
        let record = &mut run.records[number];
        if record.ended.is_some() {
            return;
        }
        record.begun.get_or_insert(now);
        record.ended = Some((now, ended));
    });
}

fn call_peer(number: usize, call: &Call, handle: &Handle, peer: &Peer) -> Ended {
    let memory = match expose(number, call.act, handle) {
        Ok(memory) => memory,
        Err(error) => return Ended::Failed("NotMade", error.to_string()),
    };
    let asked = Asked {
        call: number as u64,
        memory: memory.as_ref().map(Bulk::descriptor),
        bytes: ByteBuf::from(serve::bytes(number as u64, call.len)),
    };
    run::with(|run| run.records[number].begun = Some(world::now()));
    let ended = match call.kind {
        Kind::Plain => go(Plain, call, number, (handle, peer), asked),
        Kind::Async => go(Async, call, number, (handle, peer), asked),
        Kind::Later => go(Later, call, number, (handle, peer), asked),
        Kind::Blocking => go(Blocking, call, number, (handle, peer), asked),
    };
    check_memory(number, call.act, memory.as_ref(), &ended);
    ended
}

/// Memory that the handler pulls from or pushes to.
fn expose(number: usize, act: Act, handle: &Handle) -> Result<Option<Bulk>, hg_na::Error> {
    let (bytes, rights) = match act {
        Act::Pull(len) | Act::Fetch(len) => {
            (serve::bytes(number as u64, usize::try_from(len).unwrap_or(0)), Rights::READ)
        }
        Act::Push(len) => (vec![0; usize::try_from(len).unwrap_or(0)], Rights::WRITE),
        _ => return Ok(None),
    };
    handle.expose(bytes, rights).map(Some)
}

fn check_memory(number: usize, act: Act, memory: Option<&Bulk>, ended: &Ended) {
    if let (Act::Push(_), Some(memory), Ended::Value) = (act, memory, ended) {
        let bytes = memory.to_vec().unwrap_or_default();
        if bytes != serve::bytes(number as u64, bytes.len()) {
            world::fail(|| format!("value: what call {number} was pushed is not what was sent"));
        }
    }
}

fn go<R>(
    rpc: R,
    call: &Call,
    number: usize,
    (handle, peer): (&Handle, &Peer),
    asked: Asked,
) -> Ended
where
    R: Rpc<Output = Answered, Error = Refused>,
    for<'a> R: Rpc<Args<'a> = Asked>,
{
    let options = match call.deadline {
        Some(nanos) => CallOptions::within(Duration::from_nanos(nanos)),
        None => CallOptions::default(),
    };
    let now = world::now();
    let give_up = || run::with(|run| run.is_over) && run::is_to_give_up(call);
    let outcome = match call.manner {
        Manner::Notify | Manner::NotifyAndWait | Manner::NotifyBlindly => {
            return notify(rpc, call, (handle, peer), asked);
        }
        Manner::Wait if !matches!(call.act, Act::UntilCancelled) => {
            handle.call_with(rpc, peer, asked, options).wait()
        }
        Manner::Wait | Manner::Await => {
            let mut call = handle.call_with(rpc, peer, asked, options);
            match block_or_over(&mut call, give_up) {
                Some(outcome) => outcome,
                None => return Ended::GivenUp,
            }
        }
        Manner::Drop(nanos) => {
            let mut call = handle.call_with(rpc, peer, asked, options);
            match block_until(&mut call, Some(now + nanos), || false) {
                Some(outcome) => outcome,
                None => return Ended::GivenUp,
            }
        }
        Manner::Cancel(nanos) => {
            let mut call = handle.call_with(rpc, peer, asked, options);
            match block_until(&mut call, Some(now + nanos), || false) {
                Some(outcome) => outcome,
                None => {
                    call.cancel();
                    block_on(call)
                }
            }
        }
    };
    end_of(outcome, call, number)
}

/// Waits for a future, or until the story is over and nobody wants it any more.
fn block_or_over<F: Future + Unpin>(
    future: &mut F,
    give_up: impl Fn() -> bool,
) -> Option<F::Output> {
    let process = run::with(|run| {
        let id = world::process_here();
        run.processes.iter().position(|it| it.id == id)
    });
    let mut asks = true;
    block_on(poll_fn(|context| {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(context) {
            return Poll::Ready(Some(output));
        }
        if give_up() {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut asks)
            && let Some(process) = process
        {
            run::wake_when_over(process, context.waker().clone());
        }
        Poll::Pending
    }))
}

fn notify<R>(rpc: R, call: &Call, (handle, peer): (&Handle, &Peer), asked: Asked) -> Ended
where
    R: Rpc<Output = Answered, Error = Refused>,
    for<'a> R: Rpc<Args<'a> = Asked>,
{
    let to_hung = run::with(|run| run.processes[call.to].hangs);
    let mut one_way = handle.notify(rpc, peer, asked);
    let sent = match call.manner {
        Manner::Notify => one_way.accepted(),
        Manner::NotifyAndWait => {
            let give_up = || run::with(|run| run.is_over) && run::is_to_give_up(call);
            match block_or_over(&mut one_way, give_up) {
                Some(sent) => sent,
                None => return Ended::GivenUp,
            }
        }
        _ => {
            drop(one_way);
            Ok(())
        }
    };
    match sent {
        Ok(()) => {
            if to_hung && call.manner == Manner::Notify {
                run::with(|run| run.processes[call.from].bytes_to_hung += call.len as u64);
            }
            Ended::Sent
        }
        Err(failure) => Ended::Failed(kind_of(&failure), failure.to_string()),
    }
}

/// Compares the answer with what it is to be.
fn end_of(outcome: Result<Answered, CallError<Refused>>, call: &Call, number: usize) -> Ended {
    match outcome {
        Ok(Answered { call: of, by, bytes, .. }) => {
            let len = if let Act::Answer(len) = call.act { len } else { 0 };
            let is_right =
                of == number as u64 && by == call.to as u64 && *bytes == serve::bytes(of, len);
            if !is_right {
                world::fail(|| format!("value: call {number} got an answer of call {of} by {by}"));
            }
            Ended::Value
        }
        Err(CallError::Handler(Refused(of))) if of != number as u64 => {
            world::fail(|| format!("value: call {number} got the error of call {of}"));
            Ended::Value
        }
        Err(error) => Ended::Failed(kind_of(&error), error.to_string()),
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
        CallError::Decode(_) => "Decode",
        CallError::Panicked(_) => "Panicked",
        CallError::NotMade(hg_na::Error::PeerGone(_)) => "PeerGone",
        CallError::NotMade(_) => "NotMade",
        CallError::WouldDeadlock => "WouldDeadlock",
        CallError::Closed => "Closed",
        _ => "unknown",
    }
}
