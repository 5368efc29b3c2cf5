//! Handlers: they do what the story says of the call that they serve.

use std::{future::poll_fn, task::Poll, time::Duration};

use hg_bulk::Descriptor;
use hg_engine::{CallOptions, Handle, Request};
use hg_na::Rights;
use serde_bytes::ByteBuf;

use crate::{
    futures::{Sleep, block_on},
    rpcs::{Answered, Asked, Async, Blocking, Later, Plain, Poison, Refused, panic_quietly},
    run,
    story::Act,
    world::{self, ProcessId},
};

/// Where a handler runs.
#[derive(Debug, Clone, Copy)]
struct Here {
    process: usize,
    id: ProcessId,
}

/// The bytes that belong to a call.
pub(crate) fn bytes(call: u64, len: usize) -> Vec<u8> {
    let first = call.to_le_bytes()[0];
    (0..len).map(|at| first.wrapping_add(at.to_le_bytes()[0])).collect()
}

/// Serves all kinds.
pub(crate) fn register(handle: &Handle, process: usize, id: ProcessId) {
    let here = Here { process, id };
    let registered = [
        handle.serve(Plain, move |_request, asked| here.plain(&asked)),
        handle.serve_async(Async, move |request, asked| here.wait_and_answer(request, asked)),
        handle.serve_blocking(Blocking, move |request, asked| match here.begin(&asked) {
            Act::CallOn(to, nanos) => {
                here.call_on_and_wait(request, to, nanos);
                Ok(here.answer(&asked, 0, false))
            }
            act => block_on(here.act(act, request.clone(), &asked)),
        }),
        handle.serve_later(Later, move |request, asked, answer| match here.begin(&asked) {
            Act::Answer(_) | Act::Refuse => answer.send(here.plain_act(&asked)),
            Act::Panic => panic_quietly("a handler that was given its answer"),
            Act::Poison => answer.send(Ok(here.answer(&asked, 0, true))),
            Act::Forget => drop(answer),
            act => {
                let request = request.clone();
                let job = move || {
                    let result = block_on(here.act(act, request, &asked));
                    answer.send(result);
                };
                world::spawn(id, Box::new(job));
            }
        }),
    ];
    if registered.iter().any(Result::is_err) {
        world::fail(|| "register: refused".to_owned());
    }
}

impl Here {
    /// A handler begins; gives what it is to do.
    fn begin(self, asked: &Asked) -> Act {
        let Self { process, .. } = self;
        let call = asked.call;
        world::trace(|out| write!(out, "{process} serves call {call}"));
        let known = run::with(|run| {
            let number = usize::try_from(call).ok()?;
            run.records.get_mut(number)?.served += 1;
            run.calls.get(number).map(|call| (call.act, call.len, call.to))
        });
        let Some((act, len, to)) = known else {
            world::fail(|| {
                format!("value: {process} was asked for call {call}, which there is not")
            });
            return Act::Refuse;
        };
        if *asked.bytes != bytes(call, len) || to != process {
            world::fail(|| format!("value: {process} got other arguments of call {call}"));
        }
        act
    }

    fn answer(self, asked: &Asked, len: usize, poison: bool) -> Answered {
        let (call, by) = (asked.call, self.process as u64);
        Answered { call, by, poison: Poison(poison), bytes: ByteBuf::from(bytes(call, len)) }
    }

    fn plain(self, asked: &Asked) -> Result<Answered, Refused> {
        match self.begin(asked) {
            Act::After(nanos) => {
                run::disturb(self.process, world::now() + nanos);
                world::sleep(nanos);
                Ok(self.answer(asked, 0, false))
            }
            Act::Panic => panic_quietly("a plain handler"),
            Act::Poison => Ok(self.answer(asked, 0, true)),
            _ => self.plain_act(asked),
        }
    }

    fn plain_act(self, asked: &Asked) -> Result<Answered, Refused> {
        let number = usize::try_from(asked.call).unwrap_or(0);
        match run::with(|run| run.calls[number].act) {
            Act::Refuse => Err(Refused(asked.call)),
            Act::Answer(len) => Ok(self.answer(asked, len, false)),
            _ => Ok(self.answer(asked, 0, false)),
        }
    }

    async fn wait_and_answer(self, request: Request, asked: Asked) -> Result<Answered, Refused> {
        let act = self.begin(&asked);
        self.act(act, request, &asked).await
    }

    async fn act(self, act: Act, request: Request, asked: &Asked) -> Result<Answered, Refused> {
        match act {
            Act::Answer(_) | Act::Refuse | Act::Forget => return self.plain_act(asked),
            Act::Panic => panic_quietly("a handler that waits"),
            Act::Poison => return Ok(self.answer(asked, 0, true)),
            Act::After(nanos) => Sleep::new(nanos).await,
            Act::UntilCancelled => request.cancelled().await,
            Act::Never => self.end().await,
            Act::CallOn(to, nanos) => self.call_on(&request, to, nanos).await,
            Act::Pull(len) | Act::Push(len) | Act::Fetch(len) => {
                let memory = asked.memory.as_ref().ok_or(Refused(asked.call))?;
                transfer(act, &request, memory, len, asked.call).await?;
            }
        }
        Ok(self.answer(asked, 0, false))
    }

    /// The end of the story, or of this process.
    async fn end(self) {
        poll_fn(|context| {
            if run::is_over_for(self.process, self.id) {
                return Poll::Ready(());
            }
            run::wake_when_over(self.process, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whatever comes of it.
    async fn call_on(self, request: &Request, to: usize, nanos: u64) {
        let engine = request.engine();
        let address = run::with(|run| run.processes[to].address.clone());
        let number = run::note_nested(self.process, to, nanos);
        if let Ok(peer) = engine.lookup(&address) {
            let asked = Asked { call: number, memory: None, bytes: ByteBuf::new() };
            let options = CallOptions::within(Duration::from_nanos(nanos));
            let _whatever = engine.call_with(Plain, &peer, asked, options).await;
        }
    }
}

impl Here {
    /// The same as [`Here::call_on`], for a handler that may block.
    fn call_on_and_wait(self, request: &Request, to: usize, nanos: u64) {
        let engine = request.engine();
        let address = run::with(|run| run.processes[to].address.clone());
        let number = run::note_nested(self.process, to, nanos);
        if let Ok(peer) = engine.lookup(&address) {
            let asked = Asked { call: number, memory: None, bytes: ByteBuf::new() };
            let options = CallOptions::within(Duration::from_nanos(nanos));
            let _whatever = engine.call_with(Plain, &peer, asked, options).wait();
        }
    }
}

/// Moves bytes between the caller's memory and some of one's own.
async fn transfer(
    act: Act,
    request: &Request,
    memory: &Descriptor,
    len: u64,
    call: u64,
) -> Result<(), Refused> {
    let refused = |_error| Refused(call);
    let len = usize::try_from(len).unwrap_or(0);
    let engine = request.engine();
    let got = match act {
        Act::Fetch(_) => request.fetch(memory).await.map_err(refused)?,
        Act::Pull(_) => {
            let local = engine.expose(vec![0; len], Rights::empty()).map_err(|_| Refused(call))?;
            request.pull(memory, &local).await.map_err(refused)?;
            local.to_vec().map_err(|_| Refused(call))?
        }
        _ => {
            let own = bytes(call, len);
            let local = engine.expose(own.clone(), Rights::empty()).map_err(|_| Refused(call))?;
            request.push(&local, memory).await.map_err(refused)?;
            own
        }
    };
    if got != bytes(call, len) {
        world::fail(|| format!("value: other bytes were moved for call {call}"));
    }
    Ok(())
}
