//! Runs `hg-perf` and checks what every line of it must have.

use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Runs to the end with `--json` and checks each line.
pub(crate) fn lines(arguments: &[&str]) -> Vec<Value> {
    let mut arguments = arguments.to_vec();
    arguments.push("--json");
    let (succeeded, output, said) = ended(hg_perf(&arguments));
    assert!(succeeded, "{arguments:?}: {said}");
    let lines: Vec<Value> = output.lines().map(parsed).collect();
    assert!(!lines.is_empty());
    lines.iter().for_each(check);
    lines
}

/// Keys and order of the numbers of one line; a limit is there whole or not at all.
fn check(line: &Value) {
    let known = ["figure", "url", "via", "op", "memory", "segments", "caches", "size", "inflight"];
    let known = known.into_iter().chain(["wait", "peers", "unit", "median", "p99", "min", "max"]);
    let known: BTreeSet<&str> =
        known.chain(["repetitions", "limit", "limit_median", "ratio", "ring_ratio"]).collect();
    let keys = line.as_object().unwrap_or_else(|| panic!("{line}")).keys().map(String::as_str);
    assert!(keys.into_iter().all(|key| known.contains(key)), "{line}");
    assert!(!text(line, "figure").is_empty(), "{line}");
    for key in ["median", "p99"] {
        let range = number(line, "min")..=number(line, "max");
        assert!(range.contains(&number(line, key)), "{key}: {line}");
    }
    if line.get("limit").is_some() {
        let ratio = number(line, "median") / number(line, "limit_median");
        assert!((number(line, "ratio") / ratio - 1.0).abs() < 1e-9, "{line}");
    }
}

/// A line of `--json`.
pub(crate) fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// A text of a line.
pub(crate) fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_else(|| panic!("{key}: {line}"))
}

/// A number of a line.
pub(crate) fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"))
}

/// A process that does not outlive the test.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program.
pub(crate) fn hg_perf(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hg-perf"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hg-perf starts")
}

/// Whether it succeeded, its output and its errors; the test is ended when it does not end.
pub(crate) fn ended(run: Child) -> (bool, String, String) {
    let mut run = Killed(run);
    let Output { status, stdout, stderr } = watchdog::ended(&mut run.0);
    let [output, errors] =
        [stdout, stderr].map(|said| String::from_utf8(said).expect("what is said is text"));
    (status.success(), output, errors)
}
