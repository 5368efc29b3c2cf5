//! `multicast-runner` with each of its options, and what it says then: in tables, lines and files.

use serde_json::Value;

use crate::{
    common::has,
    hosts::{Hosts, or_skip},
    running::{local, well},
};

#[test]
fn objects_are_right_however_they_travel() {
    for way in [&["--mapped"][..], &["--no-checksum"], &["--in-flight", "4"]] {
        let words = ["--size", "1,700K", "--block-size", "64K", "--count", "2"];
        for schedule in ["auto", "pipeline"] {
            let lines = well(&local("4", &[way, &words, &["--schedule", schedule]].concat()));
            assert_eq!(lines.len(), 3, "{way:?}");
        }
    }
}

#[test]
fn objects_go_to_all_455_groups_of_three_among_fifteen() {
    let words = ["--pattern", "trace", "--count", "455", "--scale", "0.0005"];
    let lines = well(&local("16", &words));
    assert_eq!((&lines[0]["groups"], &lines[0]["objects"]), (&455.into(), &455.into()));
}

#[test]
fn mpi_is_measured_beside_it() {
    const NAME: &str = "mpi_is_measured_beside_it";
    let is_there = |kind: &&str| {
        // The compiler comes with the package of headers.
        let compiler = format!("mpicc.{kind}");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_compiler = std::env::split_paths(&path).any(|it| it.join(&compiler).is_file());
        if !has_compiler {
            println!("SKIPPED: {NAME}: lib{kind}-dev is not installed");
        }
        has_compiler && has(&format!("mpirun.{kind}"), NAME)
    };
    let kinds: Vec<&str> = ["openmpi", "mpich"].into_iter().filter(is_there).collect();
    if kinds.is_empty() {
        return;
    }
    let lines = well(&local("2", &["--mpi", "--size", "1,300K", "--count", "3"]));
    for (line, (kind, size)) in
        lines.iter().zip(kinds.iter().flat_map(|it| [(it, 1), (it, 300 << 10)]))
    {
        assert_eq!(
            (&line["what"], &line["size"]),
            (&format!("MPI_Bcast {kind}").into(), &size.into())
        );
        assert!(line["objects_per_s"].as_f64() > Some(0.0), "{line}");
    }
    assert_eq!(lines.len(), 2 * kinds.len() + 3);
}

#[test]
fn copies_to_all_at_once_and_one_after_the_other_are_measured_to_their_end() {
    let Some(_hosts) = or_skip(Hosts::new(1)) else { return };
    let outcome = local("2", &["--link", "200mbit", "--size", "1M", "--copy"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let lines = outcome.lines();
    assert_eq!(lines.len(), 1, "{}", outcome.all());
    assert_eq!((&lines[0]["hosts"], &lines[0]["bytes"]), (&2.into(), &(1 << 20).into()));
    let number = |name: &str| lines[0][name].as_f64().unwrap();
    // No copy is faster than the link: 42 ms.
    assert!(number("all_at_once_seconds") > 0.04, "{}", lines[0]);
    let times = number("one_after_the_other_seconds") / number("all_at_once_seconds");
    assert!((number("times_faster") - times).abs() < 1e-9, "{}", lines[0]);
}

/// A step is the time of a block: 42 ms, beside which a busy machine is quiet.
#[test]
fn a_stall_of_100_us_costs_less_than_a_step_and_one_of_20_steps_costs_most_of_them() {
    let Some(_hosts) = or_skip(Hosts::new(1)) else { return };
    let cost = |stall: &str| {
        let link = ["--link", "200mbit", "--size", "8M", "--block-size", "1M"];
        let what = ["--schedule", "pipeline", "--count", "5", "--stall", stall];
        let lines = well(&local("4", &[link, what].concat()));
        assert_eq!((&lines[0]["what"], lines.len()), (&"pipeline".into(), 3));
        assert_eq!(lines[1]["what"], "pipeline stalled");
        let median = |line: &Value| line["seconds_median"].as_f64().unwrap();
        median(&lines[1]) - median(&lines[0])
    };
    let step = 8.0 * f64::from(1 << 20) / 200e6;
    let short = cost("1:0:100");
    assert!(short < step, "{short} s");
    let long = cost("1:0:840000");
    assert!(long > 10.0 * step, "{long} s");
}

#[test]
fn a_stall_before_a_block_that_is_not_sent_is_said() {
    let words = ["--schedule", "sequential", "--size", "100K", "--stall", "1:0:10"];
    let outcome = local("3", &words);
    let said = "--stall: member 1 stops for 10 us before it sends block 0: it sends that to nobody";
    assert_eq!(
        (outcome.code, outcome.err.matches(said).count()),
        (Some(1), 1),
        "{}",
        outcome.all()
    );
}
