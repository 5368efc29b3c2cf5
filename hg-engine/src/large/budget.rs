//! How many bytes of large arguments a port has pulled and not served yet: a counter with a queue.
//!
//! Requests take their share in the order in which they came. One that is larger than the whole budget
//! takes it alone.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::lock::Mutex;

/// Bytes that may be taken at a time.
#[derive(Debug)]
pub(crate) struct Budget {
    max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    next_ticket: u64,
    queue: VecDeque<(u64, Option<Waker>)>,
}

impl State {
    /// Who is to look again, to be woken without the lock; it leaves its waker anew unless its turn has come.
    fn take_first(&mut self) -> Option<Waker> {
        self.queue.front_mut().and_then(|(_, waker)| waker.take())
    }
}

impl Budget {
    pub(crate) fn new(max: u64) -> Self {
        Self { max, state: Mutex::default() }
    }

    /// Takes a share, in turn.
    pub(crate) fn share(self: &Arc<Self>, len: u64) -> Waiting {
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back((ticket, None));
        Waiting { budget: Arc::clone(self), ticket: Some(ticket), len }
    }
}

/// A place in the queue; leaving it gives the place up.
#[derive(Debug)]
pub(crate) struct Waiting {
    budget: Arc<Budget>,
    /// `None` once the share was taken.
    ticket: Option<u64>,
    len: u64,
}

impl Waiting {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Share> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let waker = context.waker().clone();
        let mut state = self.budget.state.lock();
        let fits = state.taken == 0 || state.taken.saturating_add(self.len) <= self.budget.max;
        if fits && state.queue.front().is_some_and(|(first, _)| *first == ticket) {
            state.queue.pop_front();
            state.taken += self.len;
            self.ticket = None;
            let next = state.take_first();
            drop(state);
            next.into_iter().for_each(Waker::wake);
            return Poll::Ready(Share { budget: Arc::clone(&self.budget), len: self.len });
        }
        let mut queue = state.queue.iter_mut();
        let place = queue.find(|(other, _)| *other == ticket).map(|(_, place)| place);
        let before = place.and_then(|place| place.replace(waker));
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.budget.state.lock();
            let place = state.queue.iter().position(|(other, _)| *other == ticket);
            let own = place.and_then(|place| state.queue.remove(place));
            let next = state.take_first();
            drop(state);
            next.into_iter().for_each(Waker::wake);
            drop(own);
        }
    }
}

/// Bytes taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    len: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.taken -= self.len;
        let next = state.take_first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(waiting: &mut Waiting) -> Option<Share> {
        match waiting.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(share) => Some(share),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shares_are_taken_in_order_and_given_back() {
        let budget = Arc::new(Budget::new(10));
        let (mut first, mut second, mut third) =
            (budget.share(6), budget.share(5), budget.share(1));
        let share = poll(&mut first).unwrap();
        assert!(poll(&mut second).is_none());
        assert!(poll(&mut third).is_none(), "it would fit, but it is not its turn");
        drop(share);
        let share = poll(&mut second).unwrap();
        assert!(poll(&mut third).is_some());
        drop(share);
    }

    #[test]
    fn who_leaves_the_queue_holds_nobody_up() {
        let budget = Arc::new(Budget::new(10));
        let mut first = budget.share(10);
        let share = poll(&mut first).unwrap();
        let second = budget.share(10);
        let mut third = budget.share(10);
        drop(second);
        assert!(poll(&mut third).is_none());
        drop(share);
        assert!(poll(&mut third).is_some());
    }

    #[test]
    fn more_than_the_whole_budget_is_taken_alone() {
        let budget = Arc::new(Budget::new(10));
        let mut small = budget.share(1);
        let mut huge = budget.share(100);
        let share = poll(&mut small).unwrap();
        assert!(poll(&mut huge).is_none());
        drop(share);
        assert!(poll(&mut huge).is_some());
    }
}
