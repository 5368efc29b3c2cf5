//! A Slurm of a test's own, on this machine, with one node: no root, no configuration of the machine's, nothing left.
//!
//! This file stands alone, so that tests of other packages can take it in by `#[path]`.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What has to be installed.
pub(crate) const PROGRAMS: [&str; 3] = ["srun", "slurmctld", "slurmd"];

/// `slurmctld` and `slurmd` in the foreground; killed at the end.
pub(crate) struct Slurm {
    folder: PathBuf,
    /// The path of its file.
    configuration: String,
    daemons: Vec<Child>,
}

impl Slurm {
    pub(crate) fn start() -> Self {
        let folder = env::temp_dir().join(format!("hg-slurm-{}", std::process::id()));
        let configuration = format!("{}/slurm.conf", folder.display());
        let mut slurm = Self { folder, configuration, daemons: Vec::new() };
        for sub in ["state", "spool", "tmp"] {
            fs::create_dir_all(slurm.folder.join(sub)).unwrap();
        }
        fs::write(&slurm.configuration, settings(slurm.folder(), &hostname())).unwrap();
        slurm.daemon("slurmctld", &["-i", "-D"]);
        slurm.daemon("slurmd", &["-D"]);
        let begun = Instant::now();
        while !slurm.is_idle() {
            let late = begun.elapsed() > Duration::from_secs(60);
            assert!(!late, "Slurm does not start:\n{}", slurm.logs());
            thread::sleep(Duration::from_millis(50));
        }
        slurm
    }

    /// Its folder, which is taken away at the end.
    pub(crate) fn folder(&self) -> &str {
        self.folder.to_str().expect("made of ASCII here")
    }

    /// What `srun` is given in front of its command.
    pub(crate) fn arguments<'a>(ranks: &'a str, mpi: &'a str) -> [&'a str; 6] {
        ["--overcommit", "--quiet", "-n", ranks, "--mpi", mpi]
    }

    /// Whether its node waits for work.
    fn is_idle(&self) -> bool {
        let mut command = Command::new("timeout");
        command.args(["20", "sinfo", "-h", "-o", "%T"]).envs(self.variables());
        command.output().is_ok_and(|said| said.stdout.trim_ascii() == b"idle")
    }

    /// What tells `srun` of it.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 1] {
        [("SLURM_CONF", &self.configuration)]
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let path = ["/usr/sbin", "/sbin", "/usr/bin"].map(|folder| Path::new(folder).join(program));
        let path = path.iter().find(|path| path.is_file()).map_or(Path::new(program), |path| path);
        let log = fs::File::create(self.folder.join(format!("{program}.out"))).unwrap();
        let mut command = Command::new(path);
        command.args(["-f", &self.configuration]).args(arguments);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// What its daemons have said.
    pub(crate) fn logs(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        ["slurmctld.out", "slurmd.out"].map(read).join("\n")
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
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

/// No authentication, no accounting, no cgroups: what one test on one machine needs. Nothing in the common `/tmp`, where
/// jobs of the same number, of another Slurm, have their folders as well.
fn settings(folder: &str, host: &str) -> String {
    let [controller, node] = free_ports();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    format!(
        "ClusterName=hgjob\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
         AuthType=auth/none\nCredType=cred/none\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
         StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nTmpFS={folder}/tmp\n\
         SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\nSchedulerType=sched/builtin\nReturnToService=2\nMpiDefault=none\n\
         AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
         JobCompType=jobcomp/none\nSlurmdParameters=config_overrides\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:64\n"
    )
}
