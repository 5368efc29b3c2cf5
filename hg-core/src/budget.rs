//! How many bytes of large arguments a context has pulled and not served yet: fair shares with a queue.
//!
//! Requests take their part in the order in which they came, but those that have no room are passed: an origin has no more than is
//! left for all others ([`Shares`]), so that one whose memory cannot be pulled, since it stands still, holds up nobody else. What is
//! larger than a half of the budget is refused before it comes here.
//!
//! One that needs much could be passed for ever by smaller ones that always come again. So the first one, once it has waited for its
//! patience, has what becomes free kept for it, for as long again. Where its room does not come by then, who holds it may stand still:
//! all others are let pass for as long, what became free meanwhile to those first that came first, and it comes again with twice the patience. So it waits no longer than some times what others
//! need to be served ([`PATIENCE_MAX`] at most), and those have a half of the time whatever becomes of it.

use std::{
    collections::VecDeque,
    mem,
    task::Waker,
    time::{Duration, Instant},
};

use hg_na::Peer;

use crate::{
    deferred::{Action, Deferred},
    shares::Shares,
};

/// So long the first of those that wait is passed, and then others wait for it; twice as long the next time.
pub const PATIENCE: Duration = Duration::from_millis(50);
/// Not longer than this.
pub const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// Bytes that may be taken at a time.
#[derive(Debug)]
pub struct Budget {
    shares: Shares<Peer>,
    queue: VecDeque<Entry>,
    /// Of the next entry.
    next: u64,
    /// Of the last reading of the clock.
    now: Instant,
    /// Until when what becomes free is kept for the first one.
    kept_until: Option<Instant>,
    /// Until when nothing is.
    open_until: Instant,
}

/// A request that waits.
#[derive(Debug)]
struct Entry {
    number: u64,
    part: Part,
    /// Who is to be told.
    waker: Option<Waker>,
    /// Since when it was passed.
    since: Instant,
    patience: Duration,
}

/// What a request is to have of it.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Who asks.
    pub origin: Peer,
    /// How many bytes.
    pub len: u64,
}

impl Budget {
    /// Nobody has anything of so many bytes.
    #[must_use]
    pub fn new(max: u64, now: Instant) -> Self {
        let (shares, queue) = (Shares::new(max), VecDeque::new());
        Self { shares, queue, next: 0, now, kept_until: None, open_until: now }
    }

