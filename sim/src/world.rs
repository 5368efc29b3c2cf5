//! The scheduler: logical threads, one of which runs at a time, a virtual clock, and timers.
//!
//! Everything lies in the machine's thread that runs a story, so that several can run side by side. A thread switches where it
//! waits, and, in stories that want it, where it is interrupted ([`crate::interrupts`]). Whoever is to run next is drawn from
//! those that can; when nobody can, the clock moves on to the next timer.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use self::{thread::Thread, timer::Timer};
use crate::{coroutine, coroutine::Coroutine, interrupts, random::Random, trace::Trace};

mod pass;
mod thread;
mod timer;

pub(crate) use self::{
    pass::{maybe_interrupt, pass, pass_with_lock, wait_for_lock},
    thread::{name, waker},
    timer::Action,
};

/// A logical thread of the present story.
pub(crate) type ThreadId = usize;

/// A process of the present story: not the machine's.
pub(crate) type ProcessId = usize;

/// What would make the descriptor of an event loop readable. No descriptor of the machine's is written to, read or polled: that of a loop is
/// readable if one of the two that it watches is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The transport, in a context of this number.
    Transport(u8),
    /// The timer of the loop that runs in this thread.
    Timer(ThreadId),
}

/// Those who look after the story itself: never paused.
pub(crate) const HARNESS: ProcessId = 0;

#[derive(Default)]
struct Process {
    is_paused: bool,
    is_dead: bool,
    has_no_threads: bool,
    /// Those that could run, but for the pause.
    held: Vec<ThreadId>,
    /// Those that poll, and look again when time has passed or something has happened.
    polling: Vec<ThreadId>,
    /// Those that sleep on a descriptor.
    watching: Vec<ThreadId>,
    /// Descriptors that would be readable.
    readable: Vec<Source>,
    /// Something has happened, and they have not looked yet: it is in [`World::stirred`].
    is_stirred: bool,
    /// Of tasks that are to be woken by a thread of its own.
    wakers: VecDeque<Waker>,
    has_waking_thread: bool,
}

pub(crate) struct World {
    now: u64,
    random: Random,
    threads: Vec<Thread>,
    ready: Vec<ThreadId>,
    /// How many poll.
    polling: usize,
    current: Option<ThreadId>,
    timers: BinaryHeap<Reverse<Timer>>,
    /// Virtual nanoseconds that a turn takes at most.
    turn: u64,
    /// When all threads that poll have looked last.
    stirred_at: u64,
    serial: u64,
    processes: Vec<Process>,
    /// Processes where something has happened since nobody could run, some of which have looked meanwhile.
    stirred: Vec<ProcessId>,
    failure: Option<String>,
    /// Rounds of progress since a thread was last resumed.
    rounds: u32,
    pub(crate) trace: Trace,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Virtual nanoseconds that a turn of a thread takes at most, which nobody interrupts.
const TURN: u64 = 600;

/// One that may be interrupted at each of so many places takes half as long.
const HALF_A_TURN: u64 = 16;

/// Virtual nanoseconds between two looks at the clock.
const TICK: u64 = 20;

/// Rounds of progress that a thread may make without a wait.
const ROUNDS_MAX: u32 = 20_000;

/// Virtual nanoseconds until a polling thread looks again at the latest.
const RELAX_MAX: u64 = 250_000;

/// After one of so many turns those look at once that what it has done may concern; otherwise when nobody else can run.
const LOOKED_AT: u64 = 6;

/// Logical threads of most stories.
const THREADS: usize = 1024;

/// Begins a story on this thread of the machine.
pub(crate) fn begin(seed: u64, trace: Trace) {
    let world = World {
        now: 0,
        random: Random::new(seed ^ 0x5eed),
        threads: Vec::with_capacity(THREADS),
        ready: Vec::new(),
        polling: 0,
        turn: interrupts::every().map_or(TURN, |every| TURN * every / (every + HALF_A_TURN)),
        current: None,
        timers: BinaryHeap::new(),
        stirred_at: 0,
        serial: 0,
        processes: vec![Process::default()],
        stirred: Vec::new(),
        failure: None,
        rounds: 0,
        trace,
    };
    WORLD.with_borrow_mut(|place| *place = Some(world));
}

/// Ends it: gives the trace, and why it has failed. Threads that have not ended stay as they are, with all that they hold.
pub(crate) fn end() -> (Trace, Option<String>) {
    let world = WORLD.with_borrow_mut(Option::take).expect("a story has begun");
    for mut thread in world.threads {
        thread.coroutine.take().into_iter().for_each(Coroutine::forget);
    }
    // Wakers and messages may belong to whatever is left: they are not run any more.
    std::mem::forget(world.timers);
    (world.trace, world.failure)
}

fn with<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| look(world.as_mut().expect("a story has begun")))
}

