//! Every subcommand that measures calls, with few repetitions: the lines that it prints.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use watchdog::Watchdog;

use common::{Killed, ended, hg_perf, lines, number, text};

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
fn many_clients_are_measured_in_turns_with_one_and_with_those_that_block() {
    let lines = lines(&["clients", "--clients", "3", "--repetitions", "1"]);
    let of = |key: &str| lines[..3].iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("peers"), [1, 3, 3].map(Value::from));
    assert_eq!(of("wait"), ["adaptive", "adaptive", "block"].map(Value::from));
    let rates: Vec<f64> = lines[..3].iter().map(|line| line["median"].as_f64().unwrap()).collect();
    for (line, figure, of, to) in [(3, "clients_to_one", 1, 0), (4, "adaptive_to_block", 1, 2)] {
        assert_eq!(lines[line]["figure"], figure);
        let ratio = lines[line]["median"].as_f64().unwrap();
        assert!((ratio - rates[of] / rates[to]).abs() < 1e-6 * ratio, "{ratio}: {rates:?}");
    }
}

#[test]
fn peers_that_have_stopped_are_measured_in_turns_with_a_single_peer() {
    let lines = lines(&["hung", "--peers", "3", "--repetitions", "1"]);
    let peers: Vec<&Value> = lines[..2].iter().map(|line| &line["peers"]).collect();
    assert_eq!(peers, [&Value::from(1), &Value::from(4)]);
    assert_eq!(lines[2]["figure"], "hung_to_alone");
}

#[test]
fn a_target_in_another_terminal_prints_its_address_and_is_called() {
    let mut target = Killed(hg_perf(&["target", "--wait", "block"]));
    let mut address = String::new();
    let output = target.0.stdout.take().expect("nobody else reads it");
    BufReader::new(output).read_line(&mut address).expect("the target prints its address");
    let rate = ["rate", "--wait", "block", "--repetitions", "1", "--to", address.trim()];
    assert_eq!(lines(&rate)[0]["figure"], "call");
}

#[test]
fn a_new_peer_pays_more_for_its_first_call() {
    let lines = lines(&["first", "--repetitions", "3", "--wait", "block"]);
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&first["figure"], &second["figure"]),
        (&"first_call".into(), &"second_call".into())
    );
    assert_eq!((&first["unit"], &first["repetitions"]), (&"us".into(), &3.into()));
    assert_eq!(second["limit"], "eventfd_round_trip");
    // Connecting takes several wake-ups and descriptors: in the best of three it is no tie.
    assert!(number(first, "min") > number(second, "min"), "{lines:?}");
}

