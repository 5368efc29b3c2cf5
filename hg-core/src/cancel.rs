//! How a handler sees that nobody waits for its answer any more.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::table::{Key, Table};

/// Set once: by a cancellation of the origin, or when the origin is gone. Cheap to clone.
///
/// As a future it ends when it is set. Each clone is a future of its own, woken by itself; dropped, it leaves nothing behind.
#[derive(Debug, Default)]
pub struct CancelToken {
    shared: Arc<Shared>,
    /// Where the waker is of the last poll of this clone.
    place: Option<Key>,
}

#[derive(Debug, Default)]
struct Shared {
    cancelled: AtomicBool,
    /// Of the clones that await it. A waker is a user's: it is cloned, dropped and woken without the lock.
    wakers: Mutex<Table<Waker>>,
}

impl Shared {
    fn wakers(&self) -> MutexGuard<'_, Table<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CancelToken {
    /// One that is set already.
    pub(crate) fn cancelled() -> Self {
        let token = Self::default();
        token.set();
        token
    }

    /// Whether the answer is still wanted: `false` means it is.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Acquire: pairs with the Release in `set`, so that the canceller's writes are seen.
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Sets it. Whoever awaits it is to be woken, where that may do anything.
    pub(crate) fn set(&self) -> Vec<Waker> {
        self.shared.cancelled.store(true, Ordering::Release);
        std::mem::take(&mut *self.shared.wakers()).into_values().collect()
    }
}

impl Clone for CancelToken {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), place: None }
    }
}

impl Future for CancelToken {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_cancelled() {
            return Poll::Ready(());
        }
        let Self { shared, place } = &mut *self;
        if let Some(place) = *place
            && shared.wakers().get(place).is_some_and(|present| present.will_wake(context.waker()))
        {
            return Poll::Pending;
        }
        let waker = context.waker().clone();
        let mut wakers = shared.wakers();
        // Under the lock that `set` takes after its store: either it is seen, or the waker is.
        if shared.cancelled.load(Ordering::Acquire) {
            drop(wakers);
            return Poll::Ready(());
        }
        let mut before = None;
        match place.and_then(|place| wakers.get_mut(place)) {
            Some(present) => before = Some(std::mem::replace(present, waker)),
            None => *place = Some(wakers.insert(waker)),
        }
        drop(wakers);
        drop(before);
        Poll::Pending
    }
}

impl Drop for CancelToken {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.shared.wakers().remove(place);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_token_is_ready_after_it_was_cancelled_and_not_before() {
        let token = CancelToken::default();
        let mut future = token.clone();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        assert_eq!(token.set().len(), 1);
        assert!(Pin::new(&mut future).poll(&mut context).is_ready());
        assert!(Pin::new(&mut CancelToken::cancelled()).poll(&mut context).is_ready());
    }

    /// Asks the token when it is dropped, as whatever its user has in it may.
    struct Asks(CancelToken);

    impl Wake for Asks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Asks {
        fn drop(&mut self) {
            let mut context = Context::from_waker(Waker::noop());
            let _: Poll<()> = Pin::new(&mut self.0).poll(&mut context);
        }
    }

    #[test]
    fn a_token_that_many_have_awaited_keeps_the_wakers_of_those_that_still_do() {
        let token = CancelToken::default();
        let mut long = token.clone();
        for _ in 0..1_000 {
            let mut short = token.clone();
            for _ in 0..3 {
                let waker = Waker::from(Arc::new(Asks(token.clone())));
                let mut context = Context::from_waker(&waker);
                assert!(Pin::new(&mut short).poll(&mut context).is_pending());
                assert!(Pin::new(&mut long).poll(&mut context).is_pending());
            }
            assert_eq!(token.shared.wakers().len(), 2);
        }
        assert_eq!(token.shared.wakers().len(), 1);
        token.set().into_iter().for_each(Waker::wake);
        assert_eq!(Arc::strong_count(&token.shared), 2, "this one and the one that awaited it");
    }
}
