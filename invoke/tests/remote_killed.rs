//! Real processes, one of which is killed in the middle of broadcasts that are put into memory of all, its own and another's: what the others have allocated
//! for it is released, and what they have for one another is not.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a process tells its parent")]

#[expect(dead_code, unused_macros, reason = "shared with tests that run threads")]
mod common;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use hg_invoke::{
    Error, Everywhere, Fabric, Group, How, Place, Request, Synchronizer, Worker, Written, rpc,
};
use watchdog::Watchdog;

const PROCESSES: u32 = 3;
const DEAD: u32 = 1;
const PAGE: u64 = 4096;
/// Bytes of memory that is everywhere.
const EACH: u64 = 16 * PAGE;

/// Bytes that were allocated here for others.
#[rpc(crate = hg_invoke)]
fn allotted(here: &Request) -> u64 {
    here.allotted()
}

#[rpc(crate = hg_invoke)]
fn look(_written: Written) {}

/// Once, and waits until it has run everywhere.
fn broadcast(worker: &Worker, everywhere: &Everywhere) -> Result<(), Error> {
    let (part, ran) = (everywhere.own().part(0..EACH), Synchronizer::new());
    let how = How::default().when_run(&ran);
    let begun = worker.broadcast_buffer_written(look, (), part, everywhere.at(0), how);
    begun.map_err(|refused| refused.error).and_then(|()| ran.wait(worker))
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
        println!("\nown {}", own.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let byte = |word: &str, at| u8::from_str_radix(&word[at..at + 2], 16).unwrap();
        let bytes = |word: &str| (0..word.len()).step_by(2).map(|at| byte(word, at)).collect();
        Ok(line.split_whitespace().map(bytes).collect())
    }
}

fn wait_for(worker: &Worker, at: Place, bytes: u64) {
    while worker.call_return(at, allotted, ()).unwrap().wait(worker).unwrap() != bytes {}
}

/// What each process does that the tests start: a worker and a service thread.
#[test]
fn process() {
    let Ok(words) = std::env::var("HG_INVOKE_REMOTE") else { return };
    let (rank, url) = words.split_once(' ').unwrap();
    let rank: u32 = rank.parse().unwrap();
    let fabric = Fabric::new().services(1).register(allotted).unwrap().register(look).unwrap();
    let worker = fabric.open(&Piped(rank), url).unwrap().remove(0);
    let at = |process, thread| Place { process, thread };
    // Each at each worker; the one that is killed at all service threads, and everywhere, too.
    let mine: Vec<_> = (0..PROCESSES).map(|it| worker.allocate_at(at(it, 0), 1).unwrap()).collect();
    let more: Vec<_> = (0..PROCESSES)
        .filter(|_| rank == DEAD)
        .map(|it| worker.allocate_at(Place::any_of(it), 1).unwrap())
        .collect();
    let everywhere = (rank != 2).then(|| worker.allocate_everywhere(EACH).unwrap());
    worker.quiesce().unwrap();
    assert_eq!(worker.allotted(), 3 * PAGE + 2 * EACH);
    wait_for(&worker, at(rank, 1), PAGE + 2 * EACH);
    worker.quiesce().unwrap();
    if let Some(everywhere) = &everywhere {
        (0..9).for_each(|_| broadcast(&worker, everywhere).unwrap());
    }
    println!("\nready");
    // The dead one dies here.
    if let Some(everywhere) = &everywhere {
        let ended = loop {
            if let Err(error) = broadcast(&worker, everywhere) {
                break error;
            }
        };
        assert!(matches!(ended, Error::Gone { process: DEAD, .. }), "{ended}");
    }
    let left = u64::from(PROCESSES - 1) * PAGE + EACH;
    while worker.allotted() != left {
        worker.progress().unwrap();
    }
    for process in [rank, 2 - rank] {
        wait_for(&worker, at(process, 0), left);
        wait_for(&worker, at(process, 1), EACH);
    }
    let (own, there, dead) =
        (worker.allocate(1).unwrap(), Synchronizer::new(), Synchronizer::new());
    worker.put(&own, 0..1, mine[2 - rank as usize].locator(), 0, &there).unwrap();
    there.wait(&worker).unwrap();
    let put = worker.put(&own, 0..1, mine[DEAD as usize].locator(), 0, &dead);
    let error = put.and_then(|()| dead.wait(&worker)).unwrap_err();
    assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    let error = worker.allocate_at(at(DEAD, 0), 1).unwrap_err();
    assert!(matches!(error, Error::Gone { process: DEAD, .. }), "{error}");
    println!("\nserved");
    // The other one may still put to this one, over a transport that needs its progress.
    let reader = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()).unwrap());
    worker.wait_until(|| reader.is_finished().then_some(Ok(()))).unwrap();
    drop((mine, more, everywhere));
    worker.finish().unwrap();
    println!("\nended");
}

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: u32, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]);
        command.env("HG_INVOKE_REMOTE", format!("{rank} {url}"));
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

#[test]
fn memory_for_a_process_that_is_killed_is_released() {
    const NAME: &str = "memory_for_a_process_that_is_killed_is_released";
    for url in ["sm://", "tcp://127.0.0.1", "sm+tcp://127.0.0.1", "ofi+tcp://127.0.0.1"] {
        if !common::is_there(url, NAME) {
            continue;
        }
        let _watchdog = Watchdog::start();
        let mut all: Vec<_> = (0..PROCESSES).map(|rank| Process::start(rank, url)).collect();
        let own: Vec<String> = all.iter_mut().map(|it| it.says("own ")).collect();
        all.iter_mut().for_each(|it| it.tell(&own.join(" ")));
        all.iter_mut().for_each(|it| drop(it.says("ready")));
        let mut dead = all.remove(DEAD as usize);
        dead.child.kill().unwrap();
        dead.child.wait().unwrap();
        all.iter_mut().for_each(|it| drop(it.says("served")));
        // Both at once: who has called somebody ends when that one has taken it.
        all.iter_mut().for_each(|it| it.tell("end"));
        for it in &mut all {
            it.says("ended");
            assert!(it.child.wait().unwrap().success());
        }
    }
}