/// Whether a story runs on this thread of the machine.
pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// A new process, or a new incarnation of one.
pub(crate) fn add_process() -> ProcessId {
    with(|world| {
        world.processes.push(Process::default());
        world.processes.len() - 1
    })
}

/// The virtual time in nanoseconds, which goes on a little whenever somebody looks.
pub(crate) fn tick() -> u64 {
    WORLD.with_borrow_mut(|world| {
        world.as_mut().map_or(0, |world| {
            world.now += TICK;
            world.now
        })
    })
}

/// A round of progress begins. One that makes so many without ever waiting for anything fails the story.
pub(crate) fn note_round() {
    let is_too_much = with(|world| {
        world.rounds += 1;
        world.rounds > ROUNDS_MAX
    });
    if is_too_much && coroutine::is_inside() {
        fail(|| "spins: progress goes round and round without a wait".to_owned());
        coroutine::suspend();
    }
}

/// The virtual time in nanoseconds.
pub(crate) fn now() -> u64 {
    WORLD.with_borrow(|world| world.as_ref().map_or(0, |world| world.now))
}

/// A number below `end`.
pub(crate) fn random(end: u64) -> u64 {
    with(|world| world.random.below(end))
}

/// The story has failed: nothing runs any more.
pub(crate) fn fail(why: impl FnOnce() -> String) {
    with(|world| {
        if world.failure.is_none() {
            world.failure = Some(why());
        }
    });
}

/// Whether the story has failed.
pub(crate) fn has_failed() -> bool {
    with(|world| world.failure.is_some())
}

/// Says what happens; costs nothing but a hash where nobody reads it.
pub(crate) fn trace(what: impl FnOnce(&mut dyn std::fmt::Write) -> std::fmt::Result) {
    with(|world| {
        let now = world.now;
        world.trace.line(now, what);
    });
}

/// Has something done at a time.
pub(crate) fn at(at: u64, action: Action) {
    with(|world| world.add_timer(at, action));
}

/// Starts a logical thread; `None`: there is no thread to be had.
pub(crate) fn spawn(process: ProcessId, job: Box<dyn FnOnce()>) -> ThreadId {
    with(|world| {
        let id = world.threads.len();
        let body = Box::new(move || {
            let has_panicked = catch_unwind(AssertUnwindSafe(job)).is_err();
            with(|world| world.threads[id].has_panicked = has_panicked);
        });
        world.threads.push(Thread::new(id, process, Coroutine::new(body)));
        world.ready.push(id);
        id
    })
}

/// Wakes tasks of a process, in a thread of it: whoever does so may find a lock held, and wait for it.
pub(crate) fn wake_tasks(process: ProcessId, wakers: impl IntoIterator<Item = Waker>) {
    if !interrupts::are_on() {
        return wakers.into_iter().for_each(Waker::wake);
    }
    let is_new = with(|world| {
        let it = &mut world.processes[process];
        it.wakers.extend(wakers);
        !std::mem::replace(&mut it.has_waking_thread, true)
    });
    let next = move || {
        with(|world| {
            let it = &mut world.processes[process];
            it.has_waking_thread = !it.wakers.is_empty();
            it.wakers.pop_front()
        })
    };
    if is_new {
        spawn(process, Box::new(move || std::iter::from_fn(next).for_each(Waker::wake)));
    }
}

/// The thread that runs, if any.
pub(crate) fn current() -> Option<ThreadId> {
    with(|world| world.current)
}

/// Suspends the thread that runs until [`wake`], or until a time.
pub(crate) fn wait(until: Option<u64>) {
    with(|world| {
        let id = world.current.expect("only a logical thread waits");
        let thread = &mut world.threads[id];
        thread.waits = true;
        thread.wait += 1;
        let wait = thread.wait;
        if let Some(until) = until {
            world.add_timer(until, Action::Wake(id, wait));
        }
    });
    coroutine::suspend();
}

/// Ends a wait.
pub(crate) fn wake(id: ThreadId) {
    with(|world| world.wake(id));
}

/// Lets others run first.
pub(crate) fn yield_now() {
    with(|world| {
        let id = world.current.expect("only a logical thread yields");
        world.ready.push(id);
    });
    coroutine::suspend();
}

