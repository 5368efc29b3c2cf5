//! Every subcommand that measures calls, with few repetitions: the lines that it prints.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

#[test]
fn a_call_stands_beside_the_limit_of_its_mode() {
    let limits = [
        ("spin", "1", "cache_line_round_trip"),
        ("block", "1", "eventfd_round_trip"),
        ("adaptive", "1", "cache_line_round_trip"),
        ("spin", "16", "ring_rate"),
    ];
    for (wait, inflight, limit) in limits {
        let lines = lines(&["rate", "--wait", wait, "--inflight", inflight, "--repetitions", "1"]);
        let call = &lines[0];
        assert_eq!((&call["figure"], &call["url"]), (&"call".into(), &"sm://".into()), "{call}");
        assert_eq!((&call["wait"], &call["size"]), (&wait.into(), &8.into()), "{call}");
        assert_eq!(call["unit"], if inflight == "1" { "us" } else { "1/s" }, "{call}");
        assert_eq!(call["limit"], limit, "{call}");
        let ratio = number(call, "median") / number(call, "limit_median");
        assert!((number(call, "ratio") / ratio - 1.0).abs() < 1e-9, "{call}");
        assert_eq!(names(&lines).contains("adaptive_to_spinning"), wait == "adaptive");
    }
}

#[test]
fn a_larger_argument_arrives_whole_several_times_in_flight() {
    let lines = lines(&["rate", "--size", "5000", "--inflight", "3", "--repetitions", "1"]);
    assert_eq!((&lines[0]["size"], &lines[0]["inflight"]), (&5000.into(), &3.into()));
}

#[test]
fn a_crowd_is_measured_in_turns_with_a_single_peer() {
    let lines = lines(&["rate", "--peers", "3", "--wait", "block", "--repetitions", "1"]);
    let peers: Vec<&Value> = lines[..2].iter().map(|line| &line["peers"]).collect();
    assert_eq!(peers, [&Value::from(1), &Value::from(4)]);
    assert_eq!(lines[2]["figure"], "crowded_to_alone");
}

