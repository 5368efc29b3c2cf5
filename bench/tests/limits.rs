//! `hg-perf limits` as its users run it: the lines it prints, and what it leaves behind.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn quick_limits_print_one_json_object_a_line() {
    let mut run = hg_perf(&["limits", "--quick", "--json"]);
    let output = read_to_end(run.stdout.take().unwrap(), &mut run);
    assert!(run.wait().unwrap().success());

    let lines: Vec<Value> = output.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let figures: BTreeSet<&str> = lines.iter().map(|l| l["figure"].as_str().unwrap()).collect();
    let expected = [
        "cache_line_round_trip",
        "ring_rate",
        "eventfd_round_trip",
        "futex_round_trip",
        "unix_round_trip",
        "tcp_round_trip",
        "memcpy",
        "cma",
    ];
    assert_eq!(figures, BTreeSet::from(expected));
    for line in &lines {
        check(line);
    }
    for figure in ["memcpy", "cma"] {
        let sizes: Vec<u64> = lines
            .iter()
            .filter(|l| l["figure"] == figure)
            .map(|l| l["size"].as_u64().unwrap())
            .collect();
        assert_eq!(sizes, [4 << 10, 64 << 10, 1 << 20, 16 << 20], "{figure}");
    }
}

/// Keys, unit and order of the numbers of one line.
fn check(line: &Value) {
    let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
    let unit = match line["figure"].as_str().unwrap() {
        "ring_rate" => "1/s",
        "memcpy" | "cma" => "MiB/s",
        _ => "us",
    };
    assert_eq!(line["unit"], unit, "{line}");
    assert_eq!(line["repetitions"], 5, "{line}");
    assert!(number("min") > 0.0, "{line}");
    for key in ["median", "p99"] {
        assert!((number("min")..=number("max")).contains(&number(key)), "{key}: {line}");
    }
    let known = ["figure", "size", "inflight", "wait", "unit"];
    let known = known.into_iter().chain(["median", "p99", "min", "max", "repetitions"]);
    let known: BTreeSet<&str> = known.collect();
    let keys = line.as_object().unwrap().keys().map(String::as_str);
    assert!(keys.into_iter().all(|key| known.contains(key)), "{line}");
}

#[test]
fn a_table_states_the_placement() {
    let mut run = hg_perf(&["limits", "--quick", "--repetitions", "1"]);
    let output = read_to_end(run.stdout.take().unwrap(), &mut run);
    assert!(run.wait().unwrap().success());
    let first = output.lines().next().unwrap();
    let placement = first.strip_prefix("placement: ").and_then(|rest| rest.split(' ').next());
    assert!(matches!(placement, Some("near" | "between" | "far" | "one-core")), "{first}");
}

#[test]
fn second_processes_die_with_a_killed_parent_even_while_they_spin() {
    // One kill may come just after the spinning: without the death signal, ten never all do.
    for _ in 0..10 {
        let mut run = hg_perf(&["limits", "--quick", "--repetitions", "1000000"]);
        let deadline = Instant::now() + WATCHDOG;
        while !spins(run.id()) {
            assert!(Instant::now() < deadline, "no second process spins");
            thread::yield_now();
        }
        run.kill().unwrap();
        run.wait().unwrap();
        // All second processes have inherited standard error: it ends with the last of them.
        let stderr = run.stderr.take().unwrap();
        read_to_end(stderr, &mut run);
    }
}

#[test]
fn a_second_process_without_its_parent_refuses_to_start() {
    let mut run = hg_perf(&["peer", "memory", "--parent", "1"]);
    let said = read_to_end(run.stderr.take().unwrap(), &mut run);
    assert!(!run.wait().unwrap().success());
    assert!(said.contains("the parent is gone"), "{said}");
}

/// Whether one of this process's children is running in a measurement that spins.
fn spins(parent: u32) -> bool {
    let parent = parent.to_string();
    fs::read_dir("/proc").unwrap().any(|entry| {
        let process = entry.unwrap().path();
        // Most entries are no processes, and a process may end while it is read.
        let read = |file| fs::read_to_string(process.join(file)).unwrap_or_default();
        let stat = read("stat");
        // After the name in parentheses: state, parent.
        let mut rest = stat.rsplit(')').next().unwrap().split_whitespace();
        (rest.next(), rest.next()) == (Some("R"), Some(&parent))
            && ["cache-line", "ring"].iter().any(|role| read("cmdline").contains(role))
    })
}

fn hg_perf(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hg-perf"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Everything until the end of the stream; kills the process when that does not come.
fn read_to_end(mut stream: impl Read + Send + 'static, run: &mut Child) -> String {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let _ = sender.send(stream.read_to_string(&mut text).map(|_| text));
    });
    let Ok(text) = receiver.recv_timeout(WATCHDOG) else {
        let _ = run.kill();
        panic!("hg-perf did not end within {WATCHDOG:?}");
    };
    text.unwrap()
}

const WATCHDOG: Duration = Duration::from_secs(60);
