//! The kinds of handlers: functions with an attribute, and closures.

use std::{fmt, marker::PhantomData};

use hg_core::{
    codec::{self, Codec as _},
    error::Status,
    rpc::{Responder, Rpc, Serve, ServeKind},
};
use hg_na::Message;

use super::{owed::Owed, places, unanswered};
use crate::{
    Request,
    contain::contain,
    port::{Handler, Run, Task},
};

/// Arguments from the wire, or the answer that says why not.
#[inline]
fn arguments<'a, R: Rpc>(
    request: &Request,
    payload: &'a [u8],
    answer: &mut Message,
) -> Result<R::WireArgs<'a>, Run> {
    let decoded = hg_na::decoding(|| codec::Default::decode::<R::WireArgs<'a>>(payload));
    decoded.map_err(|error| {
        let text = format!("arguments of `{}`: {error}", R::NAME);
        let status = match error {
            codec::CodecError::NoMemory { .. } => Status::Rejected,
            _ => Status::Decode,
        };
        request.due.fail(status, &text, answer)
    })
}

/// What `#[hg::rpc]` made of a function with a body.
pub(crate) fn of_function<R: Serve<Request>>() -> Handler {
    let mut handler = Handler::new(R::KIND, |request, payload, answer, future| {
        match arguments::<R>(request, payload, answer) {
            Ok(args) => {
                R::serve(request, args, ToPlace::<R> { request, answer, future, rpc: PhantomData })
            }
            Err(run) => run,
        }
    });
    handler.asks = R::TAKES_CONTEXT;
    handler
}

/// Puts what a handler gives to its place.
struct ToPlace<'r, R> {
    request: &'r Request,
    answer: &'r mut Message,
    future: &'r mut Option<Task>,
    rpc: PhantomData<fn() -> R>,
}

impl<R: Serve<Request>> Responder<R::Output, R::Error> for ToPlace<'_, R> {
    type Done = Run;

    #[inline(always)]
    fn now(self, result: Result<R::Output, R::Error>) -> Run {
        self.request.due.answer_into::<R>(&self.request.port, result, self.answer)
    }

    #[inline(always)]
    fn later<F>(self, future: F) -> Run
    where
        F: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
    {
        if R::KIND == ServeKind::Async {
            return places::put::<R, F>(self.future, future);
        }
        contain("a handler's future that was dropped", || drop(future));
        unpolled::<R>(self.request, self.answer)
    }
}

/// A handler that was written by hand has given a future where nobody polls one.
#[cold]
fn unpolled<R: Serve<Request>>(request: &Request, answer: &mut Message) -> Run {
    let (name, kind) = (R::NAME, R::KIND);
    let text = format!("the handler of `{name}` is of the kind {kind:?} and gave a future");
    request.due.fail(Status::Rejected, &text, answer)
}

/// A closure that answers at once, on the progress thread or on the pool.
pub(crate) fn of_closure<R, F>(kind: ServeKind, function: F) -> Handler
where
    R: Rpc,
    F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error> + Send + Sync + 'static,
{
    Handler::new(kind, move |request, payload, answer, _| {
        match arguments::<R>(request, payload, answer) {
            Ok(args) => {
                let result = function(request, R::unpack(args));
                request.due.answer_into::<R>(&request.port, result, answer)
            }
            Err(run) => run,
        }
    })
}

/// A closure that gives a future.
pub(crate) fn of_async_closure<R, F, Fut>(function: F) -> Handler
where
    R: Rpc,
    F: for<'a> Fn(Request, R::Args<'a>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
{
    Handler::new(ServeKind::Async, move |request, payload, answer, place| {
        match arguments::<R>(request, payload, answer) {
            Ok(args) => places::put::<R, _>(place, function(request.clone(), R::unpack(args))),
            Err(run) => run,
        }
    })
}

/// A closure that is given an [`Answer`] to send when it likes. Like an `async` handler it goes on after its round, and can be told of
/// a cancellation.
pub(crate) fn of_later_closure<R, F>(function: F) -> Handler
where
    R: Rpc,
    F: for<'a> Fn(&'a Request, R::Args<'a>, Answer<R>) + Send + Sync + 'static,
{
    let mut handler = Handler::new(ServeKind::Async, move |request, payload, answer, _| {
        let args = match arguments::<R>(request, payload, answer) {
            Ok(args) => args,
            Err(run) => return run,
        };
        let given = Answer { owed: Owed::new(request.clone()), rpc: PhantomData };
        unanswered::run(|| function(request, R::unpack(args), given));
        Run::Given
    });
    handler.gives = true;
    handler
}

/// The right and duty to answer one request, from any thread. Dropped unsent, it tells the caller that no
/// answer was given.
pub struct Answer<R: Rpc> {
    owed: Owed,
    rpc: PhantomData<fn() -> R>,
}

impl<R: Rpc> Answer<R> {
    /// Sends the answer.
    pub fn send(self, result: Result<R::Output, R::Error>) {
        // A `Serialize` that panics leaves a request to be answered.
        let message = self.owed.request().and_then(|request| request.answer::<R>(result));
        self.owed.send(message);
    }

    /// The request, for its origin, deadline and cancellation.
    #[must_use]
    pub fn request(&self) -> Option<&Request> {
        self.owed.request()
    }
}

impl<R: Rpc> fmt::Debug for Answer<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Answer({})", R::NAME)
    }
}
