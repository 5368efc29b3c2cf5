//! Both programs under launchers: Open MPI's and MPICH's `mpirun`, and Slurm's `srun`.

use std::{
    fs,
    sync::{Mutex, PoisonError},
};

use crate::{
    CP, RUNNER,
    common::{has, run},
    receiver::{Folder, bytes},
    running::well,
    slurm_daemons::{PROGRAMS, Slurm},
};

#[test]
fn ranks_of_both_mpis_do_the_same() {
    const NAME: &str = "ranks_of_both_mpis_do_the_same";
    let openmpi = ["--allow-run-as-root", "--oversubscribe"];
    for (launcher, own) in [("mpirun.openmpi", &openmpi[..]), ("mpirun.mpich", &[])] {
        if has(launcher, NAME) {
            let words = ["-n", "3", RUNNER, "--json", "--size", "1M"];
            well(&run(launcher, &[own, &words].concat(), &[]));
        }
    }
}

/// A process has one Slurm at a time.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn ranks_of_slurm_do_the_same_by_both_of_its_interfaces() {
    const NAME: &str = "ranks_of_slurm_do_the_same_by_both_of_its_interfaces";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let slurm = Slurm::start();
    for mpi in ["pmi2", "pmix"] {
        let words = [&Slurm::arguments("3", mpi)[..], &[RUNNER, "--json", "--size", "1M"]].concat();
        well(&run("srun", &words, &slurm.variables()));
    }
}

#[test]
fn receivers_that_slurm_starts_get_everything_and_end() {
    const NAME: &str = "receivers_that_slurm_starts_get_everything_and_end";
    if !PROGRAMS.iter().all(|program| has(program, NAME)) {
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let slurm = Slurm::start();
    let test = Folder::new();
    let file = test.file("file", &bytes(3_000_000, 9));
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let node = name.trim().split('.').next().unwrap();
    let targets = ["first", "second"].map(|folder| format!("{node}:{}", test.text(folder)));
    let start = "srun --overcommit --quiet -N1 -n1 -w {}";
    let words = ["--url", "tcp://127.0.0.1", "--start", start, "--program", CP, &file];
    let words = [&words[..], &[&targets[0], &targets[1]]].concat();
    let said = run(CP, &words, &slurm.variables());
    assert_eq!(said.code, Some(0), "{}{}", said.all(), slurm.logs());
    for folder in ["first", "second"] {
        assert_eq!(fs::read(test.0.join(folder).join("file")).unwrap(), bytes(3_000_000, 9));
    }
}
