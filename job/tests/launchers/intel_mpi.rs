//! Ranks that Intel MPI's `mpiexec.hydra` started, where `I_MPI_ROOT` names one: `scripts/intel-mpi` fetches it.

use crate::common::{
    Outcome, PROBE, all_at_once, assert_named, assert_one_node, assert_two_by_two, run, wrapped,
};

/// Its launcher. If there is none, the test says that it is skipped.
fn launcher(test: &str) -> Option<String> {
    let found = std::env::var("I_MPI_ROOT").ok().map(|root| format!("{root}/bin/mpiexec.hydra"));
    if found.is_none() {
        println!("SKIPPED: {test}: I_MPI_ROOT names no Intel MPI");
    }
    found
}

fn intel(launcher: &str, arguments: &[&str]) -> Outcome {
    run(launcher, arguments, &[])
}

#[test]
fn intel_mpi_s_ranks_see_one_another() {
    let Some(own) = launcher("intel_mpi_s_ranks_see_one_another") else {
        return;
    };
    assert_one_node(&intel(&own, &["-n", "4", PROBE]).ranks(), 4, "pmi1");
    assert_one_node(&intel(&own, &["-n", "1", PROBE]).ranks(), 1, "pmi1");
    assert_two_by_two(&intel(&own, &["-n", "4", PROBE, "--nodes", "2x2"]).ranks());
}

#[test]
fn under_intel_mpi_a_rank_that_dies_is_named_by_the_others() {
    let Some(own) = launcher("under_intel_mpi_a_rank_that_dies_is_named_by_the_others") else {
        return;
    };
    let cases = [
        ("1@start", "rank 1 of 3 did not join within 5s"),
        ("0@start", "rank 0 of 3 did not join within 5s"),
        ("2@joined", "rank 2 ended without leaving the job"),
        ("0@joined", "rank 0, which holds the job together, is gone"),
    ];
    all_at_once(&cases, |(what, sentence)| {
        let command = wrapped(&["--timeout", "5", "--die", what]);
        // A process that spoke to its server and ends without a goodbye ends the job otherwise.
        let command = [&["-disable-auto-cleanup", "-n", "3"], &command[..]].concat();
        assert_named(&intel(&own, &command), sentence);
    });
}
