//! How a handler sees that nobody waits for its answer any more.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// Set once: by a cancellation of the origin, or when the origin is gone. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cancelled: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl CancelToken {
    /// Whether the answer is still wanted: `false` means it is.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Acquire: pairs with the Release in `cancel`, so that the canceller's writes are seen.
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Sets it and wakes whoever awaits it.
    pub fn cancel(&self) {
        self.set().into_iter().for_each(Waker::wake);
    }

    /// Sets it. Whoever awaits it is to be woken, where that may do anything.
    pub(crate) fn set(&self) -> Vec<Waker> {
        self.0.cancelled.store(true, Ordering::Release);
        std::mem::take(&mut *self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Future for CancelToken {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock that `cancel` takes after its store: either it is seen, or the waker is.
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_ready_after_it_was_cancelled_and_not_before() {
        let token = CancelToken::default();
        let mut future = token.clone();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        token.cancel();
        assert!(Pin::new(&mut future).poll(&mut context).is_ready());
    }
}
