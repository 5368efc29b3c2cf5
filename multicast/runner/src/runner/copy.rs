//! `multicast-cp` to all emulated hosts at once, and a loop of copies to one after the other.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use serde::Serialize;

use crate::{
    Error,
    arguments::{Arguments, Rate},
    mpi::{Scratch, ends_with},
    network::{self, Network},
    payload,
};

#[derive(Debug, Serialize)]
struct Report {
    links: String,
    hosts: u32,
    bytes: u64,
    all_at_once_seconds: f64,
    one_after_the_other_seconds: f64,
    times_faster: f64,
}

/// Copies a file from the first host to all others, both ways, and compares what has come.
///
/// # Errors
/// A copy fails, or differs.
pub(crate) fn measure(arguments: &Arguments, hosts: u32, rate: Rate) -> Result<(), Error> {
    let failed =
        |why: &dyn std::fmt::Display| Error::Beside("multicast-cp".to_owned(), why.to_string());
    let scratch = Scratch::new().map_err(|error| failed(&error))?;
    // The sender is one of them, too.
    let network = Network::new(hosts + 1, rate).map_err(|why| Error::Argument("link", why))?;
    let bytes = arguments.size[0].0;
    let (file, key) = (scratch.0.join("file"), scratch.0.join("key"));
    write(&file, bytes).and_then(|()| make_key(&key)).map_err(|error| failed(&error))?;
    let program =
        std::env::current_exe().map_err(|error| failed(&error))?.with_file_name("multicast-cp");
    let copying = Copying { network: &network, program: &program, key: &key, file: &file };
    let receivers =
        (1..=hosts).map(|host| copying.receiver(host, &scratch.0.join(host.to_string())));
    let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
    let targets = |folder: &str| {
        receivers.iter().map(|it| format!("{}/{folder}", it.address)).collect::<Vec<_>>()
    };
    let all_at_once = copying.copy(&targets("all"))?;
    let one_after_the_other = targets("one").into_iter().map(|target| copying.copy(&[target]));
    let one_after_the_other = one_after_the_other.sum::<Result<f64, Error>>()?;
    let original = fs::read(&file).map_err(|error| failed(&error))?;
    for (receiver, way) in receivers.iter().flat_map(|it| [(it, "all"), (it, "one")]) {
        let copied =
            fs::read(receiver.folder.join(way).join("file")).map_err(|error| failed(&error))?;
        if copied != original {
            return Err(failed(&format!("{}: is not what was sent", receiver.folder.display())));
        }
    }
    let report = Report {
        links: network::described(rate),
        hosts,
        bytes,
        all_at_once_seconds: all_at_once,
        one_after_the_other_seconds: one_after_the_other,
        times_faster: one_after_the_other / all_at_once,
    };
    print(&report, arguments.json).map_err(Error::Print)
}

fn print(report: &Report, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        return writeln!(out, "{}", serde_json::to_string(report)?);
    }
    let Report {
        links,
        hosts,
        bytes,
        all_at_once_seconds,
        one_after_the_other_seconds,
        times_faster,
    } = report;
    writeln!(
        out,
        "{links}\n{bytes} bytes to {hosts} hosts: all at once {all_at_once_seconds:.2} s, one after the other {one_after_the_other_seconds:.2} s, {times_faster:.2} x"
    )
}

struct Copying<'a> {
    network: &'a Network,
    program: &'a Path,
    key: &'a Path,
    file: &'a Path,
}

/// Ended when dropped.
struct Receiver {
    process: Child,
    address: String,
    folder: PathBuf,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Copying<'_> {
    fn command(&self, host: u32) -> Command {
        let mut command = self.network.command(host as usize, "setpriv");
        command
            .args(ends_with(std::process::id()))
            .arg(self.program)
            .args(["--setting", "unsent-kib=64", "--key-file"])
            .arg(self.key)
            .stdin(Stdio::null());
        command
    }

    fn receiver(&self, host: u32, folder: &Path) -> Result<Receiver, Error> {
        let failed =
            |why: &dyn std::fmt::Display| Error::Beside("multicast-cp".to_owned(), why.to_string());
        fs::create_dir(folder).map_err(|error| failed(&error))?;
        let mut command = self.command(host);
        command.arg("--receive").arg(folder).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| failed(&error))?;
        let output = process.stdout.take().expect("piped above");
        let mut this = Receiver { process, address: String::new(), folder: folder.to_owned() };
        BufReader::new(output).read_line(&mut this.address).map_err(|error| failed(&error))?;
        this.address = this.address.trim().to_owned();
        if this.address.is_empty() { Err(failed(&"a receiver has not started")) } else { Ok(this) }
    }

    /// Seconds.
    fn copy(&self, targets: &[String]) -> Result<f64, Error> {
        let failed =
            |why: &dyn std::fmt::Display| Error::Beside("multicast-cp".to_owned(), why.to_string());
        let mut command = self.command(0);
        command.arg("--quiet").arg(self.file).args(targets);
        let start = Instant::now();
        let status = command.status().map_err(|error| failed(&error))?;
        if status.success() { Ok(start.elapsed().as_secs_f64()) } else { Err(failed(&status)) }
    }
}

fn write(file: &Path, len: u64) -> std::io::Result<()> {
    let mut bytes = vec![0; usize::try_from(len).map_err(std::io::Error::other)?];
    payload::fill(&mut bytes, 0, 0);
    fs::write(file, bytes)
}

fn make_key(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?
        .write_all(digits.as_bytes())
}
