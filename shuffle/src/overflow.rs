//! What callbacks have sent and no queue had room for.
//!
//! A callback that waited for room would keep its own rank from taking in what others wait to get rid of: two ranks that
//! answer each other would wait for ever. So a message that a callback sends is put into its queue in any case, and what
//! waits there is counted here. While there is any, the rank's other threads send nothing: what they add stays in the
//! job, whereas an answer takes the place of what it answers. Callbacks that send ever more than they are sent reach a
//! limit; then they wait, too, as long as anything leaves, and are told when nothing does.

use std::{
    cell::RefCell,
    marker::PhantomData,
    ptr,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::lock::{locked, wait};

/// Of one rank.
#[derive(Debug)]
pub(crate) struct Overflow {
    max: u64,
    patience: Duration,
    /// What `state` says, for a look.
    bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

thread_local! {
    /// Of which shuffles this thread runs callbacks, each inside of the one before: where what those have sent is counted.
    static CALLBACKS_OF: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A thread that runs a callback, maybe one inside of another shuffle's. Dropped in the reverse order.
#[derive(Debug)]
pub(crate) struct InCallback {
    _is_of_this_thread: PhantomData<*const ()>,
}

impl Drop for InCallback {
    fn drop(&mut self) {
        let _none = CALLBACKS_OF.try_with(|of| of.borrow_mut().pop());
    }
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// How often something has left.
    departures: u64,
    waiters: u32,
    is_over: bool,
}

impl Overflow {
    /// `max`: bytes at which callbacks wait; `patience`: for how long, while nothing leaves.
    pub(crate) fn new(max: u64, patience: Duration) -> Self {
        let (bytes, state, changed) = Default::default();
        Self { max, patience, bytes, state, changed }
    }

    /// This thread runs callbacks until the guard is dropped.
    pub(crate) fn enter(&self) -> InCallback {
        // A thread that has dropped its locals may send in the destructor of one.
        let _none = CALLBACKS_OF.try_with(|of| of.borrow_mut().push(self.address()));
        InCallback { _is_of_this_thread: PhantomData }
    }

    /// Whether this is inside of a callback, also one that has called into another shuffle whose callback this is.
    pub(crate) fn is_callback(&self) -> bool {
        let is_inside = |of: &RefCell<Vec<usize>>| of.borrow().contains(&self.address());
        CALLBACKS_OF.try_with(is_inside).unwrap_or(false)
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Bytes that wait. Relaxed: who relies on it asks under the lock.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A message of a callback waits in a queue.
    pub(crate) fn add(&self, bytes: u64) {
        let mut state = locked(&self.state);
        state.bytes += bytes;
        self.bytes.store(state.bytes, Ordering::Relaxed);
    }

    /// So much has left, or was dropped.
    pub(crate) fn take(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = locked(&self.state);
        state.bytes -= bytes;
        state.departures += 1;
        self.bytes.store(state.bytes, Ordering::Relaxed);
        let is_waited_for = state.waiters > 0;
        drop(state);
        if is_waited_for {
            self.changed.notify_all();
        }
    }

    /// A thread that is in no callback waits until nothing is left.
    pub(crate) fn wait_until_empty(&self) {
        let mut state = locked(&self.state);
        state.waiters += 1;
        while state.bytes > 0 && !state.is_over {
            state = wait(&self.changed, state);
        }
        state.waiters -= 1;
    }

    /// A callback waits until less than the limit is left. `Err`: nothing has left for so long; and the bytes.
    pub(crate) fn wait_for_room(&self) -> Result<(), (Duration, u64)> {
        let mut state = locked(&self.state);
        state.waiters += 1;
        let mut ended = Ok(());
        while state.bytes > self.max && !state.is_over && ended.is_ok() {
            let before = state.departures;
            let is_still = |state: &mut State| state.departures == before && !state.is_over;
            let waited = self.changed.wait_timeout_while(state, self.patience, is_still);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() {
                ended = Err((self.patience, state.bytes));
            }
        }
        state.waiters -= 1;
        ended
    }

    /// Nobody waits any more: a rank has failed, or the shuffle ends.
    pub(crate) fn end(&self) {
        locked(&self.state).is_over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn who_is_in_no_callback_waits_until_nothing_is_left_or_it_is_over() {
        let overflow = Arc::new(Overflow::new(10, SHORT));
        overflow.wait_until_empty();
        for ends in [false, true] {
            overflow.add(5);
            let waits = Arc::clone(&overflow);
            let waits = thread::spawn(move || waits.wait_until_empty());
            while locked(&overflow.state).waiters == 0 {
                thread::yield_now();
            }
            if ends {
                overflow.end()
            } else {
                overflow.take(5)
            }
            waits.join().unwrap();
        }
        assert_eq!(overflow.bytes(), 5);
    }

    #[test]
    fn a_callback_waits_beyond_the_limit_as_long_as_anything_leaves() {
        let overflow = Arc::new(Overflow::new(10, SHORT));
        overflow.add(10);
        assert_eq!(overflow.wait_for_room(), Ok(()));
        overflow.add(3);
        assert_eq!(overflow.wait_for_room(), Err((SHORT, 13)));
        let waits = Arc::clone(&overflow);
        // However slow this test is: it asks again.
        let waits = thread::spawn(move || while waits.wait_for_room().is_err() {});
        overflow.take(2);
        overflow.take(1);
        waits.join().unwrap();
        assert!(!overflow.is_callback());
        let inside = overflow.enter();
        assert!(overflow.is_callback());
        drop(inside);
        assert!(!overflow.is_callback());
    }

    #[test]
    fn a_callback_that_calls_another_shuffle_s_is_still_one() {
        let [outer, inner] = [0, 0].map(|max| Overflow::new(max, SHORT));
        let outside = outer.enter();
        let inside = inner.enter();
        assert!(outer.is_callback() && inner.is_callback());
        drop(inside);
        assert!(outer.is_callback() && !inner.is_callback());
        drop(outside);
        assert!(!outer.is_callback());
    }
}
