//! `multicast-runner` with each of its options, and what it says then: in tables, lines and files.

use std::{collections::BTreeSet, fs, thread};

use serde_json::Value;

use crate::{
    RUNNER,
    common::{File, has, run},
    running::{has_links, local, well},
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

/// The numbers of a table's lines that begin with this word.
fn rows<'a>(text: &'a str, what: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|words| words.first() == Some(&what)).collect()
}

#[test]
fn a_table_says_what_lines_of_json_say() {
    let said = run(RUNNER, &["--local", "3", "--size", "1,2M", "--count", "1"], &[]);
    let of_groups = ["--local", "4", "--pattern", "half", "--size", "300K", "--count", "2"];
    let groups = run(RUNNER, &of_groups, &[]);
    for said in [&said, &groups] {
        assert_eq!(said.code, Some(0), "{}", said.all());
        let last = "every byte of every object was verified at every receiver";
        assert_eq!(said.out.lines().last(), Some(last), "{}", said.all());
        assert!(said.out.contains("MB/s  objects/s"), "{}", said.out);
        let rows = rows(&said.out, "auto");
        assert!(!rows.is_empty() && rows.iter().all(|row| row.len() == 13), "{}", said.out);
    }
    let rows_of_one = rows(&said.out, "auto");
    assert_eq!(rows_of_one.iter().map(|row| row[2]).collect::<Vec<_>>(), ["1", "2097152"]);
    let number = |text: &str| text.parse::<f64>().unwrap();
    let (ms, objects_per_s) = (number(rows_of_one[1][4]), number(rows_of_one[1][8]));
    // Both are rounded: to a microsecond, of two milliseconds or more, and to a tenth.
    assert!((1e3 / ms - objects_per_s).abs() < 0.06 + 1.0 / ms / ms, "{}", said.out);
    let row = &rows(&groups.out, "auto")[0];
    assert_eq!([row[1], row[2], row[4], row[5]], ["4", "2", "4", "1228800"]);
    assert!(number(row[3]) > 0.0, "groups form in some time: {}", groups.out);
}

#[test]
fn a_rate_of_objects_stands_in_every_line() {
    let rate = |line: &Value| line["objects_per_s"].as_f64().unwrap();
    let lines = well(&local("8", &["--size", "1", "--count", "20"]));
    let product = rate(&lines[0]) * lines[0]["seconds_median"].as_f64().unwrap();
    assert!((product - 1.0).abs() < 1e-9, "{}", lines[0]);
    let lines = well(&local("4", &["--pattern", "all", "--size", "1", "--count", "20"]));
    let product = rate(&lines[0]) * lines[0]["seconds"].as_f64().unwrap();
    assert!((product - 80.0).abs() < 1e-6, "{}", lines[0]);
}

