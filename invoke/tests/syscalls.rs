//! Calls to a thread of the same process: in the steady state they make no system call, and their transport looks around rarely.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

#[expect(dead_code, unused_macros, reason = "a part of it is needed here")]
mod common;

use std::{
    cell::Cell,
    collections::BTreeMap,
    env, fs,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Instant,
};

use common::{Meeting, Process};
use hg_invoke::{Fabric, How, Place, Room, Synchronizer, Worker, rpc};

/// Workers of the process, each with a transport.
const THREADS: u64 = 2;

thread_local! {
    static RUN: Cell<u64> = const { Cell::new(0) };
}

#[rpc(crate = hg_invoke)]
fn count(bytes: &[u8]) {
    RUN.set(RUN.get() + bytes.len() as u64);
}

/// A worker of this process calls the other one, which does the same in its own thread. It spins: who sleeps makes system calls. How often it has made progress.
fn call(here: &Worker, rounds: u64) -> u64 {
    let mut made = 0;
    let (to, how) =
        (Place { process: 0, thread: 1 - here.place().thread }, How::room(Room::Return));
    for _ in 0..rounds {
        for _ in 0..300 {
            // Where there is no room, it comes back: the next round makes some.
            let _made = here.call_with(to, count, (b"sixteen bytes or",), how);
        }
        let ran = Synchronizer::new();
        let told = here.call_with(to, count, (b"told",), How::default().when_run(&ran));
        told.unwrap();
        here.flush();
        while ran.left() > 0 {
            here.progress().unwrap();
            made += 1;
        }
    }
    made
}

/// Is run by the test below, with a number of rounds: in two threads, as programs do.
#[test]
fn rounds_of_calls() {
    let rounds: u64 = env::var(ROUNDS).map_or(2, |it| it.parse().unwrap());
    let fabric = Fabric::new().threads(2).register(count).unwrap();
    let workers = fabric.open(&Process(0, 1, &Meeting::default()), "sm://").unwrap();
    let (left, made) = (&AtomicUsize::new(2), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(move || {
                let mut of_this = call(&worker, rounds);
                // The other one may not be so far.
                left.fetch_sub(1, Ordering::SeqCst);
                while left.load(Ordering::SeqCst) > 0 {
                    worker.progress().unwrap();
                    of_this += 1;
                }
                made.fetch_add(of_this, Ordering::SeqCst);
                worker.quiesce().unwrap();
                assert!(RUN.get() >= rounds * 4, "every told call has run");
                worker.finish().unwrap();
            });
        }
    });
    println!("\n{MADE}{}", made.load(Ordering::SeqCst));
}

/// System calls of so many rounds, by name; and how often progress was made.
fn calls_of(rounds: u64) -> (BTreeMap<String, u64>, u64) {
    let name = format!("invoke-syscalls-{}-{rounds}", std::process::id());
    let file = env::temp_dir().join(name);
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&file).arg(env::current_exe().unwrap());
    command.args(["--exact", "rounds_of_calls", "--test-threads", "1", "--nocapture"]);
    command.env(ROUNDS, rounds.to_string()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{output:?}");
    let made = said.lines().find_map(|line| line.strip_prefix(MADE)?.parse().ok()).unwrap();
    let table = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    // % time, seconds, usecs/call, calls, errors (or nothing), name.
    let rows = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let calls = words.get(3)?.parse().ok()?;
        Some((words.last()?.to_string(), calls)).filter(|it| it.0 != "total")
    });
    (rows.collect(), made)
}

#[test]
fn calls_to_a_thread_of_the_same_process_make_no_system_call() {
    const NAME: &str = "calls_to_a_thread_of_the_same_process_make_no_system_call";
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED: {NAME}: strace is not installed");
        return;
    }
    let _watchdog = watchdog::Watchdog::start();
    // Both start and end the same; 1,000 rounds are 600,000 calls, and 2,000 of them are waited for.
    let (few, _) = calls_of(100);
    let begun = Instant::now();
    let (many, made) = calls_of(1100);
    let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap();
    assert!(few.contains_key("mmap") && few.contains_key("write"), "the table was read: {few:?}");
    let more: Vec<_> = many
        .iter()
        .map(|(name, calls)| (name, calls.saturating_sub(few.get(name).copied().unwrap_or(0))))
        // The clock is read every 64 rounds, by a call where the kernel offers no other way.
        .filter(|(name, more)| *more > 0 && *name != "clock_gettime")
        .collect();
    // The transport of each thread, which has no connection, looks for new peers once a millisecond, and once in 256 rounds. Memory and threads come as
    // they come. A lock that both take is held for a few instructions: who waits for it asks the system only where its holder is not let run.
    let (looks, others): (Vec<_>, Vec<_>) = more.iter().partition(|it| it.0.starts_with("epoll_"));
    let sum = |calls: &[&(&String, u64)]| calls.iter().map(|it| it.1).sum::<u64>();
    assert!(sum(&others) <= 60, "for 600,000 calls: {others:?}");
    let expected = THREADS * milliseconds + made / 256;
    assert!(sum(&looks) <= expected, "{looks:?} in {milliseconds} ms and {made} rounds");
}

const MADE: &str = "rounds made: ";
const ROUNDS: &str = "INVOKE_TEST_ROUNDS";
