//! The engine of a process, and its handlers: they do what the story says of the call that they serve.

use std::{
    future::poll_fn,
    sync::{Arc, LazyLock},
    task::Poll,
    time::Duration,
};

use hg_bulk::Descriptor;
use hg_core::registry::RegisterError;
use hg_engine::{Answer, Builder, CallOptions, Progress, Request, Wait};
use hg_na::Rights;
use serde_bytes::ByteBuf;

use crate::{
    rpcs::{Answered, Asked, Async, Blocking, Later, Plain, Poison, Refused, panic_quietly},
    stage::{OnStage, Sleep, Stage, block_on},
    story::{Act, Settings},
};

/// Where a handler runs.
#[derive(Clone)]
struct Here {
    stage: Arc<dyn Stage>,
    process: usize,
}

/// The bytes that belong to a call, at most [`BYTES_MAX`].
pub(crate) fn bytes(call: u64, len: usize) -> &'static [u8] {
    let first = usize::from(call.to_le_bytes()[0]);
    &PATTERN[first..first + len]
}

/// Most bytes that belong to a call, also where real processes make it longer.
const BYTES_MAX: usize = 1 << 21;

/// All numbers of a byte, again and again: those of a call begin with its own.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..256 + BYTES_MAX).map(|at| at.to_le_bytes()[0]).collect());

/// An engine with the settings of a process, which listens and serves all kinds.
pub(crate) fn builder(settings: &Settings, process: usize, stage: &Arc<dyn Stage>) -> Builder {
    let wait = match settings.spin {
        None => Wait::Spin,
        Some(0) => Wait::Block,
        Some(micros) => Wait::Adaptive(Duration::from_micros(micros)),
    };
    let builder = Builder::new();
    let builder = if settings.runtime { builder.runtime(OnStage::new(stage)) } else { builder };
    let builder = builder
        .listen(true)
        .contexts(settings.contexts)
        .progress(if settings.background { Progress::Background } else { Progress::Own })
        .wait(wait)
        .in_service_max(settings.in_service_max)
        .calls_max(settings.calls_max)
        .checksum(settings.checksum)
        .eager_max(settings.eager_max)
        .backlog_bytes_max(settings.backlog_bytes_max)
        .pool_threads_max(settings.pool_threads_max)
        .large_max(settings.large_max)
        .large_in_service_max(settings.large_in_service_max);
    register(builder, process, stage).expect("a fresh registry")
}

fn register(
    builder: Builder,
    process: usize,
    stage: &Arc<dyn Stage>,
) -> Result<Builder, RegisterError> {
    let [plain, waits, blocks, later] =
        [(); 4].map(|()| Here { stage: Arc::clone(stage), process });
    builder
        .serve(Plain, move |request, asked| plain.plain(request, &asked))?
        .serve_async(Async, move |request, asked| waits.clone().wait_and_answer(request, asked))?
        .serve_blocking(Blocking, move |request, asked| {
            let outcome = match blocks.begin(request, &asked) {
                Act::CallOn(to, nanos) => {
                    blocks.call_on_and_wait(request, to, nanos);
                    Ok(blocks.answer(&asked, 0, false))
                }
                act => block_on(blocks.stage.as_ref(), blocks.act(act, request.clone(), &asked)),
            };
            blocks.stage.answered(asked.call);
            outcome
        })?
        .serve_later(Later, move |request, asked, answer| later.later(request, asked, answer))
}

impl Here {
    /// A handler begins; gives what it is to do.
    fn begin(&self, request: &Request, asked: &Asked) -> Act {
        let Self { process, stage } = self;
        let number = asked.call;
        stage.called_by(number, &request.caller());
        let Some(call) = stage.serving(number) else {
            let why = format!("value: {process} was asked for call {number}, which there is not");
            stage.fail(why);
            return Act::Refuse;
        };
        let frozen = asked.frozen.as_deref().unwrap_or_default();
        let is_right = *asked.bytes == *bytes(number, call.len)
            && frozen == bytes(number, call.frozen)
            && call.to == *process;
        if !is_right {
            stage.fail(format!("value: {process} got other arguments of call {number}"));
        }
        call.act
    }

    fn answer(&self, asked: &Asked, len: usize, poison: bool) -> Answered {
        let (call, by) = (asked.call, self.process as u64);
        Answered { call, by, poison: Poison(poison), bytes: ByteBuf::from(bytes(call, len)) }
    }

    fn plain(&self, request: &Request, asked: &Asked) -> Result<Answered, Refused> {
        let outcome = match self.begin(request, asked) {
            Act::After(nanos) => {
                self.stage.stand_still(nanos);
                Ok(self.answer(asked, 0, false))
            }
            Act::Panic => panic_quietly("a plain handler"),
            Act::Poison => Ok(self.answer(asked, 0, true)),
            act => self.plain_act(act, asked),
        };
        self.stage.answered(asked.call);
        outcome
    }

