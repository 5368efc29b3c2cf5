//! A process of a story in the simulation.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use hg_engine::{Engine, EventLoop};
use hg_na::{Address, Identity};

use crate::{
    ended::Ended,
    rpcs::Kind,
    stage::Stage,
    state::{self, Record, Run},
    story::{Act, Call, Manner, address_for},
    world::{self, Action, ProcessId, Source, ThreadId},
};

/// One incarnation of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulated {
    /// Its number in the story.
    pub(crate) process: usize,
    pub(crate) id: ProcessId,
}

struct Unpark(ThreadId);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        world::unpark(self.0);
    }
}

impl Simulated {
    fn is_closed_in(&self, run: &Run) -> bool {
        let it = &run.processes[self.process];
        it.id != self.id || !it.lives
    }
}

impl Stage for Simulated {
    fn now(&self) -> u64 {
        world::now()
    }

    fn waker(&self) -> Waker {
        world::waker(|me| Waker::from(Arc::new(Unpark(me))))
    }

    fn park(&self, until: Option<u64>) {
        world::park(until);
    }

    fn wake_at(&self, at: u64, waker: Waker) {
        world::at(at, Action::Task(self.id, waker));
    }

    fn stand_still(&self, nanos: u64) {
        state::disturb(self.process, world::now() + nanos);
        world::sleep(nanos);
    }

    fn yield_now(&self) {
        world::yield_now();
    }

    fn sleep_on(&self, _events: &EventLoop, context: u8) {
        let me = world::current().expect("only a logical thread sleeps");
        let sources = [Source::Transport(context), Source::Timer(me)];
        let is_due = || sources.iter().any(|source| world::is_readable(self.id, *source));
        while !self.is_closed() && !is_due() {
            world::watch();
        }
    }

    fn is_closed(&self) -> bool {
        state::with(|run| self.is_closed_in(run))
    }

    fn spawn(&self, job: Box<dyn FnOnce() + Send>) {
        world::spawn(self.id, job);
    }

    fn fail(&self, why: String) {
        world::fail(|| why);
    }

    fn opening(&self, number: usize) -> Option<(Call, Engine, Address)> {
        state::with(|run| {
            let call = run.calls[number].clone();
            let from = &run.processes[call.from];
            // Another incarnation's is none of its business.
            let handle = from.handle.clone().filter(|_| from.id == self.id)?;
            let first = &run.processes[call.to].address;
            let address = address_for(&call, first, run.story.processes.get(call.to - 1));
            Some((call.clone(), call.by(handle)?, address))
        })
    }

    fn begun(&self, number: usize) {
        state::with(|run| run.records[number].begun = Some(world::now()));
    }

    fn ended(&self, number: usize, call: &Call, ended: Ended) {
        world::trace(|out| write!(out, "call {number} has ended: {ended}"));
        let now = world::now();
        state::with(|run| {
            // One with a deadline makes room for others then.
            if call.manner == Manner::Notify
                && call.deadline.is_none()
                && matches!(ended, Ended::Sent)
                && run.processes[call.to].hangs
            {
                run.processes[call.from].bytes_to_hung += call.len as u64;
            }
            let record = &mut run.records[number];
            record.begun.get_or_insert(now);
            record.ended.get_or_insert((now, ended));
        });
    }

    fn serving(&self, number: u64) -> Option<Call> {
        world::trace(|out| write!(out, "{} serves call {number}", self.process));
        state::with(|run| {
            let number = usize::try_from(number).ok()?;
            run.records.get_mut(number)?.served += 1;
            run.calls.get(number).cloned()
        })
    }

    fn answered(&self, number: u64) {
        state::with(|run| {
            let record = usize::try_from(number).ok().and_then(|it| run.records.get_mut(it));
            record.into_iter().for_each(|record| record.was_answered = true);
        });
    }

    fn called_by(&self, number: u64, caller: &Identity) {
        let is_so = state::with(|run| {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let (Some(call), Some(record)) = (run.calls.get(number), run.records.get(number))
            else {
                return true;
            };
            let from = &run.processes[call.from];
            // Nobody vouches for who is gone, nor when this engine is closed.
            let is_there = from.lives && from.id == record.sides.0 && !self.is_closed_in(run);
            let pair = [(call.from, call.to), (call.to, call.from)];
            let may_be_gone = !is_there || pair.iter().any(|it| run.forgotten.contains(it));
            caller.pid.map_or(may_be_gone, |pid| pid as usize == record.sides.0)
        });
        if !is_so {
            let process = self.process;
            world::fail(|| format!("caller: {process} is told that call {number} is {caller:?}'s"));
        }
    }

    fn calling_on(&self, to: usize, nanos: u64) -> (u64, Address) {
        let call = Call::plain(self.process, to, Kind::Plain, Manner::Await);
        state::with(|run| {
            run.calls.push(Call { deadline: Some(nanos), ..call });
            let sides = (self.id, run.processes[to].id);
            run.records.push(Record { is_nested: true, sides, ..Record::default() });
            (run.calls.len() as u64 - 1, run.processes[to].address.clone())
        })
    }

    fn is_given_up(&self, call: &Call) -> bool {
        state::with(|run| {
            let to_hung = run.processes[call.to].hangs;
            run.is_over && (to_hung || matches!(call.act, Act::UntilCancelled))
        })
    }

    fn is_over(&self) -> bool {
        state::with(|run| run.is_over) || self.is_closed()
    }

    fn wake_when_over(&self, waker: Waker) {
        state::with(|run| run.processes[self.process].waiting.push(waker));
    }
}
