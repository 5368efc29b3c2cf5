//! What is left when a rank dies or stands still in the middle of its work, and what a rank says of its state.

use nix::sys::signal::Signal;

use crate::{
    RUNNER,
    accounts::assert_accounts,
    common::{command, has},
    running::Running,
};

/// Which rank is killed, in which topology: on one node; one that represents nobody; the representatives of both nodes,
/// which are ranks 1 and 2; batched and not.
const CASES: &[(&str, &str, u32)] =
    &[("1x3", "", 1), ("2x2", "", 0), ("2x2", "", 1), ("2x2", "--unbatched", 2), ("1+1+1", "", 2)];

#[test]
fn a_rank_killed_under_load_is_named_by_all_others_and_every_message_is_accounted_for() {
    for (map, more, dead) in CASES {
        let ranks = map.parse::<hg_job::NodeMap>().unwrap().size();
        let running = Running::local(ranks, &format!("--nodes {map} {more} --duration 600"));
        running.signal(*dead, Signal::SIGKILL);
        let outcome = running.end();
        // A rank that exits counts before the one that was killed.
        assert_eq!(outcome.code, Some(1), "{}", outcome.all());
        assert_accounts(&outcome, *dead, map);
    }
}

/// The same below a launcher, which is told to leave the others alone; a shell says how each of them ended.
fn killed_below(launcher: &str, own: &[&str], (map, dead): (&str, u32)) {
    let script = "trap '' USR1; \"$0\" \"$@\"; echo ended $?";
    let work = ["--json", "--url", "tcp://127.0.0.1", "--warm-up", "1", "--duration", "600"];
    let given = [own, &["-n", "4", "sh", "-c", script, RUNNER], &work, &["--nodes", map]].concat();
    let running = Running::start(command(launcher, &given), 4).delivering();
    running.signal(dead, Signal::SIGKILL);
    let outcome = running.end();
    assert_accounts(&outcome, dead, map);
    let mut ends: Vec<&str> =
        outcome.out.lines().filter_map(|line| line.trim().strip_prefix("ended ")).collect();
    ends.sort_unstable();
    assert_eq!(ends, ["1", "1", "1", "137"], "{}", outcome.all());
}

#[test]
fn under_open_mpi_a_killed_rank_and_a_killed_representative_are_accounted_for() {
    const NAME: &str = "under_open_mpi_a_killed_rank_and_a_killed_representative_are_accounted_for";
    if !has("mpirun.openmpi", NAME) {
        return;
    }
    let recovery = ["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0"];
    let own = [&["--allow-run-as-root", "--oversubscribe"], &recovery[..]].concat();
    // On two nodes 1 and 2 represent their nodes.
    for case in [("1x4", 2), ("2x2", 1)] {
        killed_below("mpirun.openmpi", &own, case);
    }
}

#[test]
fn under_mpich_a_killed_rank_and_a_killed_representative_are_accounted_for() {
    const NAME: &str = "under_mpich_a_killed_rank_and_a_killed_representative_are_accounted_for";
    if !has("mpirun.mpich", NAME) {
        return;
    }
    for case in [("1x4", 3), ("2x2", 2)] {
        killed_below("mpirun.mpich", &["-disable-auto-cleanup"], case);
    }
}

#[test]
fn a_rank_that_stands_still_for_a_while_loses_nothing() {
    // The representative of the other rank of its node.
    let mut running = Running::local(3, "--nodes 2+1 --duration 7");
    running.signal(1, Signal::SIGSTOP);
    let mut wait = std::process::Command::new("sleep").arg("5").spawn().unwrap();
    running.state(0);
    wait.wait().unwrap();
    running.signal(1, Signal::SIGCONT);
    let outcome = running.end();
    outcome.total(3);
    assert!(!outcome.err.contains("failed"), "{}", outcome.all());
}

#[test]
fn a_rank_that_does_not_answer_is_named_by_another_one_and_so_is_its_return() {
    // One that has nothing to do with the others' messages, and rank 0 itself.
    for (stopped, speaker) in [(2, "rank 0"), (0, "rank 1")] {
        let running = Running::local(3, "--nodes 2+1 --duration 3");
        running.signal(stopped, Signal::SIGSTOP);
        let named = format!("shuffle-runner: rank {stopped} (host ");
        let process = format!(", process {}) ", running.pid(stopped));
        let next = || loop {
            let line = running.line();
            if line.starts_with(&named) {
                return line;
            }
        };
        let line = next();
        let silent = format!("{process}has not answered for 5 s: stopped, overloaded or cut off");
        assert!(line.ends_with(&silent), "{speaker}: {line}");
        running.signal(stopped, Signal::SIGCONT);
        let line = next();
        assert!(line.contains(&format!("{process}answers again, after ")), "{speaker}: {line}");
        running.end().total(3);
    }
}

#[test]
fn a_rank_whose_deliveries_are_stuck_says_its_state() {
    // Each delivery takes a minute, so that every queue is full; the state is asked for nevertheless.
    let stuck =
        "--delay 60000000 --warm-up 100000 --deliverq-max 1 --lomaxrpc 8 --skew single --target 1";
    let own: Vec<&str> = ["--local", "2"].into_iter().chain(stuck.split_whitespace()).collect();
    let mut running = Running::start(command(RUNNER, &own), 2);
    loop {
        let state = running.state(0);
        let queue = running.line();
        assert!(state[0].starts_with("shuffle `shuffle-runner`, rank 0 of 2"), "{state:?}");
        assert!(queue.starts_with("Origin to rank 1: "), "{queue}");
        if queue.contains(", 8 under way,") && queue.contains(", 1 threads wait;") {
            break;
        }
    }
    while !running.line().starts_with("context 0 at ") {}
    for rank in 0..2 {
        running.signal(rank, Signal::SIGKILL);
    }
    assert_eq!(running.end().code, Some(137));
}

#[test]
fn asking_everybody_of_this_name_for_a_state_does_not_end_the_runner() {
    let running = Running::local(2, "--duration 1");
    for _ in 0..100 {
        running.signal_runner(Signal::SIGUSR1);
    }
    running.end().total(2);
}
