//! Programs in C over MPI to compare with, built with what is installed when they are asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Context, Error};
use crate::tools::Scratch;

/// One MPI's names.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    compiler: &'static str,
    launcher: &'static str,
    /// Of Debian.
    package: &'static str,
}

/// Those that Debian has beside each other; and whichever MPI has the plain names, where there is neither.
const KINDS: [Kind; 2] = [
    Kind {
        name: "openmpi",
        compiler: "mpicc.openmpi",
        launcher: "mpirun.openmpi",
        package: "libopenmpi-dev",
    },
    Kind {
        name: "mpich",
        compiler: "mpicc.mpich",
        launcher: "mpirun.mpich",
        package: "libmpich-dev",
    },
];
const PLAIN: Kind =
    Kind { name: "mpi", compiler: "mpicc", launcher: "mpirun", package: "libmpich-dev" };

/// The program, built for one MPI; gone when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    kind: Kind,
    file: Scratch,
    /// Whether the launcher is Open MPI's, which has to be told more.
    is_openmpi: bool,
}

/// Builds a program for each MPI that is installed. Between imitated nodes only Open MPI's can be told to use TCP and
/// nothing else: MPICH's, as Debian builds it, does not end then.
pub(crate) fn build(program: &str, across: bool) -> Result<Vec<Program>, Error> {
    let is_there =
        |kind: &Kind| [kind.compiler, kind.launcher].iter().all(|name| is_installed(name));
    let mut kinds: Vec<Kind> = KINDS.into_iter().filter(is_there).collect();
    if kinds.is_empty() && is_there(&PLAIN) {
        kinds.push(PLAIN);
    }
    if kinds.is_empty() {
        let why = "no MPI is installed to compare with: apt-get install libopenmpi-dev openmpi-bin, or \
                   libmpich-dev mpich; or leave it out with --no-mpi";
        return Err(Error::Impossible(why.to_owned()));
    }
    let mut built = kinds
        .into_iter()
        .map(|kind| Program::build(kind, program))
        .collect::<Result<Vec<_>, _>>()?;
    built.retain(|program| program.is_openmpi || !across);
    Ok(built)
}

impl Program {
    fn build(kind: Kind, program: &str) -> Result<Self, Error> {
        let (source, file) = (Scratch::new("c"), Scratch::new(kind.name));
        std::fs::write(source.path(), program).context("write")?;
        let mut command = Command::new(kind.compiler);
        command.args(["-O2", "-o"]).args([file.path(), source.path()]);
        let output = command.stdin(Stdio::null()).output().context("spawn")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().find(|line| line.contains("error")).unwrap_or("it failed");
            let (compiler, package) = (kind.compiler, kind.package);
            return Err(Error::NotBuilt { compiler, package, said: said.to_owned() });
        }
        let mut version = Command::new(kind.launcher);
        let version =
            version.args(["--allow-run-as-root", "--version"]).output().context("spawn")?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let is_openmpi = ["Open MPI", "OpenRTE", "open-mpi"].iter().any(|it| version.contains(it));
        Ok(Self { kind, file, is_openmpi })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }

    /// How it is started on so many ranks, `across` imitated nodes by TCP alone: by what, and with which words.
    pub(crate) fn command(
        &self,
        ranks: u32,
        across: bool,
        told: &[String],
    ) -> (&'static str, Vec<String>) {
        let own: &[&str] = match (self.is_openmpi, across) {
            (true, false) => &["--allow-run-as-root", "--oversubscribe"],
            (true, true) => &[
                "--allow-run-as-root",
                "--oversubscribe",
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "tcp,self",
                "--mca",
                "btl_tcp_if_include",
                "lo",
            ],
            (false, _) => &[],
        };
        let mut words: Vec<String> = own.iter().map(|&word| word.to_owned()).collect();
        words.extend(["-n".to_owned(), ranks.to_string(), self.file.path().display().to_string()]);
        words.extend_from_slice(told);
        (self.kind.launcher, words)
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_in = |folder: PathBuf| Path::new(&folder).join(program).is_file();
    std::env::split_paths(&path).any(is_in)
}
