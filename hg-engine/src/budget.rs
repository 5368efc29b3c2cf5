//! How many bytes of large arguments a port has pulled and not served yet: fair shares with a queue.
//!
//! Requests take their part in the order in which they came, but those that have no room are passed: an origin has no more than is
//! left for all others ([`Shares`]), so that one whose memory cannot be pulled, since it stands still, holds up nobody else. What is
//! larger than the whole budget is refused before it comes here.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use hg_core::shares::Shares;
use hg_na::Peer;

use crate::lock::Mutex;

/// Bytes that may be taken at a time.
#[derive(Debug)]
pub(crate) struct Budget(Mutex<State>);

#[derive(Debug)]
struct State {
    shares: Shares<Peer>,
    next_ticket: u64,
    queue: VecDeque<Entry>,
}

/// A request that waits.
#[derive(Debug)]
struct Entry {
    ticket: u64,
    origin: Peer,
    len: u64,
    waker: Option<Waker>,
}

impl State {
    /// The first one that has room.
    fn first(&self) -> Option<usize> {
        self.queue.iter().position(|entry| self.shares.admits(entry.origin, entry.len))
    }

    /// Who is to look again, to be woken without the lock; it leaves its waker anew unless its turn has come.
    fn take_first(&mut self) -> Option<Waker> {
        let first = self.first()?;
        self.queue.get_mut(first)?.waker.take()
    }

    fn place_of(&self, ticket: u64) -> Option<usize> {
        self.queue.iter().position(|entry| entry.ticket == ticket)
    }
}

impl Budget {
    pub(crate) fn new(max: u64) -> Self {
        let shares = Shares::new(max);
        Self(Mutex::new(State { shares, next_ticket: 0, queue: VecDeque::new() }))
    }

    /// Takes a part of it for an origin, in turn.
    pub(crate) fn share(self: &Arc<Self>, origin: Peer, len: u64) -> Waiting {
        let mut state = self.0.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(Entry { ticket, origin, len, waker: None });
        Waiting { budget: Arc::clone(self), ticket: Some(ticket) }
    }
}

/// A place in the queue; leaving it gives the place up.
#[derive(Debug)]
pub(crate) struct Waiting {
    budget: Arc<Budget>,
    /// `None` once the share was taken.
    ticket: Option<u64>,
}

impl Waiting {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Share> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let waker = context.waker().clone();
        let mut state = self.budget.0.lock();
        let place = state.place_of(ticket);
        if place.is_some()
            && place == state.first()
            && let Some(Entry { origin, len, waker: before, .. }) =
                place.and_then(|place| state.queue.remove(place))
        {
            state.shares.take(origin, len);
            self.ticket = None;
            let next = state.take_first();
            drop(state);
            next.into_iter().for_each(Waker::wake);
            drop(before);
            return Poll::Ready(Share { budget: Arc::clone(&self.budget), origin, len });
        }
        let entry = place.and_then(|place| state.queue.get_mut(place));
        let before = entry.and_then(|entry| entry.waker.replace(waker));
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.budget.0.lock();
            let place = state.place_of(ticket);
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
    origin: Peer,
    len: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.budget.0.lock();
        state.shares.give(self.origin, self.len);
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

    const ORIGIN: Peer = Peer::new(1, 1);
    const OTHER: Peer = Peer::new(2, 1);

    #[test]
    fn shares_are_taken_in_order_and_given_back() {
        let budget = Arc::new(Budget::new(10));
        let mut waiting = [6, 6, 7].map(|len| budget.share(ORIGIN, len));
        let share = poll(&mut waiting[0]).unwrap();
        assert!(poll(&mut waiting[1]).is_none());
        drop(share);
        assert!(poll(&mut waiting[2]).is_none(), "it would fit, but it is not its turn");
        let share = poll(&mut waiting[1]).unwrap();
        assert!(poll(&mut waiting[2]).is_none());
        drop(share);
        assert!(poll(&mut waiting[2]).is_some());
    }

    #[test]
    fn an_origin_that_has_its_share_is_passed_by_others() {
        let budget = Arc::new(Budget::new(100));
        let held: Vec<_> = (0..5).map(|_| poll(&mut budget.share(ORIGIN, 10)).unwrap()).collect();
        let mut more = budget.share(ORIGIN, 10);
        assert!(poll(&mut more).is_none());
        let share = poll(&mut budget.share(OTHER, 20));
        assert!(share.is_some() && poll(&mut more).is_none());
        drop(held);
        assert!(poll(&mut more).is_some());
    }

    #[test]
    fn who_leaves_the_queue_holds_nobody_up() {
        let budget = Arc::new(Budget::new(10));
        let share = poll(&mut budget.share(ORIGIN, 10)).unwrap();
        let second = budget.share(OTHER, 10);
        let mut third = budget.share(OTHER, 10);
        drop(second);
        assert!(poll(&mut third).is_none());
        drop(share);
        assert!(poll(&mut third).is_some());
    }
}
