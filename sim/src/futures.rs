//! Waiting for futures in logical threads, and futures of virtual time.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::world::{self, Action, ThreadId};

struct Unpark(ThreadId);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        world::unpark(self.0);
    }
}

/// Polls a future in this thread until it has ended.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        world::park(None);
    }
}

/// The same until a time, or until it is given up; `None`: it has not ended by then.
pub(crate) fn block_until<F: Future + Unpin>(
    future: &mut F,
    until: Option<u64>,
    is_given_up: impl Fn() -> bool,
) -> Option<F::Output> {
    let waker = waker();
    loop {
        let polled = Pin::new(&mut *future).poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        if is_given_up() || until.is_some_and(|until| until <= world::now()) {
            return None;
        }
        world::park(until);
    }
}

fn waker() -> Waker {
    let me = world::current().expect("only a logical thread waits");
    Waker::from(Arc::new(Unpark(me)))
}

/// Ends after a virtual time.
pub(crate) struct Sleep(Option<u64>, u64);

impl Sleep {
    pub(crate) fn new(nanos: u64) -> Self {
        Self(None, nanos)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (now, nanos) = (world::now(), self.1);
        let until = *self.0.get_or_insert(now + nanos);
        if until <= now {
            return Poll::Ready(());
        }
        world::at(until, Action::Waker(context.waker().clone()));
        Poll::Pending
    }
}