    /// What was given of it and not given back.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shares.total()
    }

    /// Asks for a part, which is given in turn; its number.
    pub fn ask(&mut self, part: Part, deferred: &mut Deferred) -> u64 {
        let (number, since) = (self.next, self.now);
        self.next += 1;
        self.queue.push_back(Entry { number, part, waker: None, since, patience: PATIENCE });
        self.give(deferred);
        number
    }

    /// Whether one still waits: then it has another waker than before.
    pub fn waits(&mut self, number: u64, waker: &mut Option<Waker>) -> bool {
        let entry = self.queue.iter_mut().find(|it| it.number == number);
        entry.map(|it| mem::swap(&mut it.waker, waker)).is_some()
    }

    /// A part is given back, or nobody waits for it any more.
    pub fn end(&mut self, number: u64, part: Part, deferred: &mut Deferred) {
        match self.queue.iter().position(|it| it.number == number) {
            Some(at) => {
                let waker = self.remove(at).and_then(|it| it.waker);
                deferred.extend(waker.map(|waker| Action::Drop(Box::new(waker))));
            }
            None => self.shares.give(part.origin, part.len),
        }
        self.give(deferred);
    }

    /// When [`Budget::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.queue.front()?;
        self.kept_until.or_else(|| first.since.max(self.open_until).checked_add(first.patience))
    }

    /// The time.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, deferred: &mut Deferred) {
        self.now = now;
        if !self.queue.is_empty() {
            self.give(deferred);
        }
    }

    /// Gives those their parts that have room.
    fn give(&mut self, deferred: &mut Deferred) {
        loop {
            self.take_turns();
            let passing = if self.kept_until.is_some() { 1 } else { self.queue.len() };
            let fits = |it: &Entry| self.shares.admits(it.part.origin, it.part.len);
            let first = self.queue.iter().take(passing).position(fits);
            let Some(entry) = first.and_then(|first| self.remove(first)) else { return };
            self.shares.take(entry.part.origin, entry.part.len);
            deferred.extend(entry.waker.map(Action::Wake));
        }
    }

    /// Whether what becomes free is kept for the first one is another question now and then.
    fn take_turns(&mut self) {
        if self.next_deadline().is_none_or(|at| at > self.now) {
            return;
        }
        let is_over = self.kept_until.take().is_some();
        let Some(first) = self.queue.front_mut() else { return };
        if !is_over {
            self.kept_until = self.now.checked_add(first.patience);
            return;
        }
        first.since = self.now;
        self.open_until = self.now + first.patience;
        first.patience = (first.patience * 2).min(PATIENCE_MAX);
    }

    fn remove(&mut self, at: usize) -> Option<Entry> {
        if at == 0 {
            self.kept_until = None;
        }
        self.queue.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    const ORIGIN: Peer = Peer::new(1, 1);
    const OTHER: Peer = Peer::new(2, 1);

    /// A budget and what it has deferred.
    type Shared = Rc<RefCell<(Budget, Deferred)>>;

    /// A part, or a place in the queue.
    struct Share(Shared, u64, Part);

    impl Drop for Share {
        fn drop(&mut self) {
            let (budget, deferred) = &mut *self.0.borrow_mut();
            budget.end(self.1, self.2, deferred);
        }
    }

    impl Share {
        fn has(&self) -> bool {
            !self.0.borrow_mut().0.waits(self.1, &mut None)
        }
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn budget(max: u64) -> Shared {
        Rc::new(RefCell::new((Budget::new(max, Instant::now()), Deferred::new())))
    }

    fn ask(budget: &Shared, origin: Peer, len: u64) -> Share {
        let part = Part { origin, len };
        let (it, deferred) = &mut *budget.borrow_mut();
        Share(Rc::clone(budget), it.ask(part, deferred), part)
    }

    fn take(budget: &Shared, origin: Peer, len: u64) -> Option<Share> {
        Some(ask(budget, origin, len)).filter(Share::has)
    }

    fn pass(budget: &Shared, time: Duration) {
        let (it, deferred) = &mut *budget.borrow_mut();
        it.handle_timeout(it.now + time, deferred);
    }

    #[test]
    fn shares_are_taken_in_order_and_given_back() {
        let budget = budget(19);
        let [first, second, third] = [6, 6, 7].map(|len| ask(&budget, ORIGIN, len));
        assert!(first.has() && !second.has());
        drop(first);
        assert!(
            !third.has(),
            "there is no room beside the second one's part, which is kept for it"
        );
        assert!(second.has() && !third.has());
        drop(second);
        assert!(third.has());
    }

    #[test]
    fn whatever_one_origin_takes_in_one_piece_there_is_room_for_the_next_ones() {
        let budget = budget(10);
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
        let budget = budget(100);
        let held: Vec<_> = (0..5).map(|_| take(&budget, ORIGIN, 10).unwrap()).collect();
        let more = ask(&budget, ORIGIN, 10);
        assert!(!more.has());
        let share = take(&budget, OTHER, 20);
        assert!(share.is_some() && !more.has());
        drop(held);
        assert!(more.has());
    }

    /// Two origins have smaller ones queued all the time, of which each takes a while to be served.
    #[test]
    fn a_quarter_finds_room_beside_one_that_stands_still_and_others_whose_smaller_ones_never_end() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let small = |origin| ask(&budget, Peer::new(origin, 1), 1);
        let mut busy: VecDeque<_> = (0..100).flat_map(|_| [small(3), small(4)]).collect();
        let large = ask(&budget, OTHER, 16);
        let mut served = 0;
        while !large.has() {
            let at = busy.iter().position(Share::has);
            let ended = at.and_then(|at| busy.remove(at));
            served += usize::from(ended.is_some());
            busy.extend(ended.map(|it| ask(&budget, it.2.origin, 1)));
            pass(&budget, PATIENCE / 8);
            assert!(served < 1000, "it waits for ever");
        }
        assert!(stands_still.is_some());
    }

    #[test]
    fn one_that_never_finds_room_leaves_the_others_time_and_is_not_all_that_comes_first() {
        let budget = budget(64);
        let stand_still =
            [(ORIGIN, 32), (OTHER, 16)].map(|(origin, len)| take(&budget, origin, len));
        assert!(stand_still.iter().all(Option::is_some));
        let hopeless = ask(&budget, Peer::new(3, 1), 16);
        let mut waited = [0; 2];
        for _ in 0..1000 {
            let small = ask(&budget, Peer::new(4, 1), 1);
            waited[usize::from(small.has())] += 1;
            pass(&budget, PATIENCE_MAX / 16);
        }
        assert!(waited.into_iter().all(|times| times > 100), "{waited:?} were passed, had room");
        // Behind it one more that has no room beside a part of which there always is one.
        let mut comes = ask(&budget, Peer::new(4, 1), 2);
        let next = ask(&budget, Peer::new(5, 1), 8);
        for _ in 0..1000 {
            comes = ask(&budget, Peer::new(4, 1), 2);
            pass(&budget, PATIENCE_MAX / 16);
        }
        drop(comes);
        assert!(next.has() && !hopeless.has());
    }

    #[test]
    fn who_leaves_the_queue_holds_nobody_up() {
        let budget = budget(19);
        let share = take(&budget, ORIGIN, 10).unwrap();
        let (second, third) = (ask(&budget, OTHER, 10), ask(&budget, OTHER, 10));
        drop(second);
        assert!(!third.has());
        drop(share);
        assert!(third.has());
    }

    #[test]
    fn who_leaves_when_its_turn_has_come_gives_its_part_back() {
        let budget = budget(19);
        let share = take(&budget, ORIGIN, 10).unwrap();
        let (second, third) = (ask(&budget, OTHER, 10), ask(&budget, OTHER, 10));
        drop(share);
        assert!(!third.has(), "the second one's turn has come");
        drop(second);
        assert!(third.has());
        drop(third);
        assert_eq!(budget.borrow().0.total(), 0, "all was given back");
    }
}
