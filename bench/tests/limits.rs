//! `hg-perf limits` as its users run it: the lines it prints, and what it leaves behind.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use common::{Killed, ended, hg_perf, lines, number, text};

#[test]
fn quick_limits_print_one_json_object_a_line() {
    let lines = lines(&["limits", "--quick"]);
    let figures: BTreeSet<&str> = lines.iter().map(|line| text(line, "figure")).collect();
    let expected = [
        "cache_line_round_trip",
        "ring_rate",
        "handover_rate",
        "eventfd_round_trip",
        "futex_round_trip",
        "unix_round_trip",
        "tcp_round_trip",
        "tcp_stream",
        "memcpy",
        "cma",
    ];
    assert_eq!(figures, BTreeSet::from(expected));
    lines.iter().for_each(check);
    for (figure, op) in [("memcpy", None), ("cma", Some("pull")), ("cma", Some("push"))] {
        let of = |l: &&Value| {
            l["figure"] == figure && l["op"].as_str() == op && l.get("inflight").is_none()
        };
        let sizes: Vec<u64> = lines
            .iter()
            .filter(of)
            .map(|l| l["size"].as_u64().unwrap_or_else(|| panic!("{l}")))
            .collect();
        assert_eq!(sizes, [4 << 10, 64 << 10, 1 << 20, 16 << 20], "{figure}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a skip is said aloud")]
fn a_terminal_shows_how_far_it_is_and_a_pipe_does_not() {
    let (succeeded, _, said) = ended(hg_perf(&["limits", "--quick", "--repetitions", "2"]));
    assert!(succeeded && said.is_empty(), "{said}");
    let shell = format!("{} limits --quick --repetitions 2", env!("CARGO_BIN_EXE_hg-perf"));
    let mut script = Command::new("script");
    script.args(["-qec", &shell, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    match script.stderr(Stdio::piped()).spawn() {
        Ok(run) => {
            let (succeeded, out, said) = ended(run);
            assert!(succeeded, "{said}");
            let (before, table) = out.split_once("placement: ").unwrap_or_else(|| panic!("{out}"));
            assert!(before.contains("\rround 1 of 2\u{1b}[K"), "{before:?}");
            assert!(before.ends_with("\r\u{1b}[K"), "the line is gone: {before:?}");
            assert!(!table.contains("round "), "{table}");
            // Once: second processes say nothing.
            let debug = "this is a debug build: its figures mean nothing; build with --release";
            let count = out.matches(debug).count();
            assert_eq!(count, usize::from(cfg!(debug_assertions)), "{out:?}");
            assert_eq!(out.starts_with(debug), cfg!(debug_assertions), "{out:?}");
        }
        Err(_) => println!(
            "SKIPPED: a_terminal_shows_how_far_it_is_and_a_pipe_does_not: script is not installed"
        ),
    }
}

/// Unit, repetitions and caches of one line.
fn check(line: &Value) {
    let figure = text(line, "figure");
    let unit = match (figure, line["inflight"].as_u64()) {
        (_, Some(2..)) => "1/s",
        ("memcpy" | "cma" | "tcp_stream", _) => "MiB/s",
        _ => "us",
    };
    assert_eq!(line["unit"], unit, "{line}");
    assert_eq!(line["repetitions"], 5, "{line}");
    assert!(number(line, "min") > 0.0, "{line}");
    let caches = ["memcpy", "cma"].contains(&figure).then_some("hot");
    assert_eq!(line["caches"].as_str(), caches, "{line}");
}

#[test]
fn a_table_states_the_placement() {
    let (succeeded, output, said) = ended(hg_perf(&["limits", "--quick", "--repetitions", "1"]));
    assert!(succeeded, "{said}");
    let first = output.lines().next().expect("one line at least");
    let placement = first.strip_prefix("placement: ").and_then(|rest| rest.split(' ').next());
    assert!(matches!(placement, Some("near" | "between" | "far" | "one-core")), "{first}");
}

#[test]
fn second_processes_die_with_a_killed_parent_even_while_they_spin() {
    // One kill may come just after the spinning: without the death signal, ten never all do.
    for _ in 0..10 {
        let mut run = Killed(hg_perf(&["limits", "--quick", "--repetitions", "1000000"]));
        watchdog::until("no second process spins", || spins(run.0.id()));
        run.0.kill().expect("it runs until it is killed");
        run.0.wait().expect("it is a child of this process");
        // All second processes have inherited standard error: it ends with the last of them.
        let mut stderr = run.0.stderr.take().expect("nobody else reads it");
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(stderr.read_to_end(&mut Vec::new())));
        watchdog::hear(&receiver).expect("standard error can be read");
    }
}

#[test]
fn a_second_process_without_its_parent_refuses_to_start() {
    let (succeeded, _, said) = ended(hg_perf(&["peer", "memory", "--parent", "1"]));
    assert!(!succeeded && said.contains("the parent is gone"), "{said}");
}

/// Whether one of this process's children is running in a measurement that spins.
fn spins(parent: u32) -> bool {
    let parent = parent.to_string();
    fs::read_dir("/proc").expect("/proc is there").any(|entry| {
        let process = entry.expect("/proc can be listed").path();
        // Most entries are no processes, and a process may end while it is read.
        let read = |file| fs::read_to_string(process.join(file)).unwrap_or_default();
        let stat = read("stat");
        // After the name in parentheses: state, parent.
        let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        (rest.next(), rest.next()) == (Some("R"), Some(&parent))
            && ["cache-line", "ring"].iter().any(|role| read("cmdline").contains(role))
    })
}
