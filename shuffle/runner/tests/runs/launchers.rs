//! Ranks that real launchers started: Open MPI's and MPICH's `mpirun`, Slurm's `srun`, and Intel MPI's
//! `mpiexec.hydra` where `I_MPI_ROOT` names one (`scripts/intel-mpi` fetches it).

use std::net::TcpListener;

use crate::{
    RUNNER,
    common::{Outcome, has, run},
    slurm_daemons::{PROGRAMS, Slurm},
};

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
fn under_both_mpis_a_port_that_one_node_does_not_need_is_tried_by_one_rank_only() {
    const NAME: &str =
        "under_both_mpis_a_port_that_one_node_does_not_need_is_tried_by_one_rank_only";
    let free = TcpListener::bind("0.0.0.0:0").and_then(|it| it.local_addr());
    let url = format!("tcp://127.0.0.1:{}", free.expect("some port is free").port());
    let work = ["--count", "10", "--warm-up", "1", "--json", "--url", &url];
    if has("mpirun.mpich", NAME) {
        mpich("4", &work).total(4);
    }
    if has("mpirun.openmpi", NAME) {
        openmpi("4", &work).total(4);
    }
}

#[test]
fn under_both_mpis_a_wrong_command_line_is_said_once() {
    const NAME: &str = "under_both_mpis_a_wrong_command_line_is_said_once";
    let launchers =
        [("mpirun.mpich", mpich as fn(&str, &[&str]) -> Outcome), ("mpirun.openmpi", openmpi)];
    for (launcher, run) in launchers {
        if has(launcher, NAME) {
            let outcome = run("4", &["--colour"]);
            assert_eq!(outcome.code, Some(2), "{}", outcome.all());
            let said =
                outcome.err.matches("shuffle-runner: unexpected argument '--colour'").count();
            assert_eq!(said, 1, "{}", outcome.all());
        }
    }
}

#[test]
fn under_both_mpis_help_and_version_are_printed_once() {
    const NAME: &str = "under_both_mpis_help_and_version_are_printed_once";
    let launchers =
        [("mpirun.mpich", mpich as fn(&str, &[&str]) -> Outcome), ("mpirun.openmpi", openmpi)];
    for (launcher, run) in launchers {
        for (asked, words) in [("--help", "Usage:"), ("--version", "shuffle-runner ")] {
            if has(launcher, NAME) {
                let outcome = run("4", &[asked]);
                assert_eq!(outcome.code, Some(0), "{}", outcome.all());
                let lines = outcome.out.lines().filter(|line| line.starts_with(words));
                assert_eq!(lines.count(), 1, "{launcher}: {}", outcome.all());
            }
        }
    }
}

#[test]
fn under_slurm_every_message_arrives_by_both_of_its_interfaces() {
    const NAME: &str = "under_slurm_every_message_arrives_by_both_of_its_interfaces";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let slurm = Slurm::start();
    for mpi in ["pmi2", "pmix"] {
        for nodes in ["1x4", "2x2"] {
            let work = [&[RUNNER], WORK, &["--nodes", nodes]].concat();
            let given = [&Slurm::arguments("4", mpi), &work[..]].concat();
            let outcome = run("srun", &given, &slurm.variables());
            assert!(outcome.err.is_empty(), "{mpi}: {}{}", outcome.all(), slurm.logs());
            assert_eq!(outcome.total(4)["sent"], 4 * 2000, "{mpi}");
        }
    }
}

/// Rank 1 never begins; rank 0 says that it waits, before it gives up and the launcher ends rank 1.
fn late_below(launcher: &str, own: &[&str], sentence: &str) {
    let rank = "\"$PMI_RANK$OMPI_COMM_WORLD_RANK\"";
    let script = format!("[ {rank} = 1 ] && exec sleep 30; exec {RUNNER} --count 10");
    let given = [own, &["-n", "2", "sh", "-c", &script]].concat();
    let outcome = run(launcher, &given, &[("HG_JOB_TIMEOUT_S", "4")]);
    assert_ne!(outcome.code, Some(0), "{}", outcome.all());
    let (_, end) = outcome.err.split_once(sentence).expect(&outcome.err);
    assert!(end.contains("rank 1 of 2 did not join within 4s"), "{}", outcome.err);
}

#[test]
fn under_both_mpis_a_rank_that_never_begins_is_waited_for_with_a_word() {
    const NAME: &str = "under_both_mpis_a_rank_that_never_begins_is_waited_for_with_a_word";
    if has("mpirun.mpich", NAME) {
        let sentence = "not all ranks have reached the launcher's barrier yet: still waiting\n";
        late_below("mpirun.mpich", &[], sentence);
    }
    if has("mpirun.openmpi", NAME) {
        let sentence = "rank 1 of 2 did not join yet: still waiting\n";
        late_below("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"], sentence);
    }
}

/// Little work, on eight nodes of eight.
const FEW: &[&str] =
    &["--count", "200", "--warm-up", "10", "--json", "--nodes", "8x8", "--url", "tcp://127.0.0.1"];

#[test]
fn sixty_four_ranks_on_few_cores_finish_under_open_mpi() {
    if has("mpirun.openmpi", "sixty_four_ranks_on_few_cores_finish_under_open_mpi") {
        openmpi("64", FEW).total(64);
    }
}

#[test]
fn sixty_four_ranks_on_few_cores_finish_under_mpich() {
    if has("mpirun.mpich", "sixty_four_ranks_on_few_cores_finish_under_mpich") {
        mpich("64", FEW).total(64);
    }
}

#[test]
fn under_intel_mpi_every_message_arrives_on_one_node_on_two_and_on_eight() {
    let Ok(root) = std::env::var("I_MPI_ROOT") else {
        println!(
            "SKIPPED: under_intel_mpi_every_message_arrives_on_one_node_on_two_and_on_eight: \
             I_MPI_ROOT names no Intel MPI"
        );
        return;
    };
    let launcher = format!("{root}/bin/mpiexec.hydra");
    let intel = |ranks: &'static str, arguments: &[&str]| {
        run(&launcher, &[&["-n", ranks, RUNNER], arguments].concat(), &[])
    };
    intel("4", WORK).total(4);
    intel("4", &[WORK, &["--nodes", "2x2"]].concat()).total(4);
    intel("64", FEW).total(64);
}
