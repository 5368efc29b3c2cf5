//! Processes whose calls go through daemons `hg-visor`, of one node and of two; one of them is killed.

use crate::{
    RUNNER,
    apart::Apart,
    deaths::{assert_named, killed},
    nodes::Daemons,
    total,
};

const THROUGH: &str = "--json --url visor://";
/// The nodes of four processes, where there are two.
const NODES: [u32; 4] = [0, 1, 0, 1];

fn verified(daemons: u32, cases: &[&str]) {
    let daemons = Daemons::start(daemons);
    for case in cases {
        let apart = Apart::new();
        let arguments = format!("{THROUGH} --threads 2 {case}");
        let mut command = apart.command(RUNNER, (&daemons, &NODES), &arguments);
        let outcome = crate::common::ended(&mut command);
        assert_eq!(outcome.out.matches("ended 0").count(), NODES.len(), "{}", outcome.all());
        total(&outcome, 8);
    }
    for status in daemons.until_nothing_is_left() {
        assert!(status["frames_passed"].as_u64() > Some(100), "{status}");
    }
}

const CASES: [&str; 6] = [
    "--pattern all --count 4000",
    "--pattern random --packing ovfl --full wait --count 2000",
    "--pattern hot-spot --target 1 --packing plain --full back --size 5000 --count 300",
    "--kind return --pattern random --count 1000",
    "--kind read --size 200000 --count 20 --warm-up 3",
    "--kind broadcast --size 500 --count 200",
];

#[test]
fn every_call_is_verified_through_one_daemon() {
    verified(1, &CASES);
}

#[test]
fn every_call_is_verified_through_the_daemons_of_two_nodes() {
    verified(2, &CASES);
}

#[test]
fn whoever_is_killed_behind_a_daemon_is_named_by_all_others() {
    let cases = [
        ("the workers are open", "--count 100000000"),
        ("is in full swing", "--duration 600"),
        ("is in full swing", "--duration 600 --kind read --size 50000 --every 32"),
        ("has made its calls", "--count 20000"),
    ];
    for count in [1, 2] {
        for (phase, case) in cases {
            let daemons = Daemons::start(count);
            let apart = Apart::new();
            let arguments = format!("{THROUGH} --threads 2 --verbose {case}");
            let command = apart.command(RUNNER, (&daemons, &NODES), &arguments);
            let (_, said) = killed(command, 1, phase);
            assert_named(&said, 1, NODES.len());
            let ends = |how| said.matches(how).count();
            assert_eq!((ends("ended 1\n"), ends("ended 137\n")), (3, 1), "{said}");
            daemons.until_nothing_is_left();
        }
    }
}
