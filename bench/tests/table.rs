//! `hg-perf table`: lines that are measured by other commands, judged, and named by them.

mod common;

use serde_json::Value;

use common::{ended, hg_perf, number, parsed, text};

/// The lines of a table with one repetition.
fn judged(only: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["table", "--json", "--repetitions", "1"];
    only.iter().for_each(|name| arguments.extend(["--only", name]));
    let (succeeded, output, said) = ended(hg_perf(&arguments));
    assert!(succeeded, "{said}");
    output.lines().map(parsed).collect()
}

#[test]
fn lines_are_measured_by_the_commands_that_they_name_and_held_against_the_limits_of_their_run() {
    let lines = judged(&["call/spin", "call/4KiB", "call/adaptive", "shared/pull/1MiB/hot"]);
    let names: Vec<&str> = lines.iter().map(|line| text(line, "line")).collect();
    let expected = ["call/spin", "call/4KiB", "call/adaptive", "shared/pull/1MiB/hot"];
    assert_eq!(names, [&expected[..], &["shared/pull/1MiB/hot/cma"]].concat());
    let [spin, argument, _, shared, twice] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(spin["command"], "hg-perf rate --wait spin --repetitions 1");
    let must = number(spin, "limit_median") + 0.14;
    assert!((number(spin, "must") - must).abs() < 1e-9, "{spin}");
    let words: Vec<&str> = text(argument, "command").split(' ').collect();
    assert_eq!(common::lines(&words[1..])[0]["size"], 4096, "{argument}");
    // The must allows one copy more than the aim.
    let copy = number(argument, "must") - number(argument, "aim");
    assert!((number(argument, "limit_median") - copy).abs() < 1e-6, "{argument}");
    let limits = [&shared["limit"], &twice["limit"], &twice["must"]];
    assert_eq!(limits, [&Value::from("memcpy"), &"cma".into(), &2.0.into()]);
    for line in &lines {
        let reached = |promised: &str| match line["limit"].as_str() {
            Some("memcpy" | "cma") if line["limit_unit"] == "MiB/s" => {
                number(line, "judged") >= number(line, promised)
            }
            _ => number(line, "judged") <= number(line, promised),
        };
        assert_eq!(line["met"] == "MISSED", !reached("must"), "{line}");
    }
}

#[test]
fn a_table_for_people_has_a_line_for_each_and_counts_them() {
    let arguments = ["table", "--only", "call/block", "--repetitions", "1"];
    let (succeeded, output, said) = ended(hg_perf(&arguments));
    assert!(succeeded, "{said}");
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("placement at the start: "), "{output}");
    assert!(lines[2].starts_with("call/block "), "{output}");
    assert!(lines[2].ends_with("hg-perf rate --wait block --repetitions 1"), "{output}");
    assert!(lines[4].ends_with("0 not measured"), "{output}");
}

#[test]
fn names_can_be_listed_and_an_unknown_one_is_refused() {
    let (succeeded, output, said) = ended(hg_perf(&["table", "--list"]));
    assert!(succeeded, "{said}");
    assert!(output.lines().any(|line| line.starts_with("heap/pull/16MiB/cold ")), "{output}");
    let (succeeded, _, said) = ended(hg_perf(&["table", "--only", "no such line"]));
    assert!(!succeeded && said.contains("--list"), "{said}");
}
