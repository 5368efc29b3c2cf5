//! Ranks whose messages go through daemons `hg-visor`, of one node and of two; one of them is killed.

use nix::sys::signal::Signal;

use crate::{
    RUNNER, accounts::assert_accounts, apart::Apart, common::Outcome, nodes::Daemons,
    running::Running,
};

const THROUGH: &str = "--json --url visor:// --local-url visor:// --warm-up 1";

/// Starts the ranks of a map, those of each node with its daemon.
fn start(daemons: &Daemons, map: &str, more: &str) -> (Running, Apart) {
    let nodes: hg_job::NodeMap = map.parse().unwrap();
    let apart = Apart::new();
    let arguments = format!("{THROUGH} --nodes {map} {more}");
    let command = apart.command(RUNNER, (daemons, nodes.as_slice()), &arguments);
    (Running::start(command, nodes.size()), apart)
}

fn ends(outcome: &Outcome) -> Vec<&str> {
    let mut ends: Vec<&str> =
        outcome.out.lines().filter_map(|line| line.trim().strip_prefix("ended ")).collect();
    ends.sort_unstable();
    ends
}

/// On so many nodes as there are daemons.
fn verified(count: u32, cases: &[(&str, &str)]) {
    let daemons = Daemons::start(count);
    for (map, more) in cases {
        let (running, _apart) = start(&daemons, map, more);
        let outcome = running.end();
        let ranks = map.parse::<hg_job::NodeMap>().unwrap().size();
        assert_eq!(ends(&outcome), vec!["0"; ranks as usize], "{}", outcome.all());
        outcome.total(ranks.into());
    }
    for status in daemons.until_nothing_is_left() {
        assert!(status["frames_passed"].as_u64() > Some(1000), "{status}");
    }
}

#[test]
fn every_message_is_verified_through_one_daemon() {
    verified(1, &[("1x4", "--count 20000"), ("2+1", "--unbatched --count 1000")]);
}

#[test]
fn every_message_is_verified_through_the_daemons_of_two_nodes() {
    let cases = [
        ("2x2", "--count 20000"),
        ("3+1", "--size 100000 --count 60"),
        ("1+1", "--skew single --target 1 --unbatched --count 1000"),
    ];
    verified(2, &cases);
}

#[test]
fn a_rank_killed_behind_a_daemon_is_named_by_all_others_and_every_message_is_accounted_for() {
    // On one node; beside a representative, and one that represents its node.
    for (count, map, dead) in [(1, "1x3", 1), (2, "2x2", 0), (2, "2x2", 1)] {
        let daemons = Daemons::start(count);
        let (running, _apart) = start(&daemons, map, "--duration 600");
        let running = running.delivering();
        running.signal(dead, Signal::SIGKILL);
        let outcome = running.end();
        assert_accounts(&outcome, dead, map);
        let ended = ends(&outcome);
        let (killed, others) = ended.split_last().unwrap();
        assert_eq!(*killed, "137", "{}", outcome.all());
        assert_eq!(others, vec!["1"; others.len()], "{}", outcome.all());
        daemons.until_nothing_is_left();
    }
}
