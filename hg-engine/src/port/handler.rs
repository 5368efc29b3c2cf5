//! What a port serves: handlers of all kinds in one type, and what comes of running one.

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

/// What runs a handler, without its types. An answer that is there at once is written to its place, and so is a future of it, which
/// only an `async` handler has: where its last one was, if that is given.
type Body = Box<dyn Fn(&Request, &[u8], &mut Message, &mut Option<Task>) -> Run + Send + Sync>;

/// A registered handler.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) kind: ServeKind,
    /// Whether the answer may be given by somebody else than the handler, at any time.
    pub(crate) gives: bool,
    /// Whether it is given its request, which it may ask.
    pub(crate) asks: bool,
    /// Found by one look less than what lies in the `Arc` itself, where that depends on its type.
    body: Arc<Body>,
}

impl Handler {
    pub(crate) fn new(
        kind: ServeKind,
        body: impl Fn(&Request, &[u8], &mut Message, &mut Option<Task>) -> Run + Send + Sync + 'static,
    ) -> Self {
        Self { kind, gives: false, asks: true, body: Arc::new(Box::new(body)) }
    }

    /// Runs it; a panic becomes an answer.
    #[inline]
    pub(crate) fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        future: &mut Option<Task>,
    ) -> Run {
        match catch_unwind(AssertUnwindSafe(|| (self.body)(request, payload, answer, future))) {
            Ok(run) => run,
            Err(panic) => panicked(request, panic, answer),
        }
    }
}

#[cold]
fn panicked(request: &Request, panic: Box<dyn Any + Send>, answer: &mut Message) -> Run {
    let run = request.due.fail(Status::Panicked, panic_text(panic.as_ref()), answer);
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
