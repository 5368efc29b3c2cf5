//! `MPI_Bcast` beside it: a C program, built with each MPI that is installed when it is asked for, between the same emulated links or
//! on the same machine.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use hg_job_runner::say::say;

use crate::{
    Error, NAME,
    arguments::Arguments,
    network::{Network, address},
    report::Row,
};

/// One MPI's names.
struct Kind {
    name: &'static str,
    compiler: &'static str,
    launcher: &'static str,
    /// What binds each process to a core, one after the other, although they are more than the cores.
    bound: &'static [&'static str],
}

/// Those that Debian has beside each other.
const KINDS: [Kind; 2] = [
    Kind {
        name: "openmpi",
        compiler: "mpicc.openmpi",
        launcher: "mpirun.openmpi",
        bound: &["--bind-to", "core:overload-allowed", "--map-by", "core"],
    },
    Kind {
        name: "mpich",
        compiler: "mpicc.mpich",
        launcher: "mpirun.mpich",
        bound: &["-bind-to", "core"],
    },
];

/// Measures each that is installed, for each size.
///
/// # Errors
/// None is, or one does not do it: in its own words.
pub(crate) fn measure(
    arguments: &Arguments,
    size: u32,
    network: Option<&Network>,
) -> Result<Vec<Row>, Error> {
    let folder = Scratch::new().map_err(|error| failed("a folder", &error))?;
    let is_there =
        |kind: &&Kind| [kind.compiler, kind.launcher].iter().all(|name| is_installed(name));
    // Between emulated hosts only Open MPI's can be told to use TCP and nothing else: MPICH's, as Debian builds it, does not end then.
    let kinds =
        KINDS.iter().filter(is_there).filter(|kind| network.is_none() || kind.name == "openmpi");
    let kinds: Vec<&Kind> = kinds.collect();
    if kinds.is_empty() {
        let why =
            "none is installed: apt-get install libopenmpi-dev openmpi-bin, or libmpich-dev mpich";
        return Err(Error::Argument("mpi", why.to_owned()));
    }
    let mut rows = Vec::new();
    for kind in kinds {
        let program = build(kind, &folder.0)?;
        let agent = network.map(|network| agent(network, &folder.0)).transpose();
        let agent = agent.map_err(|error| failed("a script", &error))?;
        for bytes in &arguments.size {
            if arguments.verbose {
                say(&format!("{NAME}: MPI_Bcast {}, {} bytes", kind.name, bytes.0));
            }
            let mut command = launcher(kind, size, network, agent.as_deref());
            if arguments.bind {
                command.args(kind.bound);
            }
            let (warm_up, count) = (arguments.warm_up, arguments.count);
            command.arg(&program).args([
                bytes.0.to_string(),
                warm_up.to_string(),
                count.to_string(),
            ]);
            let output = run(&mut command)?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let seconds: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
            let seconds = seconds.map_err(|_| failed(kind.launcher, &text.trim()))?;
            if seconds.len() != count as usize {
                return Err(failed(kind.launcher, &text.trim()));
            }
            rows.push(Row::beside(format!("MPI_Bcast {}", kind.name), size, (bytes.0, 0), seconds));
        }
    }
    Ok(rows)
}

fn build(kind: &Kind, folder: &Path) -> Result<PathBuf, Error> {
    let (source, program) = (folder.join("bcast.c"), folder.join(kind.name));
    fs::write(&source, SOURCE).map_err(|error| failed("a file", &error))?;
    run(Command::new(kind.compiler).args(["-O2", "-o"]).args([&program, &source]))?;
    Ok(program)
}

/// How each starts processes here, or on the emulated hosts, which an agent enters instead of logging in.
fn launcher(kind: &Kind, size: u32, network: Option<&Network>, agent: Option<&Path>) -> Command {
    let mut command = match network {
        Some(network) => network.command(0, "setpriv"),
        None => Command::new("setpriv"),
    };
    command.args(ends_with(std::process::id()));
    command.args(["timeout", "-k", "2", PATIENCE_S, "setpriv"]);
    command.args(ENDS_WITH_PARENT).arg(kind.launcher);
    if kind.name == "openmpi" {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    if let Some(agent) = agent {
        let hosts: Vec<String> = (0..size).map(address).collect();
        let tcp = [
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "eth0",
        ];
        command
            .args(tcp)
            .args(["--mca", "oob_tcp_if_include", "eth0", "--mca", "plm_rsh_agent"])
            .arg(agent);
        command.args(["--host", &hosts.join(","), "--map-by", "node"]);
    }
    command.args(["-n", &size.to_string()]);
    command
}

/// A script that runs a command on the host whose address comes first.
fn agent(network: &Network, folder: &Path) -> std::io::Result<PathBuf> {
    let mut text = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n".to_owned();
    for (host, pid) in (0..).zip(network.pids()) {
        text += &format!("{}) pid={pid};;\n", address(host));
    }
    text += "*) echo \"no host $host\" >&2; exit 1;;\nesac\n";
    text += "exec nsenter --target $pid --net --uts -- sh -c \"$*\"\n";
    let path = folder.join("agent");
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path)
}

fn run(command: &mut Command) -> Result<Output, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&program, &error))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words: Vec<String> =
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    Err(failed(
        &format!("{program} {}", words.join(" ")),
        &format!("{} {}", output.status, said.trim()),
    ))
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> Error {
    Error::Beside(what.to_owned(), why.to_string())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A folder of this run's, which goes with it, however it ends: somebody else removes it when the runner's pipe is closed.
pub(crate) struct Scratch(pub(crate) PathBuf, Child);

impl Scratch {
    pub(crate) fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("multicast-runner-{}", std::process::id()));
        fs::create_dir(&path)?;
        let mut remover = Command::new("sh");
        remover.args(["-c", REMOVER]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::null());
        let remover = remover.spawn().inspect_err(|_| drop(fs::remove_dir(&path)))?;
        Ok(Self(path, remover))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.1.stdin.take());
        // What cannot be removed now is the system's to clean.
        let _ = self.1.wait();
    }
}

/// It outlives what ends all processes of a terminal. Who writes there still when the runner has been killed is about to be, too.
const REMOVER: &str = "trap '' HUP INT TERM; cat; for try in 1 2 3 4 5; do rm -rf -- \"$0\" 2>&- && break; sleep 1; done";

const SOURCE: &str = include_str!("bcast.c");
/// Words of `setpriv` before a command, which is killed when its parent ends, however that does; the ranks end with their launcher.
const ENDS_WITH_PARENT: [&str; 3] = ["--pdeathsig", "KILL", "--"];

/// As [`ENDS_WITH_PARENT`], for children of the process `parent`; the command is not begun where that had ended before the kernel was told.
pub(crate) fn ends_with(parent: u32) -> Vec<String> {
    let words = ["sh", "-c", "[ $PPID = \"$0\" ] && exec \"$@\"", &parent.to_string()];
    ENDS_WITH_PARENT.iter().chain(&words).map(|word| (*word).to_owned()).collect()
}

/// How long one run may take.
const PATIENCE_S: &str = "140";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_lost_its_parent_before_the_kernel_was_told_is_not_begun() {
        for (parent, said) in [(std::process::id(), "begun\n"), (u32::MAX, "")] {
            let mut command = Command::new("setpriv");
            let output = command.args(ends_with(parent)).args(["echo", "begun"]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), said);
        }
    }
}