#[test]
fn a_target_in_another_terminal_prints_its_address_and_is_called() {
    let mut target = Killed(hg_perf(&["target", "--wait", "block"]));
    let mut address = String::new();
    BufReader::new(target.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let rate = ["rate", "--wait", "block", "--repetitions", "1", "--to", address.trim()];
    assert_eq!(lines(&rate)[0]["figure"], "call");
}

#[test]
fn dead_and_stopped_targets_are_timed_for_every_way_of_waiting() {
    let lines = lines(&["faults", "--kills", "2", "--deadlines", "2", "--inflight", "3"]);
    for wait in ["spin", "adaptive", "block"] {
        let of = |name| lines.iter().find(|l| l["figure"] == name && l["wait"] == wait).unwrap();
        assert_eq!(
            (&of("death_to_error")["inflight"], &of("death_to_error")["repetitions"]),
            (&3.into(), &2.into())
        );
        assert_eq!(of("deadline_late")["unit"], "us");
    }
}

#[test]
fn a_soaked_target_is_measured_before_and_after() {
    let lines = lines(&["soak", "--cycles", "20", "--repetitions", "1", "--wait", "block"]);
    let names = names(&lines);
    for what in ["call", "target_rss", "target_fds", "target_mappings"] {
        for when in ["before", "after"] {
            assert!(names.contains(format!("{what}_{when}").as_str()), "{what}_{when}: {names:?}");
        }
    }
    let call = lines.iter().find(|line| line["figure"] == "call_after").unwrap();
    assert_eq!(call["limit"], "call_before");
}

#[test]
fn memory_and_descriptors_of_peers_are_counted() {
    let lines = lines(&["memory", "--peers", "3", "--large", "100000"]);
    let of = |name| lines.iter().find(|line| line["figure"] == name).unwrap();
    assert!(number(of("empty_rss"), "median") > 0.0);
    assert!(number(of("first_peer_rss"), "median") > 0.0);
    assert!(number(of("further_peer_fds"), "median") >= 1.0);
    assert!(number(of("large_messages_rss"), "median") > 0.0);
    assert!(names(&lines).contains("large_messages_kept_rss"));
}

#[test]
fn idle_engines_are_watched_on_both_sides() {
    let lines = lines(&["idle", "--seconds", "1"]);
    assert_eq!(names(&lines), BTreeSet::from(["idle_origin", "idle_target"]));
    assert_eq!(lines.len(), 4);
}

#[test]
fn instructions_are_counted_or_the_missing_tool_is_named() {
    for inflight in ["1", "4"] {
        let arguments =
            ["instructions", "--calls", "20", "--repetitions", "2", "--inflight", inflight];
        let Some(lines) = counted_with("valgrind", &arguments) else { return };
        assert_eq!(lines[0]["figure"], "instructions_per_call_and_side");
        assert!(number(&lines[0], "min") > 100.0, "{}", lines[0]);
    }
}

#[test]
fn system_calls_are_counted_or_the_missing_tool_is_named() {
    let Some(lines) = counted_with("strace", &["syscalls", "--calls", "50"]) else { return };
    let of = |wait: &str| lines.iter().find(|line| line["wait"] == wait).unwrap();
    assert_eq!(of("block")["figure"], "syscalls_per_call_and_side");
    assert_eq!(of("spin")["inflight"], 16);
}

/// The lines, or `None` where the tool is not there and the program has said so.
fn counted_with(tool: &str, arguments: &[&str]) -> Option<Vec<Value>> {
    let installed = Command::new(tool).arg("--version").output().is_ok();
    if installed {
        return Some(lines(arguments));
    }
    let (succeeded, _, said) = ended(hg_perf(arguments));
    assert!(!succeeded && said.contains(&format!("install the package `{tool}`")), "{said}");
    None
}

/// Runs to the end with `--json` and checks what every line must have.
fn lines(arguments: &[&str]) -> Vec<Value> {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let (succeeded, output, said) = ended(hg_perf(&arguments));
    assert!(succeeded, "{arguments:?}: {said}");
    let lines: Vec<Value> = output.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(!lines.is_empty());
    for line in &lines {
        check(line);
    }
    lines
}

/// Keys and order of the numbers of one line.
fn check(line: &Value) {
    let known = ["figure", "url", "size", "inflight", "wait", "peers", "unit", "median", "p99"];
    let known = known.into_iter().chain(["min", "max", "repetitions"]);
    let known: BTreeSet<&str> = known.chain(["limit", "limit_median", "ratio"]).collect();
    let keys = line.as_object().unwrap().keys().map(String::as_str);
    assert!(keys.into_iter().all(|key| known.contains(key)), "{line}");
    for key in ["median", "p99"] {
        let range = number(line, "min")..=number(line, "max");
        assert!(range.contains(&number(line, key)), "{key}: {line}");
    }
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"))
}

fn names(lines: &[Value]) -> BTreeSet<&str> {
    lines.iter().map(|line| line["figure"].as_str().unwrap()).collect()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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

/// Whether it succeeded, its output and its errors; killed when it does not end.
fn ended(run: Child) -> (bool, String, String) {
    let mut run = Killed(run);
    let (mut out, mut err) = (run.0.stdout.take().unwrap(), run.0.stderr.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut output, mut errors) = (String::new(), String::new());
        out.read_to_string(&mut output).unwrap();
        err.read_to_string(&mut errors).unwrap();
        let _ = sender.send((output, errors));
    });
    let Ok((output, errors)) = receiver.recv_timeout(WATCHDOG) else {
        panic!("hg-perf did not end within {WATCHDOG:?}");
    };
    (run.0.wait().unwrap().success(), output, errors)
}

const WATCHDOG: Duration = Duration::from_secs(60);
