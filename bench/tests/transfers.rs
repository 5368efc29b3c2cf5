//! `hg-perf bandwidth` with few repetitions: every kind of transfer beside the limit of its kind.

mod common;

use serde_json::Value;

use common::{ended, hg_perf, lines, number, text};

/// The line of the transfer itself.
fn bandwidth(more: &[&str]) -> Value {
    let line = lines(&[&["bandwidth", "--repetitions", "1"], more].concat()).swap_remove(0);
    assert_eq!((&line["figure"], &line["unit"]), (&"bandwidth".into(), &"MiB/s".into()), "{line}");
    assert!(number(&line, "median") > 0.0 && number(&line, "limit_median") > 0.0, "{line}");
    line
}

#[test]
fn heap_memory_stands_beside_cross_memory_attach_of_the_same_direction() {
    for op in ["pull", "push"] {
        let line = bandwidth(&["--op", op, "--size", "100000", "--inflight", "3"]);
        assert_eq!((&line["op"], &line["memory"]), (&op.into(), &"heap".into()));
        assert_eq!((&line["size"], &line["inflight"]), (&100_000.into(), &3.into()));
        assert_eq!((&line["limit"], &line["caches"]), (&"cma".into(), &"hot".into()));
    }
}

#[test]
fn pieces_on_both_sides_arrive_as_one_transfer() {
    let line = bandwidth(&["--segments", "7", "--size", "99999", "--wait", "block"]);
    assert_eq!((&line["segments"], &line["wait"]), (&7.into(), &"block".into()));
}

#[test]
fn shared_memory_stands_beside_a_copy_and_a_view_is_timed() {
    let line = bandwidth(&["--memory", "shared", "--size", "100000"]);
    assert_eq!((&line["memory"], &line["limit"]), (&"shared".into(), &"memcpy".into()));
    let both = lines(&["bandwidth", "--memory", "shared", "--op", "view", "--repetitions", "1"]);
    assert_eq!((&both[1]["figure"], &both[1]["unit"]), (&"view".into(), &"us".into()));
    // One is computed from the other.
    let (us, rate) = (number(&both[1], "median"), number(&both[0], "median"));
    assert!((us * rate / 1e6 - 1.0).abs() < 1e-9, "1 MiB in {us} us at {rate} MiB/s");
}

#[test]
fn a_call_whose_argument_is_pulled_stands_beside_what_it_is_made_of() {
    for (memory, limit) in [("heap", "cma_and_call"), ("shared", "call"), ("eager", "call")] {
        let arguments = ["--memory", memory, "--inflight", "4", "--size", "4096", "--with-call"];
        let lines = lines(&[&["bandwidth", "--repetitions", "1"], &arguments[..]].concat());
        let line = &lines[0];
        assert_eq!((&line["figure"], &line["limit"]), (&"call_with_pull".into(), &limit.into()));
        assert_eq!((&line["unit"], &line["memory"]), (&"1/s".into(), &memory.into()));
        assert_eq!((&lines[1]["figure"], &lines[1]["size"]), (&"call".into(), &8.into()));
        let bare: Vec<_> = lines[2..].iter().map(|line| text(line, "figure")).collect();
        let expected: &[&str] = match memory {
            "heap" => &["cma"],
            "eager" => &["handover_rate", "call_with_pull_to_handover"],
            _ => &[],
        };
        assert_eq!(bare, expected);
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_a_reason() {
    let cases: [(&[&str], &str); 3] = [
        (&["--memory", "eager"], "add --with-call"),
        (&["--memory", "shared", "--segments", "2"], "one segment"),
        (&["--with-call", "--op", "push"], "--with-call pulls"),
    ];
    for (arguments, reason) in cases {
        let (succeeded, _, said) = ended(hg_perf(&[&["bandwidth"], arguments].concat()));
        assert!(!succeeded && said.contains(reason), "{said}");
    }
}
