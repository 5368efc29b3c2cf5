//! Strangers at the ports of the ranks, from their start to their end.

use crate::{RUNNER, common::run};

/// Connections of strangers at a time.
const COUNT: u64 = 30;

/// A run among so many; the most memory and descriptors of a rank, and how often strangers came and were sent away.
fn among(count: u64) -> [u64; 4] {
    let words = "--local 4 --nodes 2x2 --url tcp://127.0.0.1 --json --duration 1 --strangers";
    let count = count.to_string();
    let words: Vec<&str> = words.split(' ').chain([&count[..]]).collect();
    let outcome = run(RUNNER, &words, &[]);
    // Each message once, and in order.
    let total = outcome.total(4);
    let said = outcome.err.lines().find(|line| line.contains("strangers came ")).unwrap();
    let numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
    let [came, sent_away, descriptors] = numbers.collect::<Vec<u64>>()[..] else {
        panic!("{said}")
    };
    [total["peak_rss_kib"].as_u64().unwrap(), descriptors, came, sent_away]
}

#[test]
fn ranks_among_strangers_do_what_they_would_and_hold_no_more_than_the_connections_of_those() {
    let [own_memory, own_descriptors, nobody, _] = among(0);
    assert_eq!(nobody, 0);
    let [memory, descriptors, came, sent_away] = among(COUNT);
    // All are there, and those that make noise come again and again.
    assert!(came > 2 * COUNT && sent_away > 0, "{came}, {sent_away}");
    // What was sent away may not be closed yet when the next one comes.
    let most = own_descriptors + 2 * COUNT;
    assert!(own_descriptors > 0 && descriptors <= most, "{own_descriptors}, {descriptors}");
    assert!(memory <= own_memory + (16 << 10), "{own_memory}, {memory} KiB");
}

#[test]
fn a_run_to_which_no_stranger_came_fails() {
    let words = "--local 2 --nodes 1x2 --count 100 --strangers 3";
    let outcome = run(RUNNER, &words.split(' ').collect::<Vec<_>>(), &[]);
    let is_told = outcome.err.contains("--strangers: none came");
    assert!(outcome.code != Some(0) && is_told, "{}", outcome.all());
}
