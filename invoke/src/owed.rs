//! What others have caused and has not left yet: results, and news of what has run. It cannot be refused as calls are, so each kind of it has a share: no I/O.
//!
//! What stands within the first two blocks that wait for an end is free, and costs no count. The rest is counted in *spans* of its stream, until a span has left: so
//! a count may be too high by what one span holds, [`SPAN`] at most.

use std::{collections::VecDeque, mem};

use rustc_hash::FxHashMap;

use crate::bounds::{Account, Bounds, SPAN};

/// All of a worker.
#[derive(Debug)]
pub(crate) struct Owed {
    bounds: Bounds,
    results: FxHashMap<Account, Waiting>,
    /// Bytes of all results.
    of_results: u64,
    others: FxHashMap<Account, Waiting>,
    /// In this round, all results were looked at.
    has_looked: bool,
}

/// What waits of one account.
#[derive(Debug)]
struct Waiting {
    /// The end that it waits for.
    to: u32,
    spans: VecDeque<Span>,
    bytes: u64,
}

/// From one position in a stream to another, and bytes of one account in between.
#[derive(Debug)]
struct Span {
    begin: u64,
    end: u64,
    bytes: u64,
}

impl Owed {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let (results, others) = Default::default();
        Self { bounds, results, of_results: 0, others, has_looked: false }
    }

    /// A round of progress begins: what waits may have left since the last one.
    #[inline]
    pub(crate) fn begin_round(&mut self) {
        self.has_looked = false;
    }

    /// Whether so many bytes more may wait. `has_left`: whether the stream to an end has left up to a position. Once a round this takes as long as there are ends
    /// for which results wait.
    pub(crate) fn has_room(
        &mut self,
        account: Account,
        bytes: u64,
        has_left: impl Fn(u32, u64) -> bool,
    ) -> bool {
        self.leave(account, &has_left);
        // One is always let in.
        let of_account = self.of(account).get(&account).map_or(0, |it| it.bytes);
        if of_account > 0 && of_account + bytes > self.bounds.share(account) {
            return false;
        }
        if !account.is_of_results() || self.fits(bytes) {
            return true;
        }
        if !mem::replace(&mut self.has_looked, true) {
            self.results.retain(|_, waiting| {
                self.of_results -= waiting.leave(&has_left);
                !waiting.spans.is_empty()
            });
        }
        self.fits(bytes)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.of_results + bytes <= self.bounds.total
    }

    /// A record of so many bytes for which there was room was written, up to this position in the stream to `to`.
    pub(crate) fn add(&mut self, account: Account, to: u32, position: u64, bytes: u64) {
        if account.is_of_results() {
            self.of_results += bytes;
        }
        let waiting = self.of(account).entry(account);
        let waiting = waiting.or_insert_with(|| Waiting { to, spans: VecDeque::new(), bytes: 0 });
        waiting.add(position, bytes);
    }

    /// An end is gone, and nothing waits for it any more.
    pub(crate) fn lose(&mut self, end: u32) {
        let lost = self.results.extract_if(|_, waiting| waiting.to == end);
        self.of_results -= lost.map(|(_, it)| it.bytes).sum::<u64>();
        self.others.retain(|_, waiting| waiting.to != end);
    }

    /// What has left is counted no more.
    fn leave(&mut self, account: Account, has_left: impl Fn(u32, u64) -> bool) {
        let of = self.of(account);
        let Some(waiting) = of.get_mut(&account) else { return };
        let left = waiting.leave(has_left);
        if waiting.spans.is_empty() {
            of.remove(&account);
        }
        if account.is_of_results() {
            self.of_results -= left;
        }
    }

    fn of(&mut self, account: Account) -> &mut FxHashMap<Account, Waiting> {
        if account.is_of_results() { &mut self.results } else { &mut self.others }
    }

    /// How many spans are counted.
    #[cfg(test)]
    pub(crate) fn spans(&self) -> usize {
        self.results.values().chain(self.others.values()).map(|it| it.spans.len()).sum()
    }
}

impl Account {
    fn is_of_results(self) -> bool {
        matches!(self, Self::Results(_))
    }
}

