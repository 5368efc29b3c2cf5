//! What happens in a story: each event, as it is done to the processes.

use std::{sync::Arc, time::Duration};

use crate::{
    caller, drive,
    net::{Planted, Simulation, planted},
    platform::Virtual,
    serve,
    simulated::Simulated,
    stage::Stage,
    state::{Record, disturb, living, with},
    story::{Call, Settings, Story, What, address_of, contexts},
    watch,
    world::{self, HARNESS, ProcessId},
};

/// Opens the engine of a process.
pub(crate) fn open(process: usize, settings: &Settings) {
    let id = with(|run| run.processes[process].id);
    // Each costs the machine's time: only where a loop sleeps on it.
    let descriptors = settings.event_loops && !settings.background;
    let plugin = with(|run| Simulation::of(&run.net, id, descriptors));
    let stage: Arc<dyn Stage> = Arc::new(Simulated { process, id });
    let platform = Arc::new(Virtual { process: id });
    let mut given = settings.clone();
    if with(|run| run.story.rules.planted) == Some(Planted::NoBoundInBytes) {
        given.backlog_bytes_max *= planted::BYTES;
    }
    let builder = serve::builder(&given, process, &stage);
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
    watch::watch_bytes(&stage, handle, settings);
}

pub(crate) fn perform(story: &Story, what: &What) {
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
        What::Away(process, nanos) => {
            if let Some(id) = living(process) {
                let until = world::now() + nanos;
                disturb(process, until);
                with(|run| run.net().away.insert(id, until));
            }
        }
        What::NoThreads(process, nanos) => {
            refuse(process, nanos, world::refuse_threads);
        }
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

/// A process is killed: nothing that it does has an effect any more. Its threads run out.
pub(crate) fn kill(process: usize) {
    let id = with(|run| {
        let it = &mut run.processes[process];
        (it.lives, it.hangs, it.stopped_until) = (false, false, 0);
        it.died = Some(world::now());
        it.id
    });
    with(|run| run.net().kill(id));
    world::kill(id);
    end_process(process, id);
}

/// A process closes its engine.
pub(crate) fn close(process: usize) {
    let Some(id) = living(process) else { return };
    with(|run| {
        let it = &mut run.processes[process];
        (it.lives, it.died) = (false, Some(world::now()));
    });
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
    world::wake_tasks(id, waiting);
    world::ring(id);
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
        (it.drains, it.died) = (false, None);
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
        processes.map(|it| (it.id, std::mem::take(&mut it.waiting))).collect()
    });
    waiting.into_iter().for_each(|(id, waiting)| world::wake_tasks(id, waiting));
}
