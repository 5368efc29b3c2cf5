//! `hg-perf invoke`: calls between workers, each figure beside its limit.

mod common;

use common::{lines, number, text};

#[test]
fn every_way_of_calling_a_worker_stands_beside_its_limit() {
    let lines = lines(&["invoke", "--repetitions", "1"]);
    let named = |line: &serde_json::Value| {
        let limit = line["limit"].as_str().unwrap_or("");
        (text(line, "figure").to_owned(), line["size"].as_u64(), limit.to_owned())
    };
    let found: Vec<_> = lines.iter().map(named).collect();
    let figure =
        |name: &str, size: Option<u64>, limit: &str| (name.to_owned(), size, limit.to_owned());
    let expected = [
        figure("cache_line_round_trip", Some(8), ""),
        figure("block_stream", Some(4096), "ring_rate"),
        figure("invoke_trad", Some(8), "ring_rate"),
        figure("invoke_trad", Some(64), "ring_rate"),
        figure("calls_to_blocks", Some(64), ""),
        figure("invoke_trad", Some(256), "ring_rate"),
        figure("calls_to_blocks", Some(256), ""),
        figure("invoke_blocks", Some(4080), "block_stream"),
        figure("invoke_plain", Some(8), "ring_rate"),
        figure("invoke_ovfl", Some(8), "invoke_plain"),
        figure("invoke_thread", Some(8), "ring_rate"),
        figure("invoke_trad", Some(8), "ring_rate"),
        figure("call", Some(8), ""),
        figure("invoke_notified", Some(8), "call"),
    ];
    assert_eq!(found, expected);
    assert!(lines.iter().all(|line| number(line, "median") > 0.0), "{lines:?}");
    assert_eq!(text(&lines[11], "url"), "tcp://127.0.0.1");
    // Each call says how it stands to bare rings: by its limit, or beside it.
    for line in &lines {
        let of_calls =
            text(line, "figure").contains("invoke") || line["figure"] == "calls_to_blocks";
        assert!(!of_calls || line["limit"] == "ring_rate" || number(line, "ring_ratio") > 0.0);
    }
}

#[test]
fn over_tcp_alone_as_well() {
    let arguments = ["invoke", "--url", "tcp://127.0.0.1", "--sizes", "16", "--no-tcp"];
    let lines = lines(&[&arguments[..], &["--repetitions", "1"]].concat());
    assert_eq!(text(&lines[2], "url"), "tcp://127.0.0.1");
    assert_eq!(lines[3]["size"], 16, "{}", lines[3]);
}
