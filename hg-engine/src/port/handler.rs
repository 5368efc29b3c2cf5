//! What a port serves: handlers of all kinds behind one trait, and what comes of running one.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll},
};

use hg_core::{error::Status, rpc::ServeKind};
use hg_na::Message;

use super::{
    Port,
    request::{Due, Request},
};
use crate::contain::{discard, panic_text};

/// What came of running a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// The answer was encoded to its place.
    Answered,
    /// It ended, and no answer is due.
    Silent,
    /// A future of the answer was put to its place.
    Later,
    /// The handler has an [`Answer`] to give.
    Given,
}

/// Where an answer is encoded to, before it is.
pub(crate) fn no_message() -> Message {
    Message::from(Vec::new())
}

/// A registered handler, without its types.
pub(crate) trait Handler: Send + Sync {
    fn kind(&self) -> ServeKind;
    /// Whether the answer may be given by somebody else than the handler, at any time.
    fn gives(&self) -> bool {
        false
    }
    /// Whether it is given its request, which it may ask.
    fn asks(&self) -> bool {
        true
    }
    /// Runs it. An answer that is there at once is written to its place, and so is a future of it, which only an `async` handler
    /// has: where its last one was, if that is given.
    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        future: &mut Option<Task>,
    ) -> Run;
}

/// Runs a handler; a panic becomes an answer.
#[inline]
pub(crate) fn run_caught(
    handler: &dyn Handler,
    request: &Request,
    payload: &[u8],
    answer: &mut Message,
    future: &mut Option<Task>,
) -> Run {
    match catch_unwind(AssertUnwindSafe(|| handler.run(request, payload, answer, future))) {
        Ok(run) => run,
        Err(panic) => panicked(request, panic, answer),
    }
}

#[cold]
fn panicked(request: &Request, panic: Box<dyn Any + Send>, answer: &mut Message) -> Run {
    let run = request.fail(Status::Panicked, panic_text(panic.as_ref()), answer);
    discard(panic);
    run
}

/// A future that ends in an answer.
pub(crate) trait Running: Send {
    /// Polls it. Ended, it is dropped, and its answer encoded to its place.
    fn poll(
        &mut self,
        port: &Port,
        due: &Due,
        context: &mut Context<'_>,
        answer: &mut Message,
    ) -> Poll<Run>;

    /// To see whether the next future is of the same type.
    fn as_any(&mut self) -> &mut dyn Any;
}

pub(crate) type Task = Box<dyn Running>;

/// What the registry keeps.
#[derive(Clone)]
pub(crate) struct Registered {
    /// What the handler says of itself, at hand.
    pub(crate) kind: ServeKind,
    pub(crate) gives: bool,
    pub(crate) asks: bool,
    pub(crate) handler: Arc<dyn Handler>,
}

impl Registered {
    pub(crate) fn new(handler: impl Handler + 'static) -> Self {
        let (kind, gives, asks) = (handler.kind(), handler.gives(), handler.asks());
        Self { kind, gives, asks, handler: Arc::new(handler) }
    }
}
