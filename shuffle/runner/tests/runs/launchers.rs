//! Ranks that real launchers started: Open MPI's and MPICH's `mpirun`.

use crate::common::{Outcome, RUNNER, has, run};

const WORK: &[&str] =
    &["--count", "2000", "--warm-up", "200", "--json", "--url", "tcp://127.0.0.1"];

fn mpich(ranks: &str, arguments: &[&str]) -> Outcome {
    run("mpirun.mpich", &[&["-n", ranks, RUNNER], arguments].concat(), &[])
}

fn openmpi(ranks: &str, arguments: &[&str]) -> Outcome {
    let own = ["--allow-run-as-root", "--oversubscribe", "-n", ranks, RUNNER];
    run("mpirun.openmpi", &[&own, arguments].concat(), &[])
}

#[test]
fn under_mpich_every_message_arrives_on_one_node_and_on_two() {
    if !has("mpirun.mpich", "under_mpich_every_message_arrives_on_one_node_and_on_two") {
        return;
    }
    mpich("4", WORK).total(4);
    mpich("4", &[WORK, &["--nodes", "2x2"]].concat()).total(4);
}

#[test]
fn under_open_mpi_every_message_arrives_on_one_node_and_on_two() {
    if !has("mpirun.openmpi", "under_open_mpi_every_message_arrives_on_one_node_and_on_two") {
        return;
    }
    openmpi("4", WORK).total(4);
    openmpi("4", &[WORK, &["--nodes", "2x2"]].concat()).total(4);
}

#[test]
fn sixty_four_ranks_on_few_cores_finish() {
    if !has("mpirun.openmpi", "sixty_four_ranks_on_few_cores_finish") {
        return;
    }
    let few = [
        "--count",
        "200",
        "--warm-up",
        "10",
        "--json",
        "--nodes",
        "8x8",
        "--url",
        "tcp://127.0.0.1",
    ];
    openmpi("64", &few).total(64);
}