#[test]
fn dead_and_stopped_targets_are_timed_for_every_way_of_waiting() {
    let lines = lines(&["faults", "--kills", "2", "--deadlines", "2", "--inflight", "3"]);
    for wait in ["spin", "adaptive", "block"] {
        let of = |name| {
            let found = lines.iter().find(|l| l["figure"] == name && l["wait"] == wait);
            found.unwrap_or_else(|| panic!("no {name} of {wait}: {lines:?}"))
        };
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
    let call = find(&lines, "figure", "call_after");
    assert_eq!(call["limit"], "call_before");
}

#[test]
fn memory_and_descriptors_of_peers_are_counted() {
    let lines = lines(&["memory", "--peers", "3", "--large", "100000"]);
    let of = |name| find(&lines, "figure", name);
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
fn threads_and_wake_ups_are_counted_some_time_after_calls_that_block() {
    let lines = lines(&["idle", "--seconds", "1", "--after", "3", "--later", "1"]);
    let counted = ["threads_before", "threads_after_calls", "threads_later", "wakes_later"];
    for name in counted.iter().flat_map(|name| ["origin", "target"].map(|s| format!("{name}_{s}")))
    {
        assert!(names(&lines).contains(name.as_str()), "{name}: {lines:?}");
    }
}

#[test]
fn awaited_calls_and_threads_on_one_engine_stand_beside_the_plain_call() {
    let ways = ["ways", "--repetitions", "1", "--threads", "3", "--calls", "0"];
    let lines = lines(&ways);
    let of = |name: &str| lines.iter().rfind(|line| line["figure"] == name);
    for name in ["call_awaited_tokio", "call_awaited_small"] {
        assert_eq!(of(name).map(|line| &line["limit"]), Some(&"call_waited".into()), "{lines:?}");
    }
    let together = of("calls_of_threads").unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(
        (&together["inflight"], &together["limit"]),
        (&3.into(), &"calls_of_threads".into())
    );
    let slowest = of("slowest_thread_to_mean").unwrap_or_else(|| panic!("{lines:?}"));
    assert!((0.0..=1.0).contains(&number(slowest, "median")), "{slowest}");
}

#[test]
fn the_adaptive_wait_is_held_against_the_better_of_the_other_two() {
    let waits = ["waits", "--only", "two", "--inflight", "4", "--repetitions", "1"];
    let lines = lines(&waits);
    let [spin, block, adaptive, ratio] = &lines[..] else { panic!("{lines:?}") };
    let better = number(spin, "median").min(number(block, "median"));
    let expected = number(adaptive, "median") / better;
    assert!((number(ratio, "median") / expected - 1.0).abs() < 1e-9, "{lines:?}");
}

#[test]
fn the_wait_for_a_lock_is_measured_beside_pulls() {
    let lines = lines(&["held", "--size", "65536", "--repetitions", "1"]);
    let [p99, median, _, beside] = &lines[..] else { panic!("{lines:?}") };
    assert!(number(median, "median") <= number(p99, "median"), "{lines:?}");
    assert_eq!(beside["limit"], "pulls_alone");
}

#[test]
fn instructions_are_counted_or_the_missing_tool_is_named() {
    for (inflight, how) in [("1", "plain"), ("4", "deadline"), ("1", "async"), ("4", "notified")] {
        let arguments = ["instructions", "--calls", "20", "--repetitions", "1"];
        let arguments = [&arguments[..], &["--inflight", inflight, "--how", how]].concat();
        let Some(lines) = counted_with("valgrind", &arguments) else { return };
        let figure = match how {
            "plain" => "instructions_per_call_and_side",
            "deadline" => "instructions_with_deadline",
            "async" => "instructions_to_async_fn",
            _ => "instructions_notified",
        };
        assert_eq!(lines[0]["figure"], figure);
        assert!(number(&lines[0], "min") > 100.0, "{}", lines[0]);
    }
}

#[test]
fn system_calls_are_counted_or_the_missing_tool_is_named() {
    let Some(lines) = counted_with("strace", &["syscalls", "--calls", "50"]) else { return };
    let of = |wait: &str| find(&lines, "wait", wait);
    assert_eq!(of("block")["figure"], "syscalls_per_call_and_side");
    assert_eq!(of("spin")["inflight"], 16);
    assert!(names(&lines).contains("calls_per_syscall_and_side"));
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

fn names(lines: &[Value]) -> BTreeSet<&str> {
    lines.iter().map(|line| text(line, "figure")).collect()
}

/// The line of the figure, wait or whatever else has this value.
fn find<'a>(lines: &'a [Value], key: &str, value: &str) -> &'a Value {
    let found = lines.iter().find(|line| line[key] == value);
    found.unwrap_or_else(|| panic!("no line whose {key} is {value}: {lines:?}"))
}

#[test]
fn who_ends_a_run_by_a_signal_is_told_that_there_are_no_figures() {
    let _watchdog = Watchdog::start();
    let mut run = Killed(hg_perf(&["hung", "--peers", "1", "--repetitions", "1000000"]));
    let mut said = BufReader::new(run.0.stderr.take().expect("it is piped")).lines();
    let begun = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("1 hang")));
    assert!(begun.is_some());
    let process = Pid::from_raw(run.0.id().try_into().expect("a process id"));
    kill(process, Signal::SIGTERM).expect("it runs");
    let last = said.last().expect("it says something").expect("text");
    assert_eq!(run.0.wait().expect("nobody else waits for it").code(), Some(143));
    assert_eq!(last, "hg-perf: ended by a signal before the figures, which come at the end alone");
}

#[test]
fn what_is_compared_with_ucx_says_which_package_is_missing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-perf"));
    let output = command.args(["ucx", "--sizes", "8"]).env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("`ucx-utils`"), "{said}");
}

#[test]
fn what_is_compared_with_mercury_says_how_its_programs_are_built() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hg-perf"));
    let output =
        command.args(["mercury", "--sizes", "8"]).env("PATH", "/nowhere").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("BUILD_TESTING_PERF"), "{said}");
}
