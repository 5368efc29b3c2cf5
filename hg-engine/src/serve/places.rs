//! Futures of `async` handlers, in memory that is used again for the same handler's next one.
//!
//! A future cannot be moved once it was polled, and whether it goes on beyond its first poll only that poll tells. So each is made
//! in a *place* of its own type on the heap; one that ends at once leaves its place, empty, to the next request.

use std::{
    any::Any,
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hg_core::rpc::Rpc;
use hg_na::Message;

use crate::port::{Due, Port, Run, Running, Task, no_message};

/// Where the futures of one handler are, one after the other.
struct Place<R, F> {
    /// `None` before and after.
    future: Pin<Box<Option<F>>>,
    rpc: PhantomData<fn() -> R>,
}

impl<R, F> Running for Place<R, F>
where
    R: Rpc,
    F: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
{
    fn poll(
        &mut self,
        port: &Port,
        due: &Due,
        context: &mut Context<'_>,
        answer: &mut Message,
    ) -> Poll<Run> {
        let Some(future) = self.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Run::Silent);
        };
        let result = ready!(future.poll(context));
        self.future.set(None);
        Poll::Ready(due.answer_into::<R>(port, result, answer))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Puts a handler's future to the place that its last one has left, or to a new one.
#[inline]
pub(crate) fn put<R, F>(task: &mut Option<Task>, future: F) -> Run
where
    R: Rpc,
    F: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
{
    match task.as_mut().and_then(|task| task.as_any().downcast_mut::<Place<R, F>>()) {
        Some(place) => place.future.set(Some(future)),
        None => {
            let future = Box::pin(Some(future));
            *task = Some(Box::new(Place::<R, F> { future, rpc: PhantomData }));
        }
    }
    Run::Later
}

/// What came of a handler, and its answer, if it has encoded one.
pub(crate) type Ended = (Run, Message);

/// A future of the engine's own.
struct Own<F>(Pin<Box<F>>);

impl<F: Future<Output = Ended> + Send + 'static> Running for Own<F> {
    fn poll(
        &mut self,
        _: &Port,
        _: &Due,
        context: &mut Context<'_>,
        answer: &mut Message,
    ) -> Poll<Run> {
        let run;
        (run, *answer) = ready!(self.0.as_mut().poll(context));
        Poll::Ready(run)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A future of the engine's own, as a task.
pub(crate) fn own(future: impl Future<Output = Ended> + Send + 'static) -> Task {
    Box::new(Own(Box::pin(future)))
}

/// Polls what a handler has come to, to its end.
pub(crate) async fn finish(
    (mut run, future): (Run, Option<Task>),
    port: &Port,
    due: &Due,
    mut answer: Message,
) -> Ended {
    if run == Run::Later
        && let Some(mut task) = future
    {
        run = poll_fn(|context| task.poll(port, due, context, &mut answer)).await;
    }
    (run, answer)
}

/// Stands where a task was.
#[cold]
pub(crate) fn nothing() -> Task {
    own(async { (Run::Silent, no_message()) })
}
