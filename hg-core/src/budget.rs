//! How many bytes of large arguments a context has pulled and not served yet: fair shares with queues.
//!
//! The requests of one origin take their parts in the order in which they came, and so do the first ones of all origins; but whoever has
//! no room is passed by other origins: each has no more than is left for all others ([`Shares`]), so that one whose memory cannot be
//! pulled, since it stands still, holds up nobody else. What is larger than a half of the budget is refused before it comes here.
//!
//! One that needs much could be passed for ever by smaller ones that always come again. So the first one whose origin holds nothing, or a quarter at most with it, once
//! its patience is over, has what becomes free kept for it, for as long again. Where its room does not come by then, who holds it may
//! stand still: it goes behind all that wait, and comes again with twice the patience. However a keep ends, also if who waits leaves,
//! the next one's patience begins then: nobody is kept out for longer than half of the time, whatever the others do. One whose own
//! origin holds more needs nobody else's patience: those behind it wait for it, so that in the end its origin holds nothing; but
//! only as long as its patience lasts, since what is held may wait for one of them. Room that takes more than [`PATIENCE_MAX`] to come is
//! not waited for.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    task::Waker,
    time::{Duration, Instant},
};

use hg_na::Peer;
use rustc_hash::FxHashMap;

use crate::{
    deferred::{Action, Deferred},
    shares::Shares,
};

/// So long one that waits is passed, and then others wait for it; twice as long the next time.
pub const PATIENCE: Duration = Duration::from_millis(50);
/// Not longer than this.
pub const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Bytes that may be taken at a time.
#[derive(Debug)]
pub struct Budget {
    shares: Shares<Peer>,
    /// Those that wait, by their origins and turns.
    waiting: BTreeMap<(Peer, u64), Entry>,
    /// The first one of each origin.
    fronts: BTreeSet<(u64, Peer)>,
    /// Of those that wait, by their numbers.
    turns: FxHashMap<u64, (Peer, u64)>,
    /// Number of the next request, or turn of one that comes again.
    next: u64,
    /// Of the last reading of the clock.
    now: Instant,
    /// For whom what becomes free is kept, and until when.
    kept: Option<((u64, Peer), Instant)>,
    /// Since when nothing is, if nothing is.
    open_since: Instant,
    /// When the first one that somebody waits for has waited long enough.
    deadline: Option<Instant>,
    #[cfg(test)]
    gives: u32,
}

/// A request that waits.
#[derive(Debug)]
struct Entry {
    number: u64,
    part: Part,
    /// Who is to be told.
    waker: Option<Waker>,
    /// Since when it is the first one of its origin, or has been passed.
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

impl Entry {
    fn wait_longer(&mut self, now: Instant) {
        self.since = now;
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }
}

impl Budget {
    /// Nobody has anything of so many bytes.
    #[must_use]
    pub fn new(max: u64, now: Instant) -> Self {
        Self {
            shares: Shares::new(max),
            waiting: BTreeMap::new(),
            fronts: BTreeSet::new(),
            turns: FxHashMap::default(),
            next: 0,
            now,
            kept: None,
            open_since: now,
            deadline: None,
            #[cfg(test)]
            gives: 0,
        }
    }

    /// What was given of it and not given back.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shares.total()
    }

    /// Asks for a part, which is given in turn; its number.
    pub fn ask(&mut self, part: Part, deferred: &mut Deferred) -> u64 {
        let number = self.next;
        let since = self.now;
        self.insert(Entry { number, part, waker: None, since, patience: PATIENCE });
        self.give(deferred);
        number
    }

    /// Whether one still waits: then it has another waker than before.
    pub fn waits(&mut self, number: u64, waker: &mut Option<Waker>) -> bool {
        let place = self.turns.get(&number);
        let entry = place.and_then(|place| self.waiting.get_mut(place));
        entry.map(|it| mem::swap(&mut it.waker, waker)).is_some()
    }

    /// A part is given back, or nobody waits for it any more.
    pub fn end(&mut self, number: u64, part: Part, deferred: &mut Deferred) {
        match self.turns.get(&number) {
            Some(&(origin, turn)) => {
                let waker = self.remove((turn, origin)).and_then(|it| it.waker);
                deferred.extend(waker.map(|waker| Action::Drop(Box::new(waker))));
            }
            None => self.shares.give(part.origin, part.len),
        }
        self.give(deferred);
    }

