//! Where a process of a story plays: in the simulation, or as a process of the machine.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use hg_engine::{Engine, EventLoop, Spawn};
use hg_na::{Address, Identity};

use crate::{ended::Ended, story::Call};

/// One process of a story, as its callers and handlers see it.
pub(crate) trait Stage: Send + Sync {
    /// Nanoseconds since the story began.
    fn now(&self) -> u64;

    /// Ends a [`Stage::park`] of this thread.
    fn waker(&self) -> Waker;

    /// Waits in this thread until it is woken, or until a time; may end early.
    fn park(&self, until: Option<u64>);

    /// Wakes a task at a time.
    fn wake_at(&self, at: u64, waker: Waker);

    /// A plain handler takes so long, and holds its process up meanwhile.
    fn stand_still(&self, nanos: u64);

    /// Lets other threads run.
    fn yield_now(&self);

    /// Sleeps until the descriptor of a context's event loop is readable, or this process closes its engine.
    fn sleep_on(&self, events: &EventLoop, context: u8);

    /// Whether this process has closed its engine, or is about to.
    fn is_closed(&self) -> bool;

    /// Starts a thread of this process.
    fn spawn(&self, job: Box<dyn FnOnce() + Send>);

    /// The story has failed.
    fn fail(&self, why: String);

    /// A call that this process is about to make, with what and to whom; `None` if it ended before.
    fn opening(&self, number: usize) -> Option<(Call, Engine, Address)>;

    /// It is made now.
    fn begun(&self, number: usize);

    /// It is over.
    fn ended(&self, number: usize, call: &Call, ended: Ended);

    /// A handler of this process begins to serve a call; `None` if there is no such call.
    fn serving(&self, number: u64) -> Option<Call>;

    /// A call was served, and its answer is about to be given.
    fn answered(&self, _number: u64) {}

    /// By whom a call came, as its handler is told.
    fn called_by(&self, _number: u64, _caller: &Identity) {}

    /// A handler is about to call on: gives the number of that call, and whom to call. What comes of it nobody judges.
    fn calling_on(&self, to: usize, nanos: u64) -> (u64, Address);

    /// Whether the caller of a call that would not end waits no more for it.
    fn is_given_up(&self, call: &Call) -> bool;

    /// Whether the story is over, or this process.
    fn is_over(&self) -> bool;

    /// Wakes a task when it is.
    fn wake_when_over(&self, waker: Waker);
}

/// Polls a future in this thread until it has ended.
pub(crate) fn block_on<F: Future>(stage: &dyn Stage, future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = stage.waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        stage.park(None);
    }
}

/// The same until a time; `None`: it has not ended by then.
pub(crate) fn block_until<F: Future + Unpin>(
    stage: &dyn Stage,
    future: &mut F,
    until: u64,
) -> Option<F::Output> {
    let waker = stage.waker();
    loop {
        let polled = Pin::new(&mut *future).poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        if until <= stage.now() {
            return None;
        }
        stage.park(Some(until));
    }
}

/// A runtime: a thread for each handler.
pub(crate) struct OnStage(Arc<dyn Stage>);

impl OnStage {
    pub(crate) fn new(stage: &Arc<dyn Stage>) -> Self {
        Self(Arc::clone(stage))
    }
}

impl Spawn for OnStage {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let stage = Arc::clone(&self.0);
        self.0.spawn(Box::new(move || block_on(stage.as_ref(), future)));
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.spawn(job);
    }
}

/// Ends after a time in nanoseconds.
pub(crate) struct Sleep {
    stage: Arc<dyn Stage>,
    until: u64,
}

impl Sleep {
    pub(crate) fn new(stage: &Arc<dyn Stage>, nanos: u64) -> Self {
        Self { stage: Arc::clone(stage), until: stage.now() + nanos }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.until <= self.stage.now() {
            return Poll::Ready(());
        }
        self.stage.wake_at(self.until, context.waker().clone());
        Poll::Pending
    }
}