/// More of them than fit into one message between ranks.
#[test]
fn a_trace_has_every_event_of_the_last_object() {
    let file = File::new("trace.jsonl");
    let words = ["--size", "5000K", "--block-size", "1K", "--schedule", "chain", "--count", "1"];
    well(&local("3", &[&words[..], &["--trace", file.text()]].concat()));
    let text = fs::read_to_string(&file.0).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |what: &str| -> BTreeSet<(u64, u64)> {
        let number = |event: &Value, name: &str| event[name].as_u64().unwrap();
        let events = events.iter().filter(|event| event["what"] == what);
        events.map(|event| (number(event, "member"), number(event, "block"))).collect()
    };
    let expected = |first: u64| (first..first + 2).flat_map(|it| (0..5000).map(move |at| (it, at)));
    for (what, first) in [("offered", 0), ("taken", 0), ("begun", 1), ("arrived", 1)] {
        assert!(of(what).into_iter().eq(expected(first)), "{what}: {}", of(what).len());
    }
    assert_eq!(events.len(), 40_000);
    assert!(events.is_sorted_by_key(|event| event["at_us"].as_u64()));
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
    if !has_links() {
        return;
    }
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

/// A step is the time of a block: 210 ms, beside which a busy machine is quiet. What else it does makes objects slower, and none faster: the
/// fastest ones are compared.
#[test]
fn a_stall_of_100_us_or_half_a_step_costs_less_than_a_step_and_one_of_eight_most_of_them() {
    if !has_links() {
        return;
    }
    // The first object finds full buckets, and is faster: it does not count.
    let cost = |stall: &str, count: &str| {
        let link = ["--link", "10mbit", "--size", "1M", "--block-size", "256K"];
        let what = ["--schedule", "pipeline", "--count", count, "--stall", stall];
        let lines = well(&local("3", &[&link[..], &what].concat()));
        assert_eq!((&lines[0]["what"], lines.len()), (&"pipeline".into(), 3));
        assert_eq!(lines[1]["what"], "pipeline stalled");
        let fastest = |line: &Value| line["seconds_min"].as_f64().unwrap();
        fastest(&lines[1]) - fastest(&lines[0])
    };
    let step = 8.0 * f64::from(256 << 10) / 10e6;
    // Each has links of its own. The root has no step in which it waits.
    thread::scope(|scope| {
        let short = ["0:1:100", "1:0:100", "0:1:105000"]
            .map(|stall| (stall, scope.spawn(move || cost(stall, "5"))));
        let long = cost("0:1:1680000", "3");
        assert!((4.0 * step..1.68 + step).contains(&long), "{long} s");
        for (stall, short) in short {
            let short = short.join().unwrap();
            assert!(short < step, "{stall}: {short} s");
        }
    });
}

#[test]
fn a_stall_before_a_block_that_is_not_sent_is_said_where_the_schedule_tells_before_anything_is_measured()
 {
    let nobody = "before it sends block 0: it sends that to nobody";
    let tree = format!("member 2 stops for 10 us {nobody} by `--schedule tree`; these do: 0");
    for (schedule, stall, said, is_measured) in [
        ("auto", "1:0:10", &*format!("member 1 stops for 10 us {nobody}"), true),
        (
            "chain,tree",
            "2:0:10",
            "member 2 stops for 10 us before it sends block 0: it sends that to nobody by `--schedule chain`; these do: 0, 1",
            false,
        ),
        ("tree", "2:0:10", &tree, false),
        ("pipeline", "0:7:10", "an object of 102400 bytes has no block 7", false),
    ] {
        let words = ["--size", "100K", "--block-size", "16K", "--schedule", schedule];
        let outcome = local("3", &[&words[..], &["--stall", stall]].concat());
        let line = format!("multicast-runner: --stall: {said}\n");
        assert_eq!(
            (outcome.code, outcome.err.matches(&line).count()),
            (Some(1), 1),
            "{}",
            outcome.all()
        );
        assert_eq!(!outcome.out.is_empty(), is_measured, "{}", outcome.all());
    }
}

#[test]
fn an_option_that_would_be_dropped_is_refused_by_name() {
    let refused = |words: &[&str], why: &str| {
        let outcome = run(RUNNER, words, &[]);
        let times = outcome.err.matches(why).count();
        assert_eq!((outcome.code, times), (Some(1), 1), "{words:?}: {}", outcome.all());
    };
    for words in [
        &["--block-size", "64K"][..],
        &["--schedule", "chain"],
        &["--count", "3"],
        &["--warm-up", "1"],
        &["--in-flight", "1"],
        &["--mapped"],
        &["--stall", "1:0:1"],
        &["--no-checksum"],
        &["--url", "tcp://"],
        &["--setting", "routing=off"],
        &["--mpi"],
        &["--plot", "x.svg"],
        &["--trace", "x.jsonl"],
    ] {
        let copy = ["--local", "2", "--link", "1gbit", "--copy"];
        let why = format!("{}: does not go with `--copy`", words[0]);
        refused(&[&copy, words].concat(), &why);
    }
    let (one, trace) = ("`--pattern one`", "`--pattern trace`");
    let not_trace = "`--pattern one` or `--pattern all` or `--pattern half`";
    let not_one = "`--pattern all` or `--pattern half` or `--pattern trace`";
    for (pattern, words, with) in [
        ("one", &["--queue", "4"][..], not_one),
        ("one", &["--scale", "1"], trace),
        ("all", &["--warm-up", "1"], one),
        ("half", &["--scale", "1"], trace),
        ("half", &["--mapped"], one),
        ("all", &["--stall", "1:0:1"], one),
        ("trace", &["--plot", "x.svg"], one),
        ("trace", &["--trace", "x.jsonl"], one),
        ("trace", &["--warm-up", "1"], one),
        ("trace", &["--size", "64M"], not_trace),
    ] {
        let why = format!("{}: goes with {with} only", words[0]);
        refused(&[&["--local", "4", "--pattern", pattern], words].concat(), &why);
    }
}
