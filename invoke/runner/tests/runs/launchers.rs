//! Processes that real launchers started: Open MPI's and MPICH's `mpirun`, and Slurm's `srun`.

use crate::{
    RUNNER,
    common::{has, run},
    slurm_daemons::{PROGRAMS, Slurm},
    total,
};

const WORK: &[&str] = &["--count", "2000", "--threads", "2", "--json"];

#[test]
fn under_both_mpis_every_call_runs_and_a_wrong_command_line_is_said_once() {
    const NAME: &str = "under_both_mpis_every_call_runs_and_a_wrong_command_line_is_said_once";
    let openmpi = ["--allow-run-as-root", "--oversubscribe"];
    for (launcher, own) in [("mpirun.openmpi", &openmpi[..]), ("mpirun.mpich", &[])] {
        if !has(launcher, NAME) {
            continue;
        }
        let start =
            |given: &[&str]| run(launcher, &[own, &["-n", "4", RUNNER], given].concat(), &[]);
        assert_eq!(total(&start(WORK), 8)["made"], 8 * 2000);
        let tcp = [WORK, &["--url", "tcp://127.0.0.1"]].concat();
        assert_eq!(total(&start(&tcp), 8)["made"], 8 * 2000);
        for (wrong, sentence) in [
            ("--colour", "invoke-runner: unexpected argument '--colour' found"),
            ("--size=9", "invoke-runner: --size: 9 bytes: 8, or at least 16"),
            ("--url=nothing://", "invoke-runner: --url: no transport"),
        ] {
            let outcome = start(&[wrong]);
            // Of those that still end, the launcher may kill one.
            assert_ne!(outcome.code, Some(0), "{}", outcome.all());
            assert_eq!(outcome.err.matches(sentence).count(), 1, "{}", outcome.all());
        }
    }
}

#[test]
fn under_slurm_every_call_runs_by_both_of_its_interfaces() {
    const NAME: &str = "under_slurm_every_call_runs_by_both_of_its_interfaces";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let slurm = Slurm::start();
    for mpi in ["pmi2", "pmix"] {
        let given = [&Slurm::arguments("4", mpi)[..], &[RUNNER], WORK].concat();
        let outcome = run("srun", &given, &slurm.variables());
        assert_eq!(total(&outcome, 8)["made"], 8 * 2000, "{mpi}: {}", slurm.logs());
    }
}
