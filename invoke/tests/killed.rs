//! Real processes with service threads, one of which is killed: in the middle of calls, or before anybody has a connection with it. The others'
//! workers and service threads hear of it, go on calling one another, and end.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a process tells its parent")]

#[expect(unused_macros, reason = "shared with other tests, which run threads")]
#[expect(dead_code, reason = "likewise")]
mod common;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{Daemons, VISOR};
use hg_invoke::{Error, Fabric, Failed, Group, How, Place, Request, Synchronizer, Worker, rpc};
use watchdog::Watchdog;

const PROCESSES: u32 = 3;
const DEAD: u32 = 1;

/// Is run by a service thread, which calls those of all processes.
#[rpc(crate = hg_invoke)]
fn spread(here: &Request, depth: u32) -> (Place, bool) {
    if depth > 0 {
        for process in 0..PROCESSES {
            // Of one that is gone by now nothing is expected.
            let _ = here.call(Place::any_of(process), spread, (depth - 1,));
        }
    }
    (here.place(), here.is_service())
}

/// A process among others, whose parent tells each what all have said.
struct Piped(u32);

impl Group for Piped {
    fn rank(&self) -> u32 {
        self.0
    }

    fn size(&self) -> u32 {
        PROCESSES
    }

    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let hex: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("\nown {hex}");
        let mut all = Vec::new();
        for word in next_line().split_whitespace() {
            let byte = |at| u8::from_str_radix(&word[at..at + 2], 16).unwrap();
            all.push((0..word.len()).step_by(2).map(byte).collect());
        }
        Ok(all)
    }
}

/// What the parent says next.
fn next_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line
}

/// Asks a service thread of a process.
fn ask(worker: &Worker, process: u32, depth: u32) -> Result<(Place, bool), Error> {
    let asked = worker.call_return(Place::any_of(process), spread, (depth,))?;
    asked.wait(worker).map_err(|failed| match failed {
        Failed::Call(error) => error,
        Failed::Function(never) => panic!("{never:?}"),
    })
}

/// What each process does that the tests start.
#[test]
fn process() {
    let Ok(words) = std::env::var("HG_INVOKE_PROCESS") else { return };
    let [when, rank, url] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
    let rank: u32 = rank.parse().unwrap();
    let fabric = Fabric::new().services(2).register(spread).unwrap();
    let worker = fabric.open(&Piped(rank), url).unwrap().remove(0);
    match when {
        "busy" => killed_in_the_middle(rank, worker),
        "open" => killed_before(rank, worker),
        "barrier" => killed_before_a_barrier(worker),
        "left" | "dropped" => killed_before_another_one_leaves(when, rank, worker),
        "closed" => killed_after_another_one_was_closed(rank, worker),
        other => panic!("{other}"),
    }
    println!("\nended");
}

/// Nobody has a connection with the one that is killed, nor with anybody else.
fn killed_before(rank: u32, worker: Worker) {
    println!("\nopen");
    next_line();
    let (other, here, ran) = (2 - rank, worker.place(), Synchronizer::new());
    let dead = Place { process: DEAD, thread: 0 };
    // Those that wait, and those that nobody waits for.
    worker.call_with(dead, spread, (0,), How::default().when_run(&ran)).unwrap();
    worker.call(Place { thread: 1, ..dead }, spread, (0,)).unwrap();
    let error = ran.wait(&worker).unwrap_err();
    assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    assert_eq!(ask(&worker, other, 1).unwrap().0.process, other);
    println!("\nserved");
    next_line();
    worker.call(Place { thread: 2, ..dead }, spread, (0,)).unwrap();
    worker.call(Place { process: other, ..here }, spread, (0,)).unwrap();
    worker.finish().unwrap();
}

/// Nor has anybody called it.
fn killed_before_a_barrier(worker: Worker) {
    println!("\nbarrier");
    next_line();
    let error = worker.quiesce().unwrap_err();
    assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    // Whoever has noticed it has told the others before it ends.
    worker.finish().unwrap();
    println!("\nserved");
    next_line();
}

/// Who has called it leaves, in good order or not; the other one has heard of neither when it enters a barrier, and is not connected with the dead one.
fn killed_before_another_one_leaves(how: &str, rank: u32, worker: Worker) {
    worker.quiesce().unwrap();
    println!("\n{how}");
    next_line();
    if rank == 0 {
        let dead = Place { process: DEAD, thread: 0 };
        let called = || Some(Err(worker.call(dead, spread, (0,)).err()?));
        let error = worker.wait_until::<()>(called).unwrap_err();
        assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    } else {
        let error = worker.quiesce().unwrap_err();
        assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    }
    if how == "left" {
        worker.finish().unwrap();
    } else {
        drop(worker);
    }
    println!("\nserved");
    next_line();
}