    fn plain_act(&self, act: Act, asked: &Asked) -> Result<Answered, Refused> {
        match act {
            Act::Refuse => Err(Refused(asked.call)),
            Act::Answer(len) => Ok(self.answer(asked, len, false)),
            _ => Ok(self.answer(asked, 0, false)),
        }
    }

    fn later(&self, request: &Request, asked: Asked, answer: Answer<Later>) {
        match self.begin(request, &asked) {
            act @ (Act::Answer(_) | Act::Refuse) => {
                self.stage.answered(asked.call);
                answer.send(self.plain_act(act, &asked));
            }
            Act::Panic => panic_quietly("a handler that was given its answer"),
            Act::Poison => answer.send(Ok(self.answer(&asked, 0, true))),
            Act::Forget => drop(answer),
            act => {
                let (here, request) = (self.clone(), request.clone());
                let job = move || {
                    let outcome = block_on(here.stage.as_ref(), here.act(act, request, &asked));
                    here.stage.answered(asked.call);
                    answer.send(outcome);
                };
                self.stage.spawn(Box::new(job));
            }
        }
    }

    async fn wait_and_answer(self, request: Request, asked: Asked) -> Result<Answered, Refused> {
        let act = self.begin(&request, &asked);
        let outcome = self.act(act, request, &asked).await;
        self.stage.answered(asked.call);
        outcome
    }

    async fn act(&self, act: Act, request: Request, asked: &Asked) -> Result<Answered, Refused> {
        match act {
            Act::Answer(_) | Act::Refuse | Act::Forget => return self.plain_act(act, asked),
            Act::Panic => panic_quietly("a handler that waits"),
            Act::Poison => return Ok(self.answer(asked, 0, true)),
            Act::After(nanos) => Sleep::new(&self.stage, nanos).await,
            Act::UntilCancelled => request.cancelled().await,
            Act::Never => self.end().await,
            Act::CallOn(to, nanos) => self.call_on(&request, to, nanos).await,
            Act::Pull(len) | Act::Push(len) | Act::Fetch(len) | Act::View(len) => {
                let memory = asked.memory.as_ref().ok_or(Refused(asked.call))?;
                if transfer(act, &request, memory, len, asked.call).await?
                    != bytes(asked.call, size(len))
                {
                    let why = format!("value: other bytes were moved for call {}", asked.call);
                    self.stage.fail(why);
                }
            }
        }
        Ok(self.answer(asked, 0, false))
    }

    /// The end of the story, or of this process.
    async fn end(&self) {
        poll_fn(|context| {
            // Asked for first: it may come between the two.
            self.stage.wake_when_over(context.waker().clone());
            if self.stage.is_over() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whatever comes of it.
    async fn call_on(&self, request: &Request, to: usize, nanos: u64) {
        let engine = request.engine();
        let (number, address) = self.stage.calling_on(to, nanos);
        if let Ok(peer) = engine.lookup(&address) {
            let asked = Asked { call: number, memory: None, frozen: None, bytes: ByteBuf::new() };
            let options = CallOptions::within(Duration::from_nanos(nanos));
            let _whatever = engine.call_with(Plain, &peer, asked, options).await;
        }
    }

    /// The same, for a handler that may block.
    fn call_on_and_wait(&self, request: &Request, to: usize, nanos: u64) {
        let engine = request.engine();
        let (number, address) = self.stage.calling_on(to, nanos);
        if let Ok(peer) = engine.lookup(&address) {
            let asked = Asked { call: number, memory: None, frozen: None, bytes: ByteBuf::new() };
            let options = CallOptions::within(Duration::from_nanos(nanos));
            let _whatever = engine.call_with(Plain, &peer, asked, options).wait();
        }
    }
}

fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(0)
}

/// Moves bytes between the caller's memory and some of one's own; gives those that are here then.
async fn transfer(
    act: Act,
    request: &Request,
    memory: &Descriptor,
    len: u64,
    call: u64,
) -> Result<Vec<u8>, Refused> {
    let refused = |_error| Refused(call);
    let (engine, len) = (request.engine(), size(len));
    match act {
        Act::Fetch(_) => request.fetch(memory).await.map_err(refused),
        Act::View(_) => {
            let seen = engine.view(&request.origin(), memory).await.map_err(refused)?;
            seen.to_vec().map_err(|_| Refused(call))
        }
        Act::Pull(_) => {
            let local = engine.expose(vec![0; len], Rights::empty()).map_err(|_| Refused(call))?;
            request.pull(memory, &local).await.map_err(refused)?;
            local.to_vec().map_err(|_| Refused(call))
        }
        _ => {
            let own = bytes(call, len).to_vec();
            let local = engine.expose(own.clone(), Rights::empty()).map_err(|_| Refused(call))?;
            request.push(&local, memory).await.map_err(refused)?;
            Ok(own)
        }
    }
}