impl Waiting {
    fn add(&mut self, position: u64, bytes: u64) {
        self.bytes += bytes;
        match self.spans.back_mut() {
            Some(last) if position - last.begin <= SPAN => {
                (last.end, last.bytes) = (position, last.bytes + bytes);
            }
            _ => {
                let begin = position.saturating_sub(bytes);
                self.spans.push_back(Span { begin, end: position, bytes });
            }
        }
    }

    /// Bytes that have left.
    fn leave(&mut self, has_left: impl Fn(u32, u64) -> bool) -> u64 {
        let before = self.bytes;
        while let Some(span) = self.spans.front()
            && has_left(self.to, span.end)
        {
            self.bytes -= span.bytes;
            self.spans.pop_front();
        }
        before - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const ACCOUNTS: [Account; 5] = [
        Account::Results(0),
        Account::Results(1),
        Account::Reasons(0),
        Account::News(7),
        Account::Reads(1),
    ];
    /// News of the root go to the first end.
    const TO: [usize; 5] = [0, 1, 0, 0, 1];

    #[derive(Debug, Clone)]
    enum Step {
        Write(usize, u64),
        Leave(usize, u64),
        Lose(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0..5_usize, 1..3000_u64).prop_map(|(account, bytes)| Step::Write(account, bytes)),
            4 => (0..2_usize, 1..9000_u64).prop_map(|(end, bytes)| Step::Leave(end, bytes)),
            1 => (0..2_usize).prop_map(Step::Lose),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn what_waits_is_counted_until_it_has_left_and_bounded_for_each_and_in_all(steps in steps()) {
            let bounds = Bounds { results: 20_000, total: 30_000, ..Bounds::new(0, 0, 2) };
            let mut owed = Owed::new(bounds);
            // Of each record: its account, its end in its stream, its bytes.
            let mut all: Vec<(usize, u64, u64)> = Vec::new();
            let (mut written, mut left) = ([0; 2], [0; 2]);
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let (account, to) = (ACCOUNTS[at], TO[at]);
                        owed.begin_round();
                        let has_left = |end: u32, position| left[end as usize] >= position;
                        let has_room = owed.has_room(account, bytes, has_left);
                        let of = |at: usize| -> u64 {
                            let waiting = all.iter().filter(|it| it.0 == at && it.1 > left[TO[at]]);
                            waiting.map(|it| it.2).sum()
                        };
                        let (waiting, of_results) = (of(at), of(0) + of(1));
                        let (share, is_result) = (bounds.share(account), at < 2);
                        let fits = |slack: u64| {
                            let of_one = waiting + bytes + slack <= share || waiting == 0;
                            of_one && (!is_result || of_results + bytes + 2 * slack <= 30_000)
                        };
                        prop_assert!(has_room || !fits(SPAN), "too early: {waiting} {of_results}");
                        prop_assert!(!has_room || fits(0), "too late: {waiting} {of_results}");
                        written[to] += bytes;
                        if has_room {
                            owed.add(account, u32::try_from(to).unwrap_or(0), written[to], bytes);
                            all.push((at, written[to], bytes));
                        }
                    }
                    Step::Leave(end, bytes) => left[end] = written[end].min(left[end] + bytes),
                    Step::Lose(end) => {
                        owed.lose(u32::try_from(end).unwrap_or(0));
                        all.retain(|it| TO[it.0] != end);
                        left[end] = written[end];
                    }
                }
            }
        }
    }

    #[test]
    fn all_that_waits_is_looked_at_once_a_round() {
        const ENDS: u32 = 1000;
        let mut owed =
            Owed::new(Bounds { total: 10 * u64::from(ENDS), ..Bounds::new(1 << 20, 0, 2) });
        let (is_there, looks) = (Cell::new(true), Cell::new(0));
        let has_left = |_, _| {
            looks.set(looks.get() + 1);
            !is_there.get()
        };
        for end in 0..ENDS {
            assert!(owed.has_room(Account::Results(end), 10, has_left));
            owed.add(Account::Results(end), end, 10, 10);
        }
        looks.set(0);
        for end in 0..ENDS {
            assert!(!owed.has_room(Account::Results(end), 10, has_left), "all is taken");
        }
        // All of them once, and its own for each.
        assert!(looks.get() <= 2 * ENDS, "{} looks for {ENDS} results", looks.get());
        is_there.set(false);
        owed.begin_round();
        assert!(owed.has_room(Account::Results(ENDS), 10, has_left), "all has left");
        assert_eq!(owed.spans(), 0);
    }
}
