//! The story that runs on this thread of the machine: what is known of its processes and calls.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use hg_engine::Engine;
use hg_na::Address;

use crate::{
    ended::Ended,
    net::Net,
    story::{Act, Call, Story},
    world::{self, ProcessId},
};

/// How often something was judged, by the names of the checks.
pub type Judged = BTreeMap<&'static str, u64>;

/// Which checks are made; see [`crate::judge`].
#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// Names of those that are left out.
    pub skipped: Vec<String>,
}

impl Checks {
    pub(crate) fn has(&self, name: &str) -> bool {
        !self.skipped.iter().any(|it| it == name)
    }
}

/// One process: its present incarnation.
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) handle: Option<Engine>,
    pub(crate) address: Address,
    /// It was neither killed nor closed.
    pub(crate) lives: bool,
    /// It drains until it closes, or has done so.
    pub(crate) drains: bool,
    /// This incarnation or one before has drained.
    pub(crate) has_drained: bool,
    /// It has begun anew: some may not know yet that the one before is gone.
    pub(crate) was_restarted: bool,
    /// It has stopped for ever.
    pub(crate) hangs: bool,
    /// Until when it is stopped.
    pub(crate) stopped_until: u64,
    /// Until when it was stopped, or had something refused.
    pub(crate) disturbed_until: u64,
    /// From when to when that was, in the order of their begins.
    pub(crate) disturbed: Vec<(u64, u64)>,
    /// When the present incarnation was killed or closed.
    pub(crate) died: Option<u64>,
    /// Those who wait for the end of the story, or of the process.
    pub(crate) waiting: Vec<Waker>,
    /// Bytes of one-way calls to processes that hang which it has taken.
    pub(crate) bytes_to_hung: u64,
}

/// What became of a call.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) begun: Option<u64>,
    pub(crate) ended: Option<(u64, Ended)>,
    /// The incarnations of its two sides when it began.
    pub(crate) sides: (ProcessId, ProcessId),
    /// A handler has made it.
    pub(crate) is_nested: bool,
    /// Handlers that were begun for it.
    pub(crate) served: u32,
    /// Its handler has come to an answer.
    pub(crate) was_answered: bool,
    /// It was in service when its target began to drain, and the drain has ended well: its answer has left.
    pub(crate) has_drained: bool,
}

/// The story that runs on this thread of the machine.
pub(crate) struct Run {
    pub(crate) story: Rc<Story>,
    pub(crate) checks: Checks,
    pub(crate) net: Arc<Mutex<Net>>,
    /// By their numbers; the first place is empty.
    pub(crate) processes: Vec<Process>,
    pub(crate) calls: Vec<Call>,
    pub(crate) records: Vec<Record>,
    /// Handlers that never end may, and calls that are not answered are dropped.
    pub(crate) is_over: bool,
    /// Who has closed the connection to whom.
    pub(crate) forgotten: Vec<(usize, usize)>,
    /// How often each check has judged something.
    pub(crate) judged: Judged,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// A story begins on this thread of the machine.
pub(crate) fn begin(run: Run) {
    RUN.with_borrow_mut(|place| *place = Some(run));
}

/// It is over.
pub(crate) fn end() -> Option<Run> {
    RUN.with_borrow_mut(Option::take)
}

/// Looks at the present story. Nothing of an engine's is called in there.
pub(crate) fn with<T>(look: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(|run| look(run.as_mut().expect("a story runs")))
}

/// Whether nobody looks at the story, nor at its network.
pub(crate) fn is_free() -> bool {
    let is_free = |run: &Option<Run>| run.as_ref().is_none_or(|run| run.net.try_lock().is_ok());
    RUN.with(|run| run.try_borrow_mut().is_ok_and(|run| is_free(&run)))
}

impl Run {
    pub(crate) fn net(&self) -> MutexGuard<'_, Net> {
        lock(&self.net)
    }

    /// Calls that an incarnation is serving and whose callers wait for an answer.
    pub(crate) fn in_service(&self, id: ProcessId) -> Vec<usize> {
        let waits = |call: &Call| {
            // Of these something may have been said already.
            let is_answered_otherwise = call.may_be_given_up()
                || matches!(call.act, Act::Panic | Act::Poison | Act::Forget);
            !call.manner.is_one_way() && !is_answered_otherwise
        };
        let is_served = |record: &Record| {
            record.sides.1 == id && record.served > 0 && !record.was_answered && !record.is_nested
        };
        let all = self.records.iter().zip(&self.calls).enumerate();
        let served = all.filter(|(_, (record, call))| is_served(record) && waits(call));
        served.map(|(number, _)| number).collect()
    }
}

pub(crate) fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// A time, and so much later as the process is kept from what is due then.
    pub(crate) fn put_off(&self, due: u64, slack: u64) -> u64 {
        let put_off = |due: u64, &(from, until): &(u64, u64)| {
            if from <= due { due.max(until + slack) } else { due }
        };
        self.disturbed.iter().fold(due + slack, put_off)
    }
}

/// A process is stopped until then, or has something refused.
pub(crate) fn disturb(process: usize, until: u64) {
    with(|run| {
        let it = &mut run.processes[process];
        it.disturbed_until = it.disturbed_until.max(until);
        it.disturbed.push((world::now(), until));
    });
}

/// A process's present incarnation, if it lives.
pub(crate) fn living(process: usize) -> Option<ProcessId> {
    with(|run| run.processes[process].lives.then_some(run.processes[process].id))
}
