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

/// Two workers of this process, each of whom calls the other; this thread makes the progress of both.
fn call(workers: &[Worker; 2], rounds: u64) {
    for round in 0..rounds {
        for (here, to) in workers.iter().zip([1, 0]) {
            let (to, how) = (Place { process: 0, thread: to }, How::room(Room::Return));
            for _ in 0..300 {
                // Where there is no room, it comes back: the next round makes some.
                let _made = here.call_with(to, count, (b"sixteen bytes or",), how);
            }
            let ran = Synchronizer::new();
            let told = here.call_with(to, count, (b"told",), How::default().when_run(&ran));
            told.unwrap();
            here.flush();
            while ran.left() > 0 {
                workers.iter().for_each(|it| assert!(it.progress().is_ok(), "round {round}"));
            }
        }
    }
}

/// Is run by the test below, with a number of rounds; says how many bytes of arguments have come.
#[test]
fn rounds_of_calls() {
    let rounds: u64 = env::var(ROUNDS).map_or(2, |it| it.parse().unwrap());
    let fabric = Fabric::new().threads(2).register(count).unwrap();
    let workers = fabric.open(&Process(0, 1, &Meeting::default()), "sm://").unwrap();
    let workers: [Worker; 2] = workers.try_into().unwrap();
    call(&workers, rounds);
    assert!(RUN.get() >= 2 * rounds * 4, "every told call has run");
    let [first, second] = workers.map(|it| it.calls());
    assert_eq!((first.0 + second.0, first.0), (first.1 + second.1, second.1), "and every other");
}

/// System calls of so many rounds, by name.
fn calls_of(rounds: u64) -> BTreeMap<String, u64> {
    let name = format!("invoke-syscalls-{}-{rounds}", std::process::id());
    let file = env::temp_dir().join(name);
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(&file).arg(env::current_exe().unwrap());
    command.args(["--exact", "rounds_of_calls", "--test-threads", "1"]);
    command.env(ROUNDS, rounds.to_string()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{output:?}");
    let table = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    // % time, seconds, usecs/call, calls, errors (or nothing), name.
    let rows = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let calls = words.get(3)?.parse().ok()?;
        Some((words.last()?.to_string(), calls)).filter(|it| it.0 != "total")
    });
    rows.collect()
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
    let few = calls_of(100);
    let begun = Instant::now();
    let many = calls_of(1100);
    let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap();
    assert!(few.contains_key("mmap") && few.contains_key("write"), "the table was read: {few:?}");
    let more: Vec<_> = many
        .iter()
        .map(|(name, calls)| (name, calls.saturating_sub(few.get(name).copied().unwrap_or(0))))
        // The clock is read every 64 rounds, by a call where the kernel offers no other way.
        .filter(|(name, more)| *more > 0 && *name != "clock_gettime")
        .collect();
    // The transport of each thread looks for new peers once a millisecond, however many calls that is. Memory and threads
    // come as they come.
    let (looks, others): (Vec<_>, Vec<_>) = more.iter().partition(|it| it.0.starts_with("epoll_"));
    let sum = |calls: &[&(&String, u64)]| calls.iter().map(|it| it.1).sum::<u64>();
    assert!(sum(&others) <= 20, "for 600,000 calls: {others:?}");
    let expected = THREADS * milliseconds;
    assert!(sum(&looks) <= expected, "{looks:?} for 600,000 calls in {milliseconds} ms");
}

const ROUNDS: &str = "INVOKE_TEST_ROUNDS";
