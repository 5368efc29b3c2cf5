//! Ranks that two different MPIs' `mpirun` started: MPICH's (PMI) and Open MPI's (PMIx).

use crate::common::{
    Folder, Outcome, PROBE, all_at_once, assert_named, assert_one_node, assert_two_by_two, has,
    run, wrapped,
};

fn mpich(arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    run("mpirun.mpich", arguments, variables)
}

fn openmpi(arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let own = ["--allow-run-as-root", "--oversubscribe"];
    run("mpirun.openmpi", &[&own, arguments].concat(), variables)
}

#[test]
fn mpich_s_ranks_see_one_another_over_both_dialects_and_a_port() {
    if !has("mpirun.mpich", "mpich_s_ranks_see_one_another_over_both_dialects_and_a_port") {
        return;
    }
    assert_one_node(&mpich(&["-n", "4", PROBE], &[]).ranks(), 4, "pmi1");
    assert_one_node(&mpich(&["-n", "3", PROBE], &[("HG_JOB_VIA", "pmi2")]).ranks(), 3, "pmi2");
    assert_one_node(&mpich(&["-pmi-port", "-n", "3", PROBE], &[]).ranks(), 3, "pmi1");
    assert_one_node(&mpich(&["-n", "1", PROBE], &[]).ranks(), 1, "pmi1");
    // Several proxies, as on several machines; they are one machine nevertheless, and known as such.
    let hosts = ["-launcher", "fork", "-hosts", "one,two", "-ppn", "2", "-n", "4", PROBE];
    assert_one_node(&mpich(&hosts, &[]).ranks(), 4, "pmi1");
    assert_two_by_two(&mpich(&["-n", "4", PROBE, "--nodes", "2x2"], &[]).ranks());
}

#[test]
fn under_mpich_a_rank_that_dies_is_named_by_the_others() {
    if !has("mpirun.mpich", "under_mpich_a_rank_that_dies_is_named_by_the_others") {
        return;
    }
    let cases = [
        ("1@start", "pmi1", "rank 1 of 3 did not join within 5s"),
        ("0@start", "pmi2", "rank 0 of 3 did not join within 5s"),
        ("2@joined", "pmi1", "rank 2 ended without leaving the job"),
        ("0@joined", "pmi1", "rank 0, which holds the job together, is gone"),
    ];
    all_at_once(&cases, |(what, dialect, sentence)| {
        let command = wrapped(&["--timeout", "5", "--die", what]);
        // A process that spoke to its server and ends without a goodbye ends the job otherwise.
        let command = [&["-disable-auto-cleanup", "-n", "3"], &command[..]].concat();
        assert_named(&mpich(&command, &[("HG_JOB_VIA", dialect)]), sentence);
    });
    // Without the wrapping, mpirun may end the ranks before they speak; but it does not end well.
    let plain = mpich(&["-n", "3", PROBE, "--timeout", "3", "--die", "1@start"], &[]);
    assert_ne!(plain.code, Some(0), "{}", plain.all());
    let plain = mpich(&["-n", "3", PROBE, "--timeout", "3", "--quit", "1@start"], &[]);
    assert!(
        plain.code != Some(0) && plain.count("rank 1 of 3 did not join") > 0,
        "{}",
        plain.all()
    );
}

#[test]
fn open_mpi_s_ranks_see_one_another() {
    if !has("mpirun.openmpi", "open_mpi_s_ranks_see_one_another") {
        return;
    }
    assert_one_node(&openmpi(&["-n", "4", PROBE], &[]).ranks(), 4, "pmix");
    assert_one_node(&openmpi(&["-n", "1", PROBE], &[]).ranks(), 1, "pmix");
    assert_two_by_two(&openmpi(&["-n", "4", PROBE, "--nodes", "0,0,1,1"], &[]).ranks());
    let missing = openmpi(&["-n", "2", PROBE], &[("HG_JOB_LIBPMIX", "libpmix-nowhere.so")]);
    assert_ne!(missing.code, Some(0));
    assert!(missing.count("PMIx: libpmix-nowhere.so could not be loaded") > 0, "{}", missing.all());
}

