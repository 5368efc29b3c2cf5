//! Ranks that `srun` started: a Slurm of this test's own, on this machine, with one node.

use std::path::Path;

use crate::{
    common::{
        Outcome, PROBE, all_at_once, assert_named, assert_one_node, assert_two_by_two, has, run,
        wrapped,
    },
    slurm_daemons::{PROGRAMS, Slurm},
};

/// One Slurm serves all: starting it takes longer than the ranks do.
#[test]
fn srun_s_ranks_see_one_another_and_name_who_dies() {
    const NAME: &str = "srun_s_ranks_see_one_another_and_name_who_dies";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let slurm = Slurm::start();
    see_one_another(&slurm);
    name_who_dies(&slurm);
    abort(&slurm);
}

fn srun(slurm: &Slurm, ranks: &str, mpi: &str, command: &[&str], more: &[(&str, &str)]) -> Outcome {
    let given = [&Slurm::arguments(ranks, mpi), command].concat();
    run("srun", &given, &[&slurm.variables(), more].concat())
}

fn see_one_another(slurm: &Slurm) {
    assert_one_node(&srun(slurm, "4", "pmi2", &[PROBE], &[]).ranks(), 4, "pmi1");
    assert_one_node(
        &srun(slurm, "3", "pmi2", &[PROBE], &[("HG_JOB_VIA", "pmi2")]).ranks(),
        3,
        "pmi2",
    );
    assert_one_node(&srun(slurm, "3", "pmix", &[PROBE], &[]).ranks(), 3, "pmix");
    assert_two_by_two(&srun(slurm, "4", "pmi2", &[PROBE, "--nodes", "2x2"], &[]).ranks());
    let nothing = srun(slurm, "2", "none", &[PROBE], &[]);
    assert_eq!(nothing.code, Some(1), "{}", nothing.all());
    assert_eq!(nothing.count("SLURM_STEP_NUM_TASKS says 2 ranks, but nothing tells"), 2);
    let at = format!("dir:{}", slurm.folder());
    let met = srun(slurm, "3", "none", &[PROBE], &[("HG_JOB_RENDEZVOUS", &at)]);
    assert_one_node(&met.ranks(), 3, "rendezvous");
    assert!(!Path::new(slurm.folder()).join("hg-job-hub").exists());
}

fn name_who_dies(slurm: &Slurm) {
    let cases = [
        ("1@start", "pmi2", "auto", "rank 1 of 3 did not join within 5s"),
        ("0@start", "pmi2", "pmi2", "rank 0 of 3 did not join within 5s"),
        ("2@joined", "pmi2", "auto", "rank 2 ended without leaving the job"),
        ("1@start", "pmix", "auto", "rank 1 of 3 did not join within 5s"),
        ("0@start", "pmix", "auto", "rank 0 did not join within 5s"),
        ("2@joined", "pmix", "auto", "rank 2 ended without leaving the job"),
    ];
    all_at_once(&cases, |(what, mpi, dialect, sentence)| {
        let command = wrapped(&["--timeout", "5", "--die", what]);
        let outcome = srun(slurm, "3", mpi, &command, &[("HG_JOB_VIA", dialect)]);
        if *mpi == "pmix" && outcome.count("CANCELLED") > 0 {
            // Slurm's own server has seen the first of them go, and has not waited for what the others had to say.
            assert!(outcome.count(sentence) >= 1, "{sentence}: {}", outcome.all());
        } else {
            assert_named(&outcome, sentence);
        }
    });
}

fn abort(slurm: &Slurm) {
    for mpi in ["pmi2", "pmix"] {
        let outcome = srun(slurm, "3", mpi, &[PROBE, "--abort", "1"], &[]);
        assert_eq!(outcome.code, Some(7), "{}", outcome.all());
        assert!(outcome.count("aborts the job: asked to") == 1, "{}", outcome.all());
    }
}