/// A polling thread has found nothing: it looks again when something has happened.
pub(crate) fn relax() {
    if !coroutine::is_inside() {
        return;
    }
    with(|world| {
        let id = world.look_later();
        let process = world.threads[id].process;
        world.processes[process].polling.push(id);
        world.polling += 1;
    });
    coroutine::suspend();
}

/// This thread sleeps until a descriptor of its process becomes readable, or until [`ring`].
pub(crate) fn watch() {
    with(|world| {
        let id = world.look_later();
        let process = world.threads[id].process;
        world.processes[process].watching.push(id);
    });
    coroutine::suspend();
}

/// Those who sleep on a descriptor of a process look again.
pub(crate) fn ring(process: ProcessId) {
    with(|world| world.ready.append(&mut world.processes[process].watching));
}

/// A descriptor of a process has become readable, or is not any more.
pub(crate) fn set_readable(process: ProcessId, source: Source, is_readable: bool) {
    with(|world| {
        let it = &mut world.processes[process];
        if is_readable {
            it.readable.push(source);
            world.ready.append(&mut it.watching);
        } else {
            it.readable.retain(|it| *it != source);
        }
    });
}

/// Whether a descriptor of a process is readable.
pub(crate) fn is_readable(process: ProcessId, source: Source) -> bool {
    with(|world| world.processes[process].readable.contains(&source))
}

/// Something has arrived for a process: its threads that have looked in vain look again.
pub(crate) fn stir(process: ProcessId) {
    with(|world| world.stir(process));
}

/// Takes this thread's token, and waits for it as long as it is not there.
pub(crate) fn park(until: Option<u64>) {
    maybe_interrupt();
    let id = current().expect("only a logical thread parks");
    let take = || with(|world| std::mem::take(&mut world.threads[id].token));
    if take() {
        return;
    }
    wait(until);
    take();
}

/// Gives a thread its token.
pub(crate) fn unpark(id: ThreadId) {
    with(|world| {
        if let Some(thread) = world.threads.get_mut(id) {
            thread.token = true;
            world.wake(id);
        }
    });
}

/// Waits for the end of a thread; says whether it has not panicked.
pub(crate) fn join(id: ThreadId) -> bool {
    loop {
        let has_ended = with(|world| {
            let me = world.current.expect("only a logical thread joins");
            let thread = &mut world.threads[id];
            if !thread.has_ended {
                thread.joiners.push(me);
            }
            thread.has_ended
        });
        if has_ended {
            return with(|world| !world.threads[id].has_panicked);
        }
        wait(None);
    }
}

/// Sleeps in virtual time; not at all in a process that is dead.
pub(crate) fn sleep(nanos: u64) {
    let until = now() + nanos;
    while now() < until && !is_dead_here() {
        wait(Some(until));
    }
}

fn is_dead_here() -> bool {
    with(|world| world.current.is_some_and(|id| world.processes[world.threads[id].process].is_dead))
}

/// Stops or continues all threads of a process.
pub(crate) fn pause(process: ProcessId, is_paused: bool) {
    with(|world| {
        let it = &mut world.processes[process];
        it.is_paused = is_paused;
        if !is_paused {
            let held = std::mem::take(&mut it.held);
            world.ready.extend(held);
        }
    });
}

/// A process is dead: its threads run to their end, and wait for no time.
pub(crate) fn kill(process: ProcessId) {
    pause(process, false);
    with(|world| {
        world.processes[process].is_dead = true;
        let of_process = |thread: &Thread| thread.process == process && thread.waits;
        let ids: Vec<_> =
            world.threads.iter().enumerate().filter(|(_, it)| of_process(it)).collect();
        let ids: Vec<_> = ids.into_iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| world.wake(id));
    });
}

/// There are no threads to be had in a process, or there are again.
pub(crate) fn refuse_threads(process: ProcessId, refuse: bool) {
    with(|world| world.processes[process].has_no_threads = refuse);
}

/// Whether there is no thread to be had.
pub(crate) fn has_no_threads(process: ProcessId) -> bool {
    with(|world| world.processes[process].has_no_threads)
}

/// Threads of processes that have not ended.
pub(crate) fn threads_left() -> usize {
    with(|world| world.threads.iter().filter(|it| it.process != HARNESS && !it.has_ended).count())
}

enum Next {
    Thread(ThreadId, Coroutine),
    Waker(Waker),
    Task(ProcessId, Waker),
    Network(usize),
    /// The first thread has ended, or the story has failed.
    End,
}

