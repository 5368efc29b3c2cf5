//! What is known of each call, and whether it is as it should be.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    judge::{Sides, ends_by_itself, is_possible},
    story::{Call, Story},
};

/// A process of the story: its present incarnation.
#[derive(Debug, Clone, Default)]
pub(super) struct Side {
    pub(super) incarnation: u32,
    /// It was neither killed nor closed.
    pub(super) lives: bool,
    /// It has stopped for ever.
    pub(super) hangs: bool,
    pub(super) was_restarted: bool,
    /// This incarnation or one before has drained.
    pub(super) has_drained: bool,
    /// Until when this incarnation is stopped.
    pub(super) stopped_until: u64,
    /// Until when any of its incarnations was.
    pub(super) disturbed_until: u64,
}

/// What became of a call that a process was to make.
#[derive(Debug)]
struct Record {
    call: Call,
    /// The incarnations of its two sides when it was to be made.
    incarnations: (u32, u32),
}

/// What its caller has said of it, maybe before its time in the story.
#[derive(Debug, Default)]
struct Told {
    begun: Option<u64>,
    /// When, and how: the kind of its error or of its success, and a sentence.
    ended: Option<(u64, String, String)>,
}

/// All calls, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Calls {
    records: BTreeMap<u64, Record>,
    told: BTreeMap<u64, Told>,
    served: BTreeMap<u64, u32>,
    /// Who has closed the connection to whom.
    forgotten: BTreeSet<(usize, usize)>,
}

/// How much later than its deadline a call may end in nanoseconds: the machine may be busy.
const SLACK: u64 = 10_000_000_000;

/// Successes.
const GOOD: [&str; 3] = ["Value", "Sent", "GivenUp"];

impl Calls {
    pub(super) fn add(&mut self, number: u64, call: &Call, sides: &[Side]) {
        let incarnations = (sides[call.from].incarnation, sides[call.to].incarnation);
        let call = call.clone();
        self.records.insert(number, Record { call, incarnations });
    }

    pub(super) fn begun(&mut self, number: u64, at: u64) {
        self.told.entry(number).or_default().begun = Some(at);
    }

    pub(super) fn ended(&mut self, number: u64, at: u64, how: &str) -> Result<(), String> {
        let (kind, text) = how.split_once(' ').unwrap_or((how, ""));
        let told = self.told.entry(number).or_default();
        match told.ended.replace((at, kind.to_owned(), text.to_owned())) {
            None => Ok(()),
            Some(before) => Err(format!("twice: call {number} ended twice, first by {before:?}")),
        }
    }

    pub(super) fn forgotten(&mut self, from: usize, to: usize) {
        // Where both use one connection, it is closed for both.
        self.forgotten.extend([(from, to), (to, from)]);
    }

    /// A handler begins.
    pub(super) fn served(&mut self, number: u64) -> Result<(), String> {
        let count = self.served.entry(number).or_default();
        *count += 1;
        if *count > 1 {
            Err(format!("twice: call {number} was served {count} times"))
        } else {
            Ok(())
        }
    }

    /// A call that has not ended, of those that are waited for.
    pub(super) fn open(
        &self,
        sides: &[Side],
        is_waited_for: impl Fn(&Call) -> bool,
    ) -> Option<String> {
        let is_open = |number: &u64, record: &Record| {
            let has_ended = self.told.get(number).is_some_and(|told| told.ended.is_some());
            let from = &sides[record.call.from];
            let may_end = from.lives && !from.hangs && from.incarnation == record.incarnations.0;
            !has_ended && may_end && is_waited_for(&record.call)
        };
        let (number, record) =
            self.records.iter().find(|(number, record)| is_open(number, record))?;
        let served = self.served.get(number).copied().unwrap_or(0);
        let begun = if self.told.contains_key(number) { "begun" } else { "not begun" };
        Some(format!("call {number} ({}), {begun}, served {served} times,", record.call))
    }

    /// Whether all calls of living processes have ended as they may.
    pub(super) fn judge(&self, sides: &[Side]) -> Result<(), String> {
        self.records.iter().try_for_each(|(number, record)| {
            let pair = (record.call.from, record.call.to);
            let Some(told) = self.told.get(number) else { return Ok(()) };
            let was_served = self.served.contains_key(number);
            record.judge(*number, told, sides, (self.forgotten.contains(&pair), was_served))
        })
    }

    /// Whether a call had a value; where there are few places for calls, it may not have been made.
    pub(super) fn judge_probe(&self, number: u64, may_be_refused: bool) -> Result<(), String> {
        let call = self.records.get(&number).map(|record| record.call.to_string());
        match self.told.get(&number).and_then(|told| told.ended.as_ref()) {
            Some((_, kind, _)) if kind == "Value" => Ok(()),
            Some((_, kind, _)) if kind == "NotMade" && may_be_refused => Ok(()),
            ended => Err(format!("probe: {} ended by {ended:?}", call.unwrap_or_default())),
        }
    }
}

impl Record {
    fn judge(
        &self,
        number: u64,
        Told { begun, ended }: &Told,
        sides: &[Side],
        (is_forgotten, was_served): (bool, bool),
    ) -> Result<(), String> {
        let Self { call, incarnations } = self;
        let (from, to) = (&sides[call.from], &sides[call.to]);
        let Some((at, kind, text)) = ended else { return Ok(()) };
        if !from.lives || from.hangs || from.incarnation != incarnations.0 {
            return Ok(());
        }
        if let (Some(deadline), Some(begun)) = (call.deadline, *begun) {
            let due = (begun + deadline).max(from.disturbed_until) + SLACK;
            if *at > due {
                let late = (at - begun - deadline) / 1000;
                return Err(format!(
                    "late: call {number} ({call}) ended {late} us after its deadline"
                ));
            }
        }
        let known = Sides {
            target_has_drained: to.has_drained && !was_served,
            was_disturbed: from.disturbed_until > 0 || to.disturbed_until > 0,
            target_is_well: to.lives && !to.hangs && to.incarnation == incarnations.1,
            target_was_restarted: to.was_restarted,
            is_forgotten,
        };
        if GOOD.contains(&kind.as_str()) || is_possible(call, kind, known) {
            return Ok(());
        }
        Err(format!("outcome: call {number} ({call}) ended by {kind}: {text}"))
    }
}

/// Whether a call ends by itself, whatever others do.
pub(super) fn is_independent(story: &Story, call: &Call, sides: &[Side]) -> bool {
    !sides[call.to].hangs && ends_by_itself(story, call)
}
