//! The program `mcts-hex` as a job of several real processes, by itself and under launchers.
#![cfg(feature = "cli")]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a skip is said aloud")]

#[path = "../../job/tests/launchers/slurm_daemons.rs"]
mod slurm_daemons;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
};

use slurm_daemons::{PROGRAMS, Slurm};
use watchdog::{Watchdog, ended};

/// The program, or one that starts it, knowing nothing of a launcher around these tests.
fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars() {
        if ["PMI", "HG_JOB_", "OMPI_", "SLURM_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

fn start(program: &str, words: &[&str]) -> Child {
    command(program, words).spawn().unwrap()
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_mcts-hex");

/// What comes of an analysis by several processes.
fn assert_analysis(output: &Output, processes: usize) {
    assert!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON, once");
    assert_eq!((&found["best"], &found["processes"]), (&"b3".into(), &processes.into()));
    assert_eq!(found["threads"].as_array().map(Vec::len), Some(processes));
    let sum = |name: &str| -> u64 {
        let threads = found["threads"].as_array().expect("a list");
        threads.iter().filter_map(|it| it[name].as_u64()).sum()
    };
    // Some ended where the result was known.
    assert!((1..=320_000).contains(&sum("simulations")));
    assert_eq!((&found["simulations"], &found["visits"]), (&320_000.into(), &320_000.into()));
    assert!(sum("messages") > 0 && sum("bytes") > 0);
    for left in ["under_way", "waiting", "unbalanced_nodes"] {
        assert_eq!(found["left_over"][left], 0);
    }
}

const ANALYSIS: [&str; 6] =
    ["analyze", "--size=4", "--rollouts=20000", "--exploration=1", "--json", "b2"];
const WAYS: [&str; 2] = ["--parallel=merged", "--parallel=tree"];

#[test]
fn several_processes_analyse_and_play_as_one() {
    let _watchdog = Watchdog::start();
    for url in ["sm://", "tcp://127.0.0.1"] {
        for way in WAYS {
            let words = [&["--local=2", "--url", url, way], &ANALYSIS[..]].concat();
            assert_analysis(&ended(&mut start(PROGRAM, &words)), 2);
        }
    }
    let json = |words: &[&str]| -> serde_json::Value {
        let output = ended(&mut start(PROGRAM, words));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let words = ["self-play", "--local=2", "--threads=2", "--size=4", "--rollouts=20000", "--json"];
    assert_eq!(json(&words)["winner"], "first");
    let words = ["match", "--local=2", "--size=3", "--rollouts=200", "--games=2", "--json"];
    assert_eq!(json(&[&words[..], &["--against=alone,threads=2"]].concat())["games"], 2);
}

#[test]
fn the_first_process_speaks_gtp_for_all() {
    let _watchdog = Watchdog::start();
    let mut command = command(PROGRAM, &["--gtp", "--local=2", "--rollouts=20000"]);
    let mut program = command.stdin(Stdio::piped()).spawn().unwrap();
    let typed = b"boardsize 4\nplay b a2\ngenmove w\nquit\n";
    program.stdin.take().unwrap().write_all(typed).unwrap();
    let said = ended(&mut program).stdout;
    assert_eq!(String::from_utf8_lossy(&said), "= \n\n= \n\n= b3\n\n= \n\n");
}

/// Is there such a program? If not, the test says that it is skipped.
fn has(program: &str, test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        println!("SKIPPED: {test}: {program} is not installed");
    }
    found
}

#[test]
fn under_both_mpis_several_processes_analyse_as_one() {
    const NAME: &str = "under_both_mpis_several_processes_analyse_as_one";
    for (launcher, own) in [
        ("mpirun.mpich", &["-n", "3"][..]),
        ("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe", "-n", "3"]),
    ] {
        if has(launcher, NAME) {
            let _watchdog = Watchdog::start();
            for way in WAYS {
                let words = [own, &[PROGRAM, way], &ANALYSIS[..]].concat();
                assert_analysis(&ended(&mut start(launcher, &words)), 3);
            }
        }
    }
}

#[test]
fn under_slurm_several_processes_analyse_as_one() {
    const NAME: &str = "under_slurm_several_processes_analyse_as_one";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let slurm = Slurm::start();
    let _watchdog = Watchdog::start();
    for mpi in ["pmi2", "pmix"] {
        let words = [&Slurm::arguments("3", mpi), &[PROGRAM][..], &ANALYSIS].concat();
        let mut srun = command("srun", &words);
        assert_analysis(&ended(&mut srun.envs(slurm.variables()).spawn().unwrap()), 3);
    }
}

/// The process of a rank below the runner.
fn rank(runner: u32, rank: u32) -> Option<u32> {
    let name = format!("HG_JOB_RANK={rank}");
    watchdog::below(runner).into_iter().find(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|it| it == name.as_bytes())
    })
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Stops one process of three after the other, each in a search of its own.
fn stops(url: &str, way: &str, who: std::ops::Range<u32>) {
    let _watchdog = Watchdog::start();
    for stopped in who {
        let time = if way == "tree" { "--time=600" } else { "--time=2" };
        let words = ["--local=3", "--patience=3", "--progress", "analyze", "--url", url, time];
        let mut runner = start(PROGRAM, &[&words[..], &["--parallel", way]].concat());
        let mut lines = BufReader::new(runner.stderr.take().expect("piped")).lines();
        // The search is under way.
        let line = lines.next().expect("a line").expect("text");
        assert!(line.contains(" simulations, "), "{line}");
        let pid = rank(runner.id(), stopped).expect("it lives");
        signal(pid, "-STOP");
        let name = format!("mcts-hex: process {stopped} has not answered for ");
        let said = lines.by_ref().map_while(Result::ok);
        let naming = said.filter(|line| line.starts_with(&name)).take(2).count();
        assert_eq!(naming, 2, "both others name process {stopped}");
        // It finds itself alone.
        signal(pid, "-CONT");
        let said: Vec<String> = lines.map_while(Result::ok).collect();
        assert_eq!(runner.wait().expect("it ends").code(), Some(1), "{said:?}");
    }
}

#[test]
fn a_process_that_is_stopped_in_the_middle_of_a_search_is_named_and_the_others_end() {
    stops("sm://", "tree", 0..3);
}

#[test]
fn a_process_that_is_stopped_in_the_middle_of_a_search_over_tcp_is_named_and_the_others_end() {
    stops("tcp://127.0.0.1", "tree", 0..3);
}

/// With a tree each nobody waits before the time is over.
#[test]
fn a_process_that_is_stopped_in_a_search_with_a_tree_each_is_named_and_the_others_end() {
    stops("sm://", "root", 1..3);
}

/// With a tree each that are merged only the leader waits after the time.
#[test]
fn a_process_that_is_stopped_in_a_search_with_merged_trees_is_named_and_the_others_end() {
    stops("sm://", "merged", 0..2);
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_search_is_named_and_the_others_end() {
    let _watchdog = Watchdog::start();
    for (url, threads, way) in [
        ("sm://", "--threads=1", "tree"),
        ("tcp://127.0.0.1", "--threads=2", "tree"),
        ("sm://", "--threads=1", "merged"),
    ] {
        for dead in 0..3 {
            let words = ["--local=3", "--time=600", "--progress", "analyze", "--url", url, threads];
            let mut runner = start(PROGRAM, &[&words[..], &["--parallel", way]].concat());
            let mut lines = BufReader::new(runner.stderr.take().expect("piped")).lines();
            // The search is under way.
            let line = lines.next().expect("a line").expect("text");
            assert!(line.contains(" simulations, "), "{line}");
            signal(rank(runner.id(), dead).expect("it lives"), "-KILL");
            let said: Vec<String> = lines.map_while(Result::ok).collect();
            let mut out = String::new();
            runner.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
            assert_eq!(runner.wait().expect("it ends").code(), Some(1), "{said:?}");
            assert!(out.is_empty(), "{out}");
            let name = format!("mcts-hex: process {dead} is gone: ");
            let naming = said.iter().filter(|line| line.starts_with(&name)).count();
            assert_eq!(naming, 2, "both others name process {dead}: {said:?}");
        }
    }
}