#[test]
fn under_open_mpi_a_rank_that_dies_is_named_by_the_others() {
    if !has("mpirun.openmpi", "under_open_mpi_a_rank_that_dies_is_named_by_the_others") {
        return;
    }
    let cases = [
        ("1@start", "rank 1 of 3 did not join within 5s"),
        ("0@start", "rank 0 did not join within 5s"),
        ("2@joined", "rank 2 ended without leaving the job"),
    ];
    all_at_once(&cases, |(what, sentence)| {
        let command = wrapped(&["--timeout", "5", "--die", what]);
        // A process that spoke to its server and ends without a goodbye ends the job otherwise.
        let own = ["--enable-recovery", "--mca", "orte_abort_on_non_zero_status", "0", "-n", "3"];
        assert_named(&openmpi(&[&own, &command[..]].concat(), &[]), sentence);
    });
    let plain = openmpi(&["-n", "3", PROBE, "--timeout", "3", "--quit", "1@start"], &[]);
    assert_ne!(plain.code, Some(0), "{}", plain.all());
}

#[test]
fn an_abort_ends_every_rank_with_its_status_under_both() {
    const NAME: &str = "an_abort_ends_every_rank_with_its_status_under_both";
    if !has("mpirun.mpich", NAME) || !has("mpirun.openmpi", NAME) {
        return;
    }
    for dialect in ["pmi1", "pmi2"] {
        let outcome = mpich(&["-n", "3", PROBE, "--abort", "1"], &[("HG_JOB_VIA", dialect)]);
        assert_ne!(outcome.code, Some(0), "{}", outcome.all());
        assert!(!outcome.out.contains('{'), "{}", outcome.all());
    }
    let outcome = openmpi(&["-n", "3", PROBE, "--abort", "0"], &[]);
    assert_eq!(outcome.code, Some(7), "{}", outcome.all());
}

/// A library that begins and ends MPI around a program's `main`, without MPI's headers.
const AROUND: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void *mpi;
static void call(const char *name) {
  if (!mpi) mpi = dlopen(getenv("AROUND_MPI"), RTLD_NOW | RTLD_GLOBAL);
  int (*function)(void *, void *) = mpi ? (int (*)(void *, void *)) dlsym(mpi, name) : 0;
  if (!function || function(0, 0) != 0) { fprintf(stderr, "%s failed\n", name); _Exit(9); }
}
__attribute__((constructor)) static void begin(void) { if (getenv("PMI_RANK") || getenv("PMIX_RANK")) call("MPI_Init"); }
__attribute__((destructor)) static void end(void) { if (mpi) { call("MPI_Finalize"); fprintf(stderr, "MPI ended well\n"); } }
"#;

#[test]
fn mpi_in_the_same_process_is_not_disturbed() {
    const NAME: &str = "mpi_in_the_same_process_is_not_disturbed";
    if !has("cc", NAME) || !has("mpirun.mpich", NAME) || !has("mpirun.openmpi", NAME) {
        return;
    }
    let folder = Folder::new("around");
    let (source, library) = (folder.path().join("around.c"), folder.path().join("around.so"));
    std::fs::write(&source, AROUND).unwrap();
    let (source, library) = (source.to_str().unwrap(), library.to_str().unwrap());
    let built = run("cc", &["-shared", "-fPIC", "-o", library, source, "-ldl"], &[]);
    assert_eq!(built.code, Some(0), "{}", built.all());
    // Only the ranks load it, not mpirun.
    let preload = format!("LD_PRELOAD={library}");
    let command = ["-n", "3", "env", &preload, PROBE];
    let around = |library| [("AROUND_MPI", library), ("OMPI_MCA_btl", "self,vader")];
    let outcome = mpich(&command, &around("libmpich.so.12"));
    assert_one_node(&outcome.ranks(), 3, "pmi1");
    assert_eq!(outcome.count("MPI ended well"), 3, "{}", outcome.all());
    let outcome = openmpi(&command, &around("libmpi.so.40"));
    assert_one_node(&outcome.ranks(), 3, "pmix");
    assert_eq!(outcome.count("MPI ended well"), 3, "{}", outcome.all());
}
