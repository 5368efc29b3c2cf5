//! Both programs under launchers: Open MPI's and MPICH's `mpirun`, and Slurm's `srun`.

use std::{
    fs,
    process::Command,
    sync::{Mutex, PoisonError},
};

use watchdog::until;

use crate::{
    CP, RUNNER,
    common::{command, has, run},
    receiver::{Folder, bytes, has_ended},
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

#[test]
fn a_sender_that_is_killed_in_the_middle_of_a_copy_leaves_no_receiver_that_it_has_started() {
    let test = Folder::new();
    let file = test.file("file", &bytes(24 << 20, 8));
    let start = format!("sh {}", test.file("here", b"shift; exec \"$@\""));
    for (signal, folders) in [("-TERM", ["a", "b"]), ("-KILL", ["c", "d"])] {
        let targets = folders.map(|folder| format!("host:{}", test.text(folder)));
        let words = ["--url", "tcp://127.0.0.1", "--start", &start, "--program", CP, &file];
        let words = [&words[..], &[&targets[0], &targets[1]]].concat();
        let mut sender = command(CP, &words).spawn().unwrap();
        until("a file that is on its way to both", || {
            assert!(sender.try_wait().unwrap().is_none(), "it has ended too early");
            let spools = folders.map(|it| fs::read_dir(test.0.join(it).join(".multicast-cp")));
            spools.into_iter().all(|it| it.is_ok_and(|mut it| it.next().is_some()))
        });
        let below = watchdog::below(sender.id());
        let (own, receivers) = below.split_first().unwrap();
        let send = |signal: &str, process: &u32| {
            Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
        };
        // Nothing of it comes before the sender has ended.
        receivers.iter().for_each(|it| send("-STOP", it));
        assert!(folders.iter().all(|it| !test.0.join(it).join("file").exists()), "it is too late");
        assert_eq!(receivers.len(), 2);
        send(signal, own);
        until("the end of the sender", || has_ended(own));
        receivers.iter().for_each(|it| send("-CONT", it));
        assert!(!watchdog::ended(&mut sender).status.success());
        until("the end of both receivers", || receivers.iter().all(has_ended));
        assert!(folders.iter().all(|it| !test.0.join(it).join("file").exists()));
    }
}