/// Process 2 closes its worker, and lives: so barriers fail. Who is killed then is named by the next ones.
fn killed_after_another_one_was_closed(rank: u32, worker: Worker) {
    worker.quiesce().unwrap();
    let worker = (rank != 2).then_some(worker);
    if let Some(worker) = &worker {
        let error = worker.quiesce().unwrap_err();
        assert!(matches!(error, Error::Gone { process: 2, .. }), "{error}");
    }
    println!("\nclosed");
    next_line();
    if let Some(worker) = &worker {
        let names_it = || matches!(worker.gone(), Some(Error::Gone { process: DEAD, .. }));
        worker.wait_until(|| names_it().then_some(Ok(()))).unwrap();
        let error = worker.quiesce().unwrap_err();
        assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    }
    println!("\nserved");
    next_line();
}

fn killed_in_the_middle(rank: u32, worker: Worker) {
    // All that are beside one another in the barrier are connected by it.
    worker.quiesce().unwrap();
    let mut asked = 0;
    let error = loop {
        match ask(&worker, asked % PROCESSES, 2) {
            Ok(answer) => assert_eq!((answer.0.process, answer.1), (asked % PROCESSES, true)),
            Err(error) => break error,
        }
        asked += 1;
        if asked == 30 {
            println!("\nbusy");
        }
    };
    assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    let barrier = worker.quiesce().unwrap_err();
    assert!(matches!(barrier, Error::Gone { process: DEAD, .. }), "{barrier}");
    let refused = ask(&worker, DEAD, 0).unwrap_err();
    assert!(matches!(refused, Error::Gone { process: DEAD, .. }), "{refused}");
    // Service threads go on, here and there; those that are asked call the dead one, and are none the worse.
    let (other, mut seen) = (2 - rank, [false; 2]);
    for _ in 0..20 {
        let (place, is_service) = ask(&worker, other, 1).unwrap();
        assert!(place.process == other && is_service, "{place}");
        seen[place.thread as usize - 1] = true;
    }
    assert_eq!(seen, [true; 2], "none of them has ended");
    println!("\nserved");
    // Meanwhile its service threads serve the other one.
    next_line();
    worker.finish().unwrap();
}

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(when: &str, rank: u32, url: &str, daemons: Option<&Daemons>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]);
        command.env("HG_INVOKE_PROCESS", format!("{when} {rank} {url}"));
        if let Some(daemons) = daemons {
            command.env("HG_VISOR", daemons.name(rank));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until it says this; what follows.
    fn says(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended before `{word}`");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills one of them when all are so far.
fn killed(when: &str, url: &str, test: &str) {
    if !common::is_there(url, test) {
        return;
    }
    let _watchdog = Watchdog::start();
    let daemons = url.starts_with(VISOR).then(|| Daemons::start(2));
    let start = |rank| Process::start(when, rank, url, daemons.as_ref());
    let mut all: Vec<_> = (0..PROCESSES).map(start).collect();
    let own: Vec<String> = all.iter_mut().map(|it| it.says("own ")).collect();
    all.iter_mut().for_each(|it| it.tell(&own.join(" ")));
    all.iter_mut().for_each(|it| drop(it.says(when)));
    let mut dead = all.remove(DEAD as usize);
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    match when {
        "busy" => {}
        "left" | "dropped" => all.iter_mut().for_each(|it| {
            it.tell("go on");
            it.says("served");
        }),
        _ => all.iter_mut().for_each(|it| it.tell("go on")),
    }
    if !matches!(when, "left" | "dropped") {
        all.iter_mut().for_each(|it| drop(it.says("served")));
    }
    // Both at once: who has called somebody ends when that one has taken it.
    all.iter_mut().for_each(|it| it.tell("end"));
    for it in &mut all {
        it.says("ended");
        assert!(it.child.wait().unwrap().success());
    }
    daemons.iter().for_each(|it| drop(it.until_nothing_is_left()));
}

#[test]
fn service_threads_survive_another_process_that_is_killed() {
    over_all("busy", "service_threads_survive_another_process_that_is_killed");
}

#[test]
fn a_process_that_is_killed_before_it_is_called_holds_nobody_up() {
    over_all("open", "a_process_that_is_killed_before_it_is_called_holds_nobody_up");
}

#[test]
fn who_leaves_because_another_one_was_killed_is_not_blamed_for_it() {
    over_all("left", "who_leaves_because_another_one_was_killed_is_not_blamed_for_it");
}

#[test]
fn who_is_dropped_because_another_one_was_killed_is_not_blamed_for_it() {
    over_all("dropped", "who_is_dropped_because_another_one_was_killed_is_not_blamed_for_it");
}

#[test]
fn a_barrier_names_a_process_that_was_killed_before_anybody_has_called_it() {
    over_all("barrier", "a_barrier_names_a_process_that_was_killed_before_anybody_has_called_it");
}

#[test]
fn who_is_killed_is_named_before_who_was_closed_earlier() {
    over_all("closed", "who_is_killed_is_named_before_who_was_closed_earlier");
}

fn over_all(when: &str, test: &str) {
    for url in ["sm://", "tcp://127.0.0.1", "sm+tcp://127.0.0.1", "ofi+tcp://127.0.0.1", VISOR] {
        killed(when, url, test);
    }
}
