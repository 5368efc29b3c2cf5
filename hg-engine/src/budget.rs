//! How many bytes of large arguments a port has pulled and not served yet: fair shares with a queue.
//!
//! Requests take their part in the order in which they came, but those that have no room are passed: an origin has no more than is
//! left for all others ([`Shares`]), so that one whose memory cannot be pulled, since it stands still, holds up nobody else. What is
//! larger than a half of the budget is refused before it comes here.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use hg_core::shares::Shares;
use hg_na::Peer;

use crate::{contain::contain, lock::Mutex};

/// Bytes that may be taken at a time.
#[derive(Debug)]
pub(crate) struct Budget(Mutex<State>);

#[derive(Debug)]
struct State {
    shares: Shares<Peer>,
    queue: VecDeque<Entry>,
    /// Of the next entry.
    next: u64,
}

/// A request that waits.
#[derive(Debug)]
struct Entry {
    number: u64,
    origin: Peer,
    len: u64,
    /// Who is to be told.
    waker: Option<Waker>,
}

impl Budget {
    pub(crate) fn new(max: u64) -> Self {
        let (shares, queue) = (Shares::new(max), VecDeque::new());
        Self(Mutex::new(State { shares, queue, next: 0 }))
    }

    /// Takes a part of it for an origin, in turn.
    pub(crate) fn share(self: &Arc<Self>, origin: Peer, len: u64) -> Share {
        let number = self.change(|state| {
            let number = state.next;
            state.next += 1;
            state.queue.push_back(Entry { number, origin, len, waker: None });
            number
        });
        Share { budget: Arc::clone(self), number, origin, len }
    }

    /// Changes something, and gives those their parts that have room then.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock();
        let result = change(&mut state);
        let State { shares, queue, .. } = &mut *state;
        let mut woken = Vec::new();
        while let Some(first) = queue.iter().position(|it| shares.admits(it.origin, it.len))
            && let Some(Entry { origin, len, waker, .. }) = queue.remove(first)
        {
            shares.take(origin, len);
            woken.extend(waker);
        }
        drop(state);
        woken.into_iter().for_each(|waker| contain("a waker", || waker.wake()));
        result
    }
}

/// A part of the budget, or a place in the queue for one. Dropped, it gives up the one or the other.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    number: u64,
    origin: Peer,
    len: u64,
}

impl Share {
    /// Ready once its turn has come.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut waker = Some(context.waker().clone());
        let mut state = self.budget.0.lock();
        let entry = state.queue.iter_mut().find(|it| it.number == self.number);
        let waits = entry.map(|it| mem::swap(&mut it.waker, &mut waker)).is_some();
        drop(state);
        drop(waker); // A user's: not under the lock.
        if waits { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let left = self.budget.change(|State { shares, queue, .. }| {
            let place = queue.iter().position(|it| it.number == self.number);
            if place.is_none() {
                shares.give(self.origin, self.len); // Its turn had come.
            }
            place.and_then(|place| queue.remove(place))
        });
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, task::Wake};

    use super::*;

    fn poll(share: &mut Share) -> bool {
        share.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn take(budget: &Arc<Budget>, origin: Peer, len: u64) -> Option<Share> {
        let mut share = budget.share(origin, len);
        poll(&mut share).then_some(share)
    }

    const ORIGIN: Peer = Peer::new(1, 1);
    const OTHER: Peer = Peer::new(2, 1);

    #[test]
    fn shares_are_taken_in_order_and_given_back() {
        let budget = Arc::new(Budget::new(19));
        let [mut first, mut second, mut third] = [6, 6, 7].map(|len| budget.share(ORIGIN, len));
        assert!(poll(&mut first) && !poll(&mut second));
        drop(first);
        assert!(
            !poll(&mut third),
            "there is no room beside the second one's part, which is kept for it"
        );
        assert!(poll(&mut second) && !poll(&mut third));
        drop(second);
        assert!(poll(&mut third));
    }

    #[test]
    fn whatever_one_origin_takes_in_one_piece_there_is_room_for_the_next_ones() {
        let budget = Arc::new(Budget::new(10));
        let most_of = |origin| {
            let lens = (1..=10).rev();
            let shares = lens.filter_map(|len| Some((len, take(&budget, origin, len)?)));
            shares.take(1).next()
        };
        let held: Vec<_> = [ORIGIN, OTHER, Peer::new(3, 1)].into_iter().map(most_of).collect();
        let lens: Vec<_> = held.iter().flatten().map(|(len, _)| *len).collect();
        assert_eq!(lens, [5, 3, 1]);
    }

    #[test]
    fn an_origin_that_has_its_share_is_passed_by_others() {
        let budget = Arc::new(Budget::new(100));
        let held: Vec<_> = (0..5).map(|_| take(&budget, ORIGIN, 10).unwrap()).collect();
        let mut more = budget.share(ORIGIN, 10);
        assert!(!poll(&mut more));
        let share = take(&budget, OTHER, 20);
        assert!(share.is_some() && !poll(&mut more));
        drop(held);
        assert!(poll(&mut more));
    }

    #[test]
    fn who_leaves_the_queue_holds_nobody_up() {
        let budget = Arc::new(Budget::new(19));
        let share = take(&budget, ORIGIN, 10).unwrap();
        let second = budget.share(OTHER, 10);
        let mut third = budget.share(OTHER, 10);
        drop(second);
        assert!(!poll(&mut third));
        drop(share);
        assert!(poll(&mut third));
    }

    #[test]
    fn who_leaves_when_its_turn_has_come_gives_its_part_back() {
        let budget = Arc::new(Budget::new(19));
        let share = take(&budget, ORIGIN, 10).unwrap();
        let (second, mut third) = (budget.share(OTHER, 10), budget.share(OTHER, 10));
        drop(share);
        assert!(!poll(&mut third), "the second one's turn has come");
        drop(second);
        assert!(poll(&mut third));
        drop(third);
        assert_eq!(budget.0.lock().shares.total(), 0, "all was given back");
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_woken() {
        struct Wakes(Option<mpsc::Sender<()>>);
        impl Wake for Wakes {
            fn wake(self: Arc<Self>) {
                self.0.as_ref().expect("the test's own panic").send(()).expect("the test hears");
            }
        }
        let (told, hears) = mpsc::channel();
        let budget = Arc::new(Budget::new(19));
        let share = take(&budget, ORIGIN, 10);
        let mut waiting = [OTHER, Peer::new(3, 1)].map(|origin| budget.share(origin, 6));
        for (waiting, wakes) in waiting.iter_mut().zip([None, Some(told)]) {
            let waker = Waker::from(Arc::new(Wakes(wakes)));
            assert!(waiting.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(share);
        assert_eq!(hears.try_recv(), Ok(()));
    }
}
