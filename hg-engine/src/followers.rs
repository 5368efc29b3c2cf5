//! Who waits for the role, in turn, and for whom it is kept.
//!
//! A plain table: the state's lock guards it, and whoever has unlocked that tells those whom it gives. The unit tests search
//! every order in which threads can come by the role.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use hg_core::operations::OperationId;

use crate::platform::Thread;

/// Times in a row that a thread takes the role while others are in line, after which it is *busy*.
const TAKES_UNTIL_BUSY: u32 = 4;
/// How long a busy thread has the role again and again before it goes to the next one in line.
const TURN: Duration = Duration::from_micros(100);

/// Those of one port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Followers<T = Thread> {
    /// Somebody is in line, or the role is kept for somebody: the one thing to look at where that is not so.
    any: bool,
    line: VecDeque<Follower<T>>,
    keeper: Option<Keeper<T>>,
    turn: Option<Turn<T>>,
    /// Whoever has the role comes back for it at once, each time.
    is_busy: bool,
}

/// A thread in line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Follower<T> {
    thread: T,
    /// What it waits for; `None`: for the role alone.
    id: Option<OperationId>,
    /// It need not be told of anything: it looks by itself before long.
    is_patient: bool,
    /// It was told that the role is free, and has not come yet.
    is_told: bool,
}

/// For whom the role is kept: nobody else takes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Keeper<T> {
    /// The next one in line, until it has come.
    Next(T),
    /// A foreign loop, while it lives: the thread that it runs in, and whether it was told that it may sleep.
    Loop(T, bool),
}

/// Who has taken the role last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Turn<T> {
    of: T,
    /// How often in a row.
    takes: u32,
    since: Instant,
}

impl<T> Default for Followers<T> {
    fn default() -> Self {
        Self { any: false, line: VecDeque::new(), keeper: None, turn: None, is_busy: false }
    }
}

impl<T: Clone + PartialEq> Followers<T> {
    /// Whether anybody is to be asked or told.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether the role, which is free, may be taken by this thread; it takes it then, and is in line no longer. One that waits for
    /// no call of its own, and only makes progress, is never busy.
    pub(crate) fn take(&mut self, me: &T, now: Instant, is_caller: bool) -> bool {
        match &self.keeper {
            Some(Keeper::Next(it) | Keeper::Loop(it, _)) if it != me => return false,
            Some(Keeper::Next(_)) => self.keeper = None,
            Some(Keeper::Loop(..)) => return true,
            // A patient one that takes it unasked: nobody has come back for it.
            None if self.line.iter().any(|it| it.thread == *me && it.is_patient) => {
                self.is_busy = false;
            }
            None => {}
        }
        self.line.retain(|it| it.thread != *me);
        match &mut self.turn {
            _ if !is_caller => self.turn = None,
            Some(turn) if turn.of == *me => turn.takes = turn.takes.saturating_add(1),
            _ => self.turn = Some(Turn { of: me.clone(), takes: 0, since: now }),
        }
        let is_again = self.turn.as_ref().is_some_and(|turn| turn.takes >= TAKES_UNTIL_BUSY);
        self.is_busy = (self.is_busy || is_again) && !self.line.is_empty();
        self.look();
        true
    }

    /// The role is free again; gives whom to tell.
    pub(crate) fn give_back(&mut self, now: Instant) -> Option<T> {
        let place = match &self.keeper {
            // A loop that has just come.
            Some(Keeper::Next(it) | Keeper::Loop(it, _)) => self.place_of(it)?,
            None => self.line.iter().position(|it| !it.is_told)?,
        };
        let next = self.line.get_mut(place)?;
        if self.is_busy && self.keeper.is_none() {
            let is_over = |turn: &Turn<T>| now.saturating_duration_since(turn.since) >= TURN;
            if next.is_patient && !self.turn.as_ref().is_none_or(is_over) {
                return None;
            }
            self.keeper = Some(Keeper::Next(next.thread.clone()));
        }
        next.is_told = true;
        Some(next.thread.clone())
    }

    /// A thread is about to park, in line; says whether it is to be patient. It keeps its place.
    pub(crate) fn follow(&mut self, me: &T, id: Option<OperationId>) -> bool {
        let is_patient = self.is_busy && id.is_some();
        let own = Follower { thread: me.clone(), id, is_patient, is_told: false };
        match self.place_of(me) {
            Some(place) => self.line[place] = own,
            None => self.line.push_back(own),
        }
        self.any = true;
        is_patient
    }

    /// A thread waits no longer, and does not want the role; `is_free`: nobody has it. Gives whom to tell: one that is patient looks
    /// by itself.
    pub(crate) fn leave(&mut self, me: &T, is_free: bool) -> Option<T> {
        self.line.retain(|it| it.thread != *me);
        if self.keeper == Some(Keeper::Next(me.clone())) {
            self.keeper = None;
        }
        self.is_busy &= !self.line.is_empty();
        self.look();
        let is_kept = self.keeper.is_some() || !is_free;
        let next =
            self.line.iter_mut().find(|it| !it.is_told).filter(|it| !is_kept && !it.is_patient)?;
        next.is_told = true;
        Some(next.thread.clone())
    }

    /// Whether whoever has the role comes back for it at once, and those in line are told of nothing.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Whoever has the role waits itself: gives those who are to be told from now on, and of what.
    pub(crate) fn end_patience(&mut self) -> impl Iterator<Item = (&T, OperationId)> {
        // Its calls are no short ones: those of others are worth a wake-up.
        (self.is_busy, self.turn) = (false, None);
        self.line.iter_mut().filter_map(|it| {
            let was_patient = std::mem::take(&mut it.is_patient);
            was_patient.then_some(&it.thread).zip(it.id)
        })
    }

    /// The role is a loop's from now on, as soon as it is free; says whether it is no other one's.
    pub(crate) fn keep_for_loop(&mut self, me: &T) -> bool {
        if matches!(self.keeper, Some(Keeper::Loop(..))) {
            return false;
        }
        self.keeper = Some(Keeper::Loop(me.clone(), false));
        (self.any, self.is_busy) = (true, false);
        true
    }

    /// The thread that a loop runs in now, and whether it is about to sleep.
    pub(crate) fn loop_runs_in(&mut self, me: T, is_asleep: bool) {
        if let Some(keeper @ Keeper::Loop(..)) = &mut self.keeper {
            *keeper = Keeper::Loop(me, is_asleep);
        }
    }

    /// Whether the role is kept for a loop.
    pub(crate) fn has_loop(&self) -> bool {
        matches!(self.keeper, Some(Keeper::Loop(..)))
    }

    /// Whether a loop was told that it may sleep.
    pub(crate) fn is_loop_asleep(&self) -> bool {
        matches!(self.keeper, Some(Keeper::Loop(_, true)))
    }

    /// The role is kept for nobody any more.
    pub(crate) fn keep_for_nobody(&mut self) {
        self.keeper = None;
        self.look();
    }

    fn place_of(&self, thread: &T) -> Option<usize> {
        self.line.iter().position(|it| it.thread == *thread)
    }

    fn look(&mut self) {
        self.any = self.keeper.is_some() || !self.line.is_empty();
    }
}

#[cfg(test)]
mod tests;
