//! Ranks that `srun` started: a Slurm of this test's own, on this machine, with one node.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{
    Folder, Outcome, PROBE, all_at_once, assert_named, assert_one_node, assert_two_by_two, has,
    run, wrapped,
};

/// `slurmctld` and `slurmd` in the foreground; killed at the end.
struct Slurm {
    folder: Folder,
    /// The path of its file.
    configuration: String,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Self {
        let folder = Folder::new("slurm");
        let file = format!("{}/slurm.conf", folder.text());
        let mut slurm = Self { folder, configuration: file, daemons: Vec::new() };
        let name = hostname();
        for sub in ["state", "spool"] {
            fs::create_dir(slurm.folder.path().join(sub)).unwrap();
        }
        fs::write(&slurm.configuration, configuration(slurm.folder.text(), &name)).unwrap();
        slurm.daemon("slurmctld", &["-i", "-D"]);
        slurm.daemon("slurmd", &["-D"]);
        let begun = Instant::now();
        while run("sinfo", &["-h", "-o", "%T"], &slurm.variables()).out.trim() != "idle" {
            let late = begun.elapsed() > Duration::from_secs(60);
            assert!(!late, "Slurm does not start:\n{}", slurm.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
        slurm
    }

    fn variables(&self) -> [(&'static str, &str); 1] {
        [("SLURM_CONF", &self.configuration)]
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let path = ["/usr/sbin", "/sbin", "/usr/bin"].map(|folder| Path::new(folder).join(program));
        let path = path.iter().find(|path| path.is_file()).map_or(Path::new(program), |path| path);
        let log = fs::File::create(self.folder.path().join(format!("{program}.out"))).unwrap();
        let mut command = Command::new(path);
        command.args(["-f", &self.configuration]).args(arguments);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn logs(&self) -> String {
        let read =
            |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        ["slurmctld.out", "slurmd.out"].map(read).join("\n")
    }

    fn srun(&self, ranks: &str, mpi: &str, command: &[&str], more: &[(&str, &str)]) -> Outcome {
        let mpi = format!("--mpi={mpi}");
        let own = ["--overcommit", "--quiet", "-n", ranks, &mpi];
        run("srun", &[&own, command].concat(), &[&self.variables(), more].concat())
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap().to_owned()
}

/// Two ports that are free now.
fn free_ports() -> [u16; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// No authentication, no accounting, no cgroups: what one test on one machine needs.
fn configuration(folder: &str, host: &str) -> String {
    let [controller, node] = free_ports();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    format!(
        "ClusterName=hgjob\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
         AuthType=auth/none\nCredType=cred/none\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
         StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
         SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\nSchedulerType=sched/builtin\nReturnToService=2\nMpiDefault=none\n\
         AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
         JobCompType=jobcomp/none\nSlurmdParameters=config_overrides\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:64\n"
    )
}

/// One Slurm serves all: starting it takes longer than the ranks do.
#[test]
fn srun_s_ranks_see_one_another_and_name_who_dies() {
    const NAME: &str = "srun_s_ranks_see_one_another_and_name_who_dies";
    if !has("srun", NAME) || !has("slurmctld", NAME) || !has("slurmd", NAME) {
        return;
    }
    let slurm = Slurm::start();
    see_one_another(&slurm);
    name_who_dies(&slurm);
    abort(&slurm);
}

fn see_one_another(slurm: &Slurm) {
    assert_one_node(&slurm.srun("4", "pmi2", &[PROBE], &[]).ranks(), 4, "pmi1");
    assert_one_node(
        &slurm.srun("3", "pmi2", &[PROBE], &[("HG_JOB_VIA", "pmi2")]).ranks(),
        3,
        "pmi2",
    );
    assert_one_node(&slurm.srun("3", "pmix", &[PROBE], &[]).ranks(), 3, "pmix");
    assert_two_by_two(&slurm.srun("4", "pmi2", &[PROBE, "--nodes", "2x2"], &[]).ranks());
    let nothing = slurm.srun("2", "none", &[PROBE], &[]);
    assert_eq!(nothing.code, Some(1), "{}", nothing.all());
    assert_eq!(nothing.count("SLURM_STEP_NUM_TASKS says 2 ranks, but nothing tells"), 2);
    let at = format!("dir:{}", slurm.folder.text());
    let met = slurm.srun("3", "none", &[PROBE], &[("HG_JOB_RENDEZVOUS", &at)]);
    assert_one_node(&met.ranks(), 3, "rendezvous");
    assert!(!slurm.folder.path().join("hg-job-hub").exists());
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
        assert_named(&slurm.srun("3", mpi, &command, &[("HG_JOB_VIA", dialect)]), sentence);
    });
}

fn abort(slurm: &Slurm) {
    for mpi in ["pmi2", "pmix"] {
        let outcome = slurm.srun("3", mpi, &[PROBE, "--abort", "1"], &[]);
        assert_eq!(outcome.code, Some(7), "{}", outcome.all());
        assert!(outcome.count("aborts the job: asked to") == 1, "{}", outcome.all());
    }
}
