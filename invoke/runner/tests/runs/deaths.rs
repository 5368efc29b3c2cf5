//! A process that is killed in the middle: the others end by themselves, at once, and say who it was.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use watchdog::Watchdog;

use crate::{
    OFI, RUNNER,
    common::{command, has},
    has_ofi,
};

/// Starts a command, kills a rank by the process that it says it is when it says that it is so far, and reads to the end: the
/// status, and what was said.
pub(crate) fn killed(mut command: Command, dead: u32, phase: &str) -> (Option<i32>, String) {
    let _watchdog = Watchdog::start();
    let mut runner = command.spawn().unwrap();
    let (head, mut said) = (format!("invoke-runner: rank {dead}, process "), String::new());
    for line in BufReader::new(runner.stderr.take().unwrap()).lines().map_while(Result::ok) {
        watchdog::relay(&line);
        let told = line.strip_prefix(&head).and_then(|rest| rest.split_once(": "));
        if let Some((process, _)) = told.filter(|(_, words)| *words == phase) {
            kill(Pid::from_raw(process.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
        said += &line;
        said.push('\n');
    }
    let mut out = String::new();
    runner.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    (runner.wait().unwrap().code(), format!("{out}{said}"))
}

/// Of so many processes each but the dead one has ended with a sentence that names it.
pub(crate) fn assert_named(said: &str, dead: u32, processes: usize) {
    let sentence = format!("rank {dead} ended without leaving the job");
    assert_eq!(said.matches(&sentence).count(), processes - 1, "{said}");
    assert!(!said.contains("verified") && !said.contains("panicked"), "{said}");
}

/// When it dies, and what the processes do then.
const CASES: [(&str, &str); 7] = [
    ("the workers are open", "--count 100000000"),
    ("warms up", "--warm-up 1000000000"),
    ("is in full swing", "--duration 600"),
    ("is in full swing", "--duration 600 --packing ovfl --full wait --pattern random"),
    ("is in full swing", "--duration 600 --packing plain --full back --pattern pairwise"),
    ("is in full swing", "--duration 600 --size 20000 --pattern hot-spot --target 1"),
    ("has made its calls", "--count 20000"),
];

/// The same with other kinds of calls.
const KINDS: [(&str, &str); 3] = [
    ("is in full swing", "--duration 600 --kind return --pattern random"),
    ("is in full swing", "--duration 600 --kind read --size 50000 --every 32"),
    ("is in full swing", "--duration 600 --kind broadcast --every 32 --full wait"),
];

fn in_each_case(url: &str, cases: &[(&str, &str)]) {
    for (phase, arguments) in cases.iter().copied() {
        let shared = ["--local", "4", "--threads", "2", "--verbose", "--url", url];
        let given: Vec<&str> = arguments.split_whitespace().collect();
        let (code, said) = killed(command(RUNNER, &[&shared[..], &given].concat()), 1, phase);
        // A rank that exits counts before the one that was killed.
        assert_eq!(code, Some(1), "{phase}, {arguments}: {said}");
        assert_named(&said, 1, 4);
        let ends = "ranks 0, 2 and 3: exit status: 1; rank 1: signal: 9 (SIGKILL)";
        assert!(said.contains(ends), "none was killed by the runner: {said}");
    }
}

#[test]
fn whoever_is_killed_is_named_by_all_others_over_shared_memory() {
    in_each_case("sm://", &CASES);
}

#[test]
fn whoever_is_killed_is_named_by_all_others_over_tcp() {
    in_each_case("tcp://127.0.0.1", &CASES);
}

#[test]
fn whoever_is_killed_is_named_by_all_others_over_libfabric() {
    if has_ofi("whoever_is_killed_is_named_by_all_others_over_libfabric") {
        in_each_case(OFI, &CASES[..3]);
    }
}

#[test]
fn whoever_is_killed_amid_results_buffers_or_broadcasts_is_named_as_well() {
    in_each_case("sm://", &KINDS);
}

#[test]
fn whoever_is_killed_amid_results_buffers_or_broadcasts_is_named_over_tcp_as_well() {
    in_each_case("tcp://127.0.0.1", &KINDS);
}

#[test]
fn under_open_mpi_a_killed_process_is_named_by_all_others() {
    const NAME: &str = "under_open_mpi_a_killed_process_is_named_by_all_others";
    if !has("mpirun.openmpi", NAME) {
        return;
    }
    let own = ["--allow-run-as-root", "--oversubscribe", "--enable-recovery"];
    let keep = ["--mca", "orte_abort_on_non_zero_status", "0", "-n", "3"];
    let shell = ["sh", "-c", "\"$0\" \"$@\"; echo ended $?", RUNNER];
    let work = ["--verbose", "--duration", "600"];
    let given = [&own[..], &keep, &shell, &work].concat();
    let (_, said) = killed(command("mpirun.openmpi", &given), 1, "is in full swing");
    let mut ends: Vec<&str> =
        said.lines().filter_map(|line| line.trim().strip_prefix("ended ")).collect();
    ends.sort_unstable();
    assert_eq!(ends, ["1", "1", "137"], "{said}");
    assert_named(&said, 1, 3);
}
