//! A story is run: engines are opened, its events happen, then everything comes to its end and is judged.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use hg_engine::Engine;
use hg_na::Address;

use crate::{
    caller, drive,
    judge::{self, Checks, Ended},
    net::{Net, Simulation},
    platform::Virtual,
    serve,
    simulated::Simulated,
    stage::Stage,
    story::{Act, Call, Event, Settings, Story, What, address_of, contexts},
    trace::{Trace, Tracing},
    world::{self, HARNESS, ProcessId},
};

/// How a story went.
#[derive(Debug)]
pub struct Report {
    /// Why it has failed, if it has: the name of what was broken, a colon, and what happened.
    pub failure: Option<String>,
    /// What happened.
    pub trace: Trace,
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
    stopped_until: u64,
    /// Until when it was stopped, or had something refused.
    pub(crate) disturbed_until: u64,
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
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Looks at the present story. Nothing of an engine's is called in there.
pub(crate) fn with<T>(look: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(|run| look(run.as_mut().expect("a story runs")))
}

impl Run {
    pub(crate) fn net(&self) -> MutexGuard<'_, Net> {
        lock(&self.net)
    }

    /// Calls that an incarnation is serving and whose callers wait for an answer.
    fn in_service(&self, id: ProcessId) -> Vec<usize> {
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

fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a story.
#[must_use]
pub fn run(story: &Story, checks: Checks, tracing: Tracing) -> Report {
    let net = Arc::new(Mutex::new(Net::new(story.rules.clone(), story.order)));
    world::begin(story.order, Trace::new(tracing));
    let run = Run {
        story: Rc::new(story.clone()),
        checks,
        net: Arc::clone(&net),
        processes: Vec::new(),
        calls: Vec::new(),
        records: Vec::new(),
        is_over: false,
        forgotten: Vec::new(),
    };
    RUN.with_borrow_mut(|place| *place = Some(run));
    world::spawn(HARNESS, Box::new(play));
    world::run(|number| lock(&net).happen_now(number));
    let (trace, failure) = world::end();
    let run = RUN.with_borrow_mut(Option::take);
    if run.as_ref().is_some_and(|run| run.processes.iter().any(|it| it.handle.is_some())) {
        // Its engines cannot be closed any more.
        std::mem::forget(run);
    }
    Report { failure, trace }
}

/// The thread that has everything happen.
fn play() {
    let story = with(|run| Rc::clone(&run.story));
    add_processes(&story);
    for (process, settings) in (1..).zip(&story.processes) {
        open(process, settings);
    }
    for Event { at, what } in &story.events {
        let now = world::now();
        if *at > now {
            world::sleep(at - now);
        }
        perform(&story, what);
    }
    judge::finish();
}

fn add_processes(story: &Story) {
    for number in 0..=story.processes.len() + story.hung {
        let id = if number == 0 { HARNESS } else { world::add_process() };
        let text = format!("sim://p{number}/0");
        let address = Address::new(&text).expect("it is an address");
        let hangs = story.hangs(number);
        if hangs {
            with(|run| run.net().add_hung(id, &address));
        }
        let process = Process {
            id,
            handle: None,
            address,
            lives: false,
            drains: false,
            has_drained: false,
            was_restarted: false,
            hangs,
            stopped_until: 0,
            disturbed_until: 0,
            waiting: Vec::new(),
            bytes_to_hung: 0,
        };
        with(|run| run.processes.push(process));
    }
}

/// Opens the engine of a process.
fn open(process: usize, settings: &Settings) {
    let id = with(|run| run.processes[process].id);
    let plugin = with(|run| Simulation::of(&run.net, id, settings.loops > 0));
    let stage: Arc<dyn Stage> = Arc::new(Simulated { process, id });
    let builder =
        serve::register(settings.builder(&stage), process, &stage).expect("a fresh registry");
    let platform = Arc::new(Virtual { process: id });
    let opened = builder.plugin(plugin).platform(platform).open(&format!("sim://p{process}"));
    let handle = match opened {
        Ok(handle) => handle,
        Err(error) => return world::fail(|| format!("open: process {process}: {error}")),
    };
    with(|run| {
        let it = &mut run.processes[process];
        (it.handle, it.lives) = (Some(handle.clone()), true);
    });
    drive::start(&stage, &handle, settings);
}

fn perform(story: &Story, what: &What) {
    world::trace(|out| write!(out, "{what}"));
    match *what {
        What::Call(ref call) => {
            start_call(call.clone());
        }
        What::Stop(process, nanos) => stop(process, nanos),
        What::Kill(process) => kill(process),
        What::Close(process) => close(process),
        What::Drain(process, nanos) => drain(process, nanos),
        What::Forget(process, other) => forget(process, other),
        What::Restart(process) => restart(story, process),
        What::NoMemory(process, nanos) => refuse(process, nanos, |id, refuse| {
            with(|run| {
                let mut net = run.net();
                if refuse {
                    net.no_memory.insert(id)
                } else {
                    net.no_memory.remove(&id)
                };
            });
        }),
        What::NoThreads(process, nanos) => refuse(process, nanos, world::refuse_threads),
    }
}

/// Starts a call in a thread of its process; gives its number.
pub(crate) fn start_call(call: Call) -> usize {
    let from = call.from;
    let (number, id, lives) = with(|run| {
        let from = &run.processes[from];
        let (id, lives) = (from.id, from.lives);
        let sides = (id, run.processes[call.to].id);
        run.calls.push(call);
        run.records.push(Record { sides, ..Record::default() });
        (run.calls.len() - 1, id, lives)
    });
    if lives {
        let stage = Simulated { process: from, id };
        world::spawn(id, Box::new(move || caller::call(&stage, number)));
    }
    number
}

/// Stops a process.
fn stop(process: usize, nanos: Option<u64>) {
    let Some(id) = living(process) else { return };
    world::pause(id, true);
    let Some(nanos) = nanos else {
        return with(|run| run.processes[process].hangs = true);
    };
    let until = world::now() + nanos;
    disturb(process, until);
    with(|run| {
        let it = &mut run.processes[process];
        it.stopped_until = it.stopped_until.max(until);
    });
    world::spawn(
        HARNESS,
        Box::new(move || {
            world::sleep(nanos);
            let is_due = with(|run| {
                let it = &run.processes[process];
                it.id != id || (it.stopped_until <= world::now() && !it.hangs)
            });
            if is_due {
                world::pause(id, false);
                world::trace(|out| write!(out, "{process} goes on"));
            }
        }),
    );
}

pub(crate) fn disturb(process: usize, until: u64) {
    with(|run| {
        let it = &mut run.processes[process];
        it.disturbed_until = it.disturbed_until.max(until);
    });
}

/// Its present incarnation, if it lives.
fn living(process: usize) -> Option<ProcessId> {
    with(|run| run.processes[process].lives.then_some(run.processes[process].id))
}

/// A process is killed: nothing that it does has an effect any more. Its threads run out.
pub(crate) fn kill(process: usize) {
    let id = with(|run| {
        let it = &mut run.processes[process];
        (it.lives, it.hangs, it.stopped_until) = (false, false, 0);
        it.id
    });
    with(|run| run.net().kill(id));
    world::kill(id);
    end_process(process, id);
}

/// A process closes its engine.
pub(crate) fn close(process: usize) {
    let Some(id) = living(process) else { return };
    with(|run| run.processes[process].lives = false);
    end_process(process, id);
}

/// A process drains its engine, and closes it then.
fn drain(process: usize, nanos: u64) {
    let Some(id) = living(process) else { return };
    let handle = with(|run| {
        let it = &mut run.processes[process];
        (it.drains, it.has_drained) = (true, true);
        it.handle.clone()
    });
    let Some(handle) = handle else { return };
    let job = move || {
        let drain = handle.drain(Duration::from_nanos(nanos));
        let in_service = with(|run| run.in_service(id));
        let has_ended_well = drain.wait().is_ok();
        // One that was killed meanwhile promises nothing: its threads run on for a moment.
        if has_ended_well && living(process) == Some(id) {
            with(|run| in_service.iter().for_each(|it| run.records[*it].has_drained = true));
        }
        drop(handle);
        if living(process) == Some(id) {
            close(process);
        }
    };
    world::spawn(id, Box::new(job));
}

fn end_process(process: usize, id: ProcessId) {
    let (handle, waiting) = with(|run| {
        let it = &mut run.processes[process];
        (it.handle.take(), std::mem::take(&mut it.waiting))
    });
    waiting.into_iter().for_each(Waker::wake);
    if let Some(handle) = handle {
        let close = move || {
            contexts(&handle).for_each(|it| it.interrupt_progress());
            handle.close();
        };
        world::spawn(id, Box::new(close));
    }
}

fn restart(story: &Story, process: usize) {
    // The one before may not have closed yet: its address is its own until then.
    let settings = &story.processes[process - 1];
    let is_taken = with(|run| {
        let first = &run.processes[process].address;
        (0..settings.contexts).any(|it| run.net().is_taken(&address_of(first, it)))
    });
    if living(process).is_some() || is_taken {
        return;
    }
    with(|run| {
        let it = &mut run.processes[process];
        (it.id, it.was_restarted, it.stopped_until) = (world::add_process(), true, 0);
        it.drains = false;
    });
    open(process, settings);
}

/// A process closes its connection to another one.
fn forget(process: usize, other: usize) {
    let Some(id) = living(process) else { return };
    let (handle, address) = with(|run| {
        run.forgotten.push((process, other));
        (run.processes[process].handle.clone(), run.processes[other].address.clone())
    });
    let Some(handle) = handle else { return };
    let job = move || {
        if let Ok(peer) = handle.lookup(&address) {
            handle.forget(peer);
        }
    };
    world::spawn(id, Box::new(job));
}

/// Something is refused to a process for a while.
fn refuse(process: usize, nanos: u64, set: fn(ProcessId, bool)) {
    let Some(id) = living(process) else { return };
    set(id, true);
    disturb(process, world::now() + nanos);
    world::spawn(
        HARNESS,
        Box::new(move || {
            world::sleep(nanos);
            set(id, false);
        }),
    );
}

/// Nothing is kept from ending any more.
pub(crate) fn be_over() {
    let waiting: Vec<_> = with(|run| {
        run.is_over = true;
        let processes = run.processes.iter_mut();
        processes.flat_map(|process| std::mem::take(&mut process.waiting)).collect()
    });
    waiting.into_iter().for_each(Waker::wake);
}
