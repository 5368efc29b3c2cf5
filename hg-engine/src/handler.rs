//! Handlers of all kinds behind one trait, and the answers that they make.

use std::{
    any::Any,
    fmt,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use hg_core::{
    codec::{self, Codec as _},
    error::{Status, bounded_text},
    header::Header,
    protocol::status_message,
    rpc::{Responder, Rpc, Serve, ServeKind},
};
use hg_na::Message;
use serde::Serialize;

use crate::{
    Request,
    deferred::{contain, discard},
    large,
    port::Port,
    running::{self, Task},
};

/// What came of running a handler.
pub(crate) enum Run {
    /// The answer was encoded to its place.
    Answered,
    /// It ended, and no answer is due.
    Silent,
    /// A future of the answer.
    Later(Task),
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
    /// Runs it; an answer that is there at once is written to its place.
    /// A future is put to the spare place, if there is one.
    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        spare: &mut Option<Task>,
    ) -> Run;
}

/// Runs a handler; a panic becomes an answer.
#[inline]
pub(crate) fn run_caught(
    handler: &dyn Handler,
    request: &Request,
    payload: &[u8],
    answer: &mut Message,
    spare: &mut Option<Task>,
) -> Run {
    match catch_unwind(AssertUnwindSafe(|| handler.run(request, payload, answer, spare))) {
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

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Arguments from the wire, or the answer that says why not.
#[inline]
fn arguments<'a, R: Rpc>(
    request: &Request,
    payload: &'a [u8],
    answer: &mut Message,
) -> Result<R::WireArgs<'a>, Run> {
    codec::Default::decode::<R::WireArgs<'a>>(payload).map_err(|error| {
        let text = format!("arguments of `{}`: {error}", R::NAME);
        let status = match error {
            codec::CodecError::NoMemory { .. } => Status::Rejected,
            _ => Status::Decode,
        };
        request.fail(status, &text, answer)
    })
}

/// What `#[hg::rpc]` made of a function with a body.
pub(crate) struct OfFunction<R>(pub(crate) PhantomData<fn() -> R>);

impl<R: Serve<Request>> Handler for OfFunction<R> {
    fn kind(&self) -> ServeKind {
        R::KIND
    }

    #[inline]
    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        spare: &mut Option<Task>,
    ) -> Run {
        let args = match arguments::<R>(request, payload, answer) {
            Ok(args) => args,
            Err(run) => return run,
        };
        R::serve(request, args, ToPlace::<R> { request, answer, spare, rpc: PhantomData })
    }
}

/// Puts what a handler gives to its place.
struct ToPlace<'r, R> {
    request: &'r Request,
    answer: &'r mut Message,
    spare: &'r mut Option<Task>,
    rpc: PhantomData<fn() -> R>,
}

impl<R: Serve<Request>> Responder<R::Output, R::Error> for ToPlace<'_, R> {
    type Done = Run;

    #[inline(always)]
    fn now(self, result: Result<R::Output, R::Error>) -> Run {
        self.request.answer_into::<R>(result, self.answer)
    }

    #[inline(always)]
    fn later<F>(self, future: F) -> Run
    where
        F: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
    {
        if R::KIND == ServeKind::Async {
            return Run::Later(running::put::<R, F>(self.spare, future));
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
    request.fail(Status::Rejected, &text, answer)
}

/// A closure that answers at once, on the progress thread or on the pool.
pub(crate) struct OfClosure<R, F> {
    pub(crate) function: F,
    pub(crate) kind: ServeKind,
    pub(crate) rpc: PhantomData<fn() -> R>,
}

impl<R, F> Handler for OfClosure<R, F>
where
    R: Rpc,
    F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error> + Send + Sync,
{
    fn kind(&self) -> ServeKind {
        self.kind
    }

    #[inline]
    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        _: &mut Option<Task>,
    ) -> Run {
        match arguments::<R>(request, payload, answer) {
            Ok(args) => request.answer_into::<R>((self.function)(request, R::unpack(args)), answer),
            Err(run) => run,
        }
    }
}

/// A closure that gives a future.
pub(crate) struct OfAsyncClosure<R, F> {
    pub(crate) function: F,
    pub(crate) rpc: PhantomData<fn() -> R>,
}

impl<R, F, Fut> Handler for OfAsyncClosure<R, F>
where
    R: Rpc,
    F: for<'a> Fn(Request, R::Args<'a>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
{
    fn kind(&self) -> ServeKind {
        ServeKind::Async
    }

    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        spare: &mut Option<Task>,
    ) -> Run {
        let args = match arguments::<R>(request, payload, answer) {
            Ok(args) => args,
            Err(run) => return run,
        };
        let future = (self.function)(request.clone(), R::unpack(args));
        Run::Later(running::put::<R, _>(spare, future))
    }
}