/// Runs until the first thread has ended, or the story has failed.
pub(crate) fn run(happen_in_network: impl Fn(usize)) {
    loop {
        match with(World::next) {
            Next::Thread(id, mut coroutine) => {
                let has_ended = coroutine.resume();
                with(|world| world.after(id, coroutine, has_ended));
            }
            Next::Waker(waker) => waker.wake(),
            Next::Task(process, waker) => wake_tasks(process, [waker]),
            Next::Network(number) => happen_in_network(number),
            Next::End => return,
        }
    }
}

impl World {
    fn add_timer(&mut self, at: u64, action: Action) {
        self.serial += 1;
        let serial = self.serial;
        self.timers.push(Reverse(Timer { at, serial, action }));
    }

    fn wake(&mut self, id: ThreadId) {
        if std::mem::take(&mut self.threads[id].waits) {
            self.ready.push(id);
        }
    }

    /// The thread that runs has looked for something in vain.
    fn look_later(&mut self) -> ThreadId {
        let id = self.current.expect("only a logical thread looks for something");
        self.threads[id].looks = true;
        id
    }

    /// Time has passed: those that poll look again.
    fn stir_all(&mut self) {
        self.processes.iter_mut().for_each(|it| self.ready.append(&mut it.polling));
        self.polling = 0;
    }

    /// Something has happened in a process: its threads that have looked in vain look again.
    fn stir(&mut self, process: ProcessId) {
        let process = &mut self.processes[process];
        self.polling -= process.polling.len();
        self.ready.append(&mut process.polling);
        process.is_stirred = false;
    }

    /// The same of all processes where something has happened; says whether somebody looks again.
    fn stir_stirred(&mut self) -> bool {
        let mut stirred = std::mem::take(&mut self.stirred);
        stirred.sort_unstable();
        for process in stirred.drain(..) {
            if self.processes[process].is_stirred {
                self.stir(process);
            }
        }
        self.stirred = stirred;
        !self.ready.is_empty()
    }

    fn next(&mut self) -> Next {
        while self.failure.is_none() && !self.threads[0].has_ended {
            if let Some(Reverse(timer)) = self.timers.peek()
                && timer.at <= self.now
            {
                let Some(Reverse(timer)) = self.timers.pop() else { continue };
                match timer.action {
                    Action::Wake(id, wait) if self.threads[id].wait == wait => self.wake(id),
                    Action::Wake(..) => {}
                    Action::Waker(waker) => return Next::Waker(waker),
                    Action::Task(process, waker) => return Next::Task(process, waker),
                    Action::Network(number) => return Next::Network(number),
                }
                continue;
            }
            if !self.ready.is_empty() {
                let place = self.random.index(self.ready.len());
                let id = self.ready.swap_remove(place);
                let thread = &mut self.threads[id];
                let process = &mut self.processes[thread.process];
                if process.is_paused {
                    process.held.push(id);
                    continue;
                }
                let Some(coroutine) = thread.coroutine.take() else { continue };
                thread.looks = false;
                thread.locals.swap();
                self.current = Some(id);
                self.now += 1 + self.random.below(self.turn);
                self.rounds = 0;
                return Next::Thread(id, coroutine);
            }
            if self.stir_stirred() {
                continue;
            }
            let next = self.timers.peek().map(|Reverse(timer)| timer.at);
            if self.polling == 0 {
                let Some(next) = next else {
                    self.failure = Some("lost: every thread waits for ever".to_owned());
                    break;
                };
                self.now = self.now.max(next);
            } else {
                let soon = self.now.max(self.stirred_at + RELAX_MAX);
                match next {
                    Some(next) if next < soon => self.now = self.now.max(next),
                    _ => {
                        (self.now, self.stirred_at) = (soon, soon);
                        self.stir_all();
                    }
                }
            }
        }
        Next::End
    }

    fn after(&mut self, id: ThreadId, coroutine: Coroutine, has_ended: bool) {
        self.current = None;
        let thread = &mut self.threads[id];
        thread.locals.swap();
        let (looks, process) = (thread.looks, thread.process);
        if !looks {
            // Whatever it has done may be what another one looks for.
            if !std::mem::replace(&mut self.processes[process].is_stirred, true) {
                self.stirred.push(process);
            }
            if self.random.below(LOOKED_AT) == 0 {
                self.stir(process);
            }
        }
        let thread = &mut self.threads[id];
        if !has_ended {
            thread.coroutine = Some(coroutine);
            return;
        }
        coroutine.recycle();
        thread.has_ended = true;
        for joiner in std::mem::take(&mut thread.joiners) {
            self.wake(joiner);
        }
    }
}