    /// When [`Budget::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The time.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, deferred: &mut Deferred) {
        self.now = now;
        if self.deadline.is_some_and(|at| at <= now) {
            self.give(deferred);
        }
    }

    /// Gives those their parts that have room, and keeps what becomes free for one that has none, or does not any more.
    fn give(&mut self, deferred: &mut Deferred) {
        #[cfg(test)]
        {
            self.gives += 1;
        }
        let late = self.kept.filter(|(_, until)| *until <= self.now);
        if let Some(mut entry) = late.and_then(|(kept, _)| self.remove(kept)) {
            entry.wait_longer(self.now);
            self.insert(entry); // It goes behind all others.
        }
        while let Some(first) = self.first_that_fits() {
            self.take(first, deferred);
        }
        let own = self.in_their_own_way().filter(|(until, _)| *until <= self.now);
        for (_, first) in own.collect::<Vec<_>>() {
            self.pass_in_its_origin(first, deferred);
        }
        let own = self.in_their_own_way().map(|(until, _)| until).min();
        self.deadline = self.keep().into_iter().chain(own).min();
    }

    fn first_that_fits(&self) -> Option<(u64, Peer)> {
        match self.kept {
            Some((kept, _)) => Some(kept).filter(|it| self.fits(*it)),
            None => self.fronts.iter().copied().find(|it| self.fits(*it)),
        }
    }

    fn fits(&self, (turn, origin): (u64, Peer)) -> bool {
        let entry = self.waiting.get(&(origin, turn));
        entry.is_some_and(|it| self.shares.admits(origin, it.part.len))
    }

    /// Whether it waits for others than its own origin: that has nothing, or a quarter of all at most with it.
    fn is_owed_room(&self, (turn, origin): (u64, Peer)) -> bool {
        let (held, max) = (self.shares.of(origin), self.shares.total() + self.shares.left());
        let entry = self.waiting.get(&(origin, turn));
        held == 0 || entry.is_some_and(|it| held.saturating_add(it.part.len) <= max / 4)
    }

    fn take(&mut self, place: (u64, Peer), deferred: &mut Deferred) {
        if let Some(entry) = self.remove(place) {
            self.shares.take(entry.part.origin, entry.part.len);
            deferred.extend(entry.waker.map(Action::Wake));
        }
    }

    /// Those behind it that fit are not to wait for it any more, but those that come.
    fn pass_in_its_origin(&mut self, (turn, origin): (u64, Peer), deferred: &mut Deferred) {
        if let Some(first) = self.waiting.get_mut(&(origin, turn)) {
            first.wait_longer(self.now);
        }
        let all = self.waiting.range((origin, turn)..=(origin, u64::MAX)).skip(1);
        for turn in all.map(|((_, turn), _)| *turn).collect::<Vec<_>>() {
            if self.fits((turn, origin)) {
                self.take((turn, origin), deferred);
            }
        }
    }

    /// The first ones that have others of their origin behind them and are not owed room, and until when those wait too.
    fn in_their_own_way(&self) -> impl Iterator<Item = (Instant, (u64, Peer))> {
        let fronts = self.fronts.iter().copied().filter(|_| self.kept.is_none());
        fronts.filter_map(|(turn, origin)| {
            let mut all = self.waiting.range((origin, turn)..=(origin, u64::MAX));
            let (_, first) = all.next()?;
            let is_so = all.next().is_some() && !self.is_owed_room((turn, origin));
            is_so.then_some((first.since + first.patience, (turn, origin)))
        })
    }

    /// Keeps what becomes free for the first one that is owed room, once it has been passed for long enough; until when that
    /// or the present keep stays so.
    fn keep(&mut self) -> Option<Instant> {
        if self.kept.is_none() {
            let first = self.fronts.iter().copied().find(|it| self.is_owed_room(*it))?;
            let entry = self.waiting.get(&(first.1, first.0))?;
            let begin = entry.since.max(self.open_since) + entry.patience;
            if begin > self.now {
                return Some(begin);
            }
            self.kept = Some((first, self.now + entry.patience));
        }
        self.kept.map(|(_, until)| until)
    }

    /// The last one of its origin.
    fn insert(&mut self, entry: Entry) {
        let (turn, origin) = (self.next, entry.part.origin);
        self.next += 1;
        if self.front(origin).is_none() {
            self.fronts.insert((turn, origin));
        }
        self.turns.insert(entry.number, (origin, turn));
        self.waiting.insert((origin, turn), entry);
    }

    fn remove(&mut self, (turn, origin): (u64, Peer)) -> Option<Entry> {
        let entry = self.waiting.remove(&(origin, turn))?;
        self.turns.remove(&entry.number);
        if self.fronts.remove(&(turn, origin)) {
            let next = self.front(origin);
            self.fronts.extend(next);
            let next = next.and_then(|(turn, _)| self.waiting.get_mut(&(origin, turn)));
            next.into_iter().for_each(|it| it.since = self.now);
        }
        if self.kept.take_if(|(kept, _)| kept.0 == turn).is_some() {
            self.open_since = self.now;
        }
        Some(entry)
    }

    fn front(&self, origin: Peer) -> Option<(u64, Peer)> {
        let mut all = self.waiting.range((origin, 0)..=(origin, u64::MAX));
        all.next().map(|((origin, turn), _)| (*turn, *origin))
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::VecDeque, rc::Rc};

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
        pass(&budget, PATIENCE);
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
    fn a_backlog_of_one_origin_holds_up_nobody_else() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 16);
        let mut backlog: VecDeque<_> = (0..1000).map(|_| ask(&budget, OTHER, 16)).collect();
        pass(&budget, PATIENCE * 2);
        for other in 3..100 {
            assert!(take(&budget, Peer::new(other, 1), 1).is_some(), "{other} waits");
            let first = backlog.pop_front().unwrap();
            assert!(first.has(), "one after the other");
            drop(first);
            pass(&budget, PATIENCE / 8);
        }
        assert!(stands_still.is_some());
    }

    #[test]
    fn who_asks_and_leaves_again_and_again_holds_others_up_for_half_of_the_time() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let too_much = |connection| ask(&budget, Peer::new(connection, 1), 32);
        let mut leaves: VecDeque<_> =
            (10..30).map(|connection| (connection, too_much(connection))).collect();
        let mut waited = [0; 2];
        for time in 0..1000 {
            if time % 14 == 13
                && let Some((connection, leaver)) = leaves.pop_front()
            {
                drop(leaver);
                leaves.push_back((connection, too_much(connection)));
            }
            let small = ask(&budget, Peer::new(4, 1), 1);
            waited[usize::from(small.has())] += 1;
            pass(&budget, PATIENCE / 10);
        }
        assert!(
            waited[1] >= waited[0] && stands_still.is_some(),
            "{waited:?} were passed, had room"
        );
    }

    #[test]
    fn one_that_never_finds_room_leaves_its_own_origin_time() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let (hopeless, next) = (ask(&budget, OTHER, 32), ask(&budget, OTHER, 1));
        pass(&budget, PATIENCE);
        pass(&budget, PATIENCE);
        assert!(next.has() && !hopeless.has() && stands_still.is_some());
    }

    #[test]
    fn a_quarter_is_not_passed_by_its_own_origins_later_ones() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let mut own: VecDeque<_> = [take(&budget, OTHER, 1).unwrap()].into();
        let mut others: VecDeque<_> = [take(&budget, Peer::new(3, 1), 1).unwrap()].into();
        let large = ask(&budget, OTHER, 16);
        for _ in 0..20 {
            for (queue, origin) in [(&mut own, OTHER), (&mut others, Peer::new(3, 1))] {
                queue.push_back(ask(&budget, origin, 1));
                if queue.front().is_some_and(Share::has) {
                    queue.pop_front();
                }
            }
            pass(&budget, PATIENCE / 8);
        }
        assert!(large.has() && stands_still.is_some());
    }

    #[test]
    fn one_that_its_origins_own_part_leaves_no_room_for_is_passed_by_its_origins_later_ones() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let waits_for_next = take(&budget, OTHER, 1);
        let (large, next) = (ask(&budget, OTHER, 20), ask(&budget, OTHER, 1));
        assert!(!next.has());
        pass(&budget, PATIENCE);
        assert!(next.has() && !large.has());
        assert!(stands_still.is_some() && waits_for_next.is_some());
    }

    #[test]
    fn a_quarter_in_all_finds_room_for_an_origin_that_always_holds_some_of_it() {
        let budget = budget(64);
        let held = [take(&budget, ORIGIN, 32), take(&budget, OTHER, 1)];
        let others = || [3, 4].map(|origin| ask(&budget, Peer::new(origin, 1), 4));
        let mut busy: VecDeque<_> = (0..20).flat_map(|_| others()).collect();
        let large = ask(&budget, OTHER, 15);
        for _ in 0..100 {
            let ended = busy.iter().position(Share::has).and_then(|at| busy.remove(at));
            busy.extend(ended.map(|it| ask(&budget, it.2.origin, 4)));
            pass(&budget, PATIENCE / 8);
        }
        assert!(large.has() && held.iter().all(Option::is_some));
    }

    #[test]
    fn rounds_before_the_deadline_look_at_nobody() {
        let budget = budget(64);
        let stands_still = take(&budget, ORIGIN, 32);
        let waits = ask(&budget, OTHER, 32);
        let before = budget.borrow().0.gives;
        (0..7).for_each(|_| pass(&budget, PATIENCE / 8));
        assert_eq!(budget.borrow().0.gives, before);
        pass(&budget, PATIENCE / 8);
        assert_eq!(budget.borrow().0.gives, before + 1);
        assert!(stands_still.is_some() && !waits.has());
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