/// A closure that is given an [`Answer`] to send when it likes.
pub(crate) struct OfLaterClosure<R, F> {
    pub(crate) function: F,
    pub(crate) rpc: PhantomData<fn() -> R>,
}

impl<R, F> Handler for OfLaterClosure<R, F>
where
    R: Rpc,
    F: for<'a> Fn(&'a Request, R::Args<'a>, Answer<R>) + Send + Sync,
{
    fn kind(&self) -> ServeKind {
        // Like an `async` handler it goes on after its round, and can be told of a cancellation.
        ServeKind::Async
    }

    fn gives(&self) -> bool {
        true
    }

    fn run(
        &self,
        request: &Request,
        payload: &[u8],
        answer: &mut Message,
        _: &mut Option<Task>,
    ) -> Run {
        let args = match arguments::<R>(request, payload, answer) {
            Ok(args) => args,
            Err(run) => return run,
        };
        let given = Answer { request: Some(request.clone()), rpc: PhantomData };
        (self.function)(request, R::unpack(args), given);
        Run::Given
    }
}

/// The right and duty to answer one request, from any thread. Dropped unsent, it tells the caller that no
/// answer was given.
pub struct Answer<R: Rpc> {
    /// `None` once it was sent.
    request: Option<Request>,
    rpc: PhantomData<fn() -> R>,
}

impl<R: Rpc> Answer<R> {
    /// Sends the answer.
    pub fn send(mut self, result: Result<R::Output, R::Error>) {
        // Taken when it is encoded: a `Serialize` that panics leaves a request to be answered.
        let message = self.request.as_ref().and_then(|request| request.answer::<R>(result));
        if let Some(request) = self.request.take() {
            request.hand_in(message);
        }
    }

    /// The request, for its origin, deadline and cancellation.
    #[must_use]
    pub fn request(&self) -> Option<&Request> {
        self.request.as_ref()
    }
}

impl<R: Rpc> Drop for Answer<R> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let (status, why) = if std::thread::panicking() {
                (Status::Panicked, "the handler has panicked before it has answered")
            } else {
                (Status::Rejected, "the handler dropped the request unanswered")
            };
            request.hand_in(request.failure(status, why));
        }
    }
}

impl<R: Rpc> fmt::Debug for Answer<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Answer({})", R::NAME)
    }
}

/// A value as an answer: straight into the outgoing message.
#[inline(always)]
pub(crate) fn encode_value<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    value: &T,
    answer: &mut Message,
) {
    let start = header.encoded_len();
    let why = match codec::Default::size(value) {
        Ok(size) if start + size <= port.shared.caps.short_expected => {
            let bytes = answer.make_inline(start + size);
            match codec::Default::encode(value, &mut bytes[start..]) {
                Ok(_) => return header.encode(bytes),
                Err(error) => unencodable(&error),
            }
        }
        Ok(size) => match encode_long_value(port, origin, header, (value, size), answer) {
            Ok(()) => return,
            Err(why) => why,
        },
        Err(error) => unencodable(&error),
    };
    *answer = answer_why_not(&header, &why);
}

/// The same for the handler's own error.
#[inline(never)]
pub(crate) fn encode_error<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    error: &T,
    answer: &mut Message,
) {
    encode_value(port, origin, header, error, answer);
}

#[cold]
fn answer_why_not(header: &Header, why: &str) -> Message {
    status_message(header.id, Status::Decode, bounded_text(why), header.checksum)
}

#[cold]
fn unencodable(error: &codec::CodecError) -> String {
    format!("the result cannot be encoded: {error}")
}

/// A value that needs memory of the transport's, or more than a message.
#[inline(never)]
fn encode_long_value<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    (value, size): (&T, usize),
    answer: &mut Message,
) -> Result<(), String> {
    let start = header.encoded_len();
    if port.is_large(start + size, port.shared.caps.max_expected) {
        *answer = large::offer(port, origin, &header, (value, size));
        return Ok(());
    }
    *answer = reserve_answer(port, origin, start + size)?;
    let bytes = answer.as_mut_slice();
    codec::Default::encode(value, &mut bytes[start..]).map_err(|error| unencodable(&error))?;
    header.encode(bytes);
    Ok(())
}

#[cold]
fn reserve_answer(port: &Port, origin: hg_na::Peer, len: usize) -> Result<Message, String> {
    let mut state = port.state.lock();
    let context = state.protocol.context().map_err(|_| "the engine was shut down".to_owned())?;
    let reserved = context.message(origin, len);
    reserved.map_err(|error| format!("the result cannot be sent: {error}"))
}

/// What the registry keeps.
#[derive(Clone)]
pub(crate) struct Registered {
    /// The handler's, at hand.
    pub(crate) kind: ServeKind,
    pub(crate) handler: Arc<dyn Handler>,
}

impl Registered {
    pub(crate) fn new(handler: impl Handler + 'static) -> Self {
        Self { kind: handler.kind(), handler: Arc::new(handler) }
    }
}
