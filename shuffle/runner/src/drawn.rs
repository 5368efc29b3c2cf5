//! `--plot FILE.svg -- PROGRAM`: another program runs, and what its shuffles did over time is drawn.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{self, Command, ExitCode},
};

use hg_job::{Local, Settings};
use hg_job_runner::{plot, program};

use crate::{
    Error,
    arguments::Arguments,
    room,
    samples::{self, Sample},
};

/// Runs a program, which ends as this one then does, and draws what its shuffles have left.
pub(crate) fn run(
    arguments: &Arguments,
    file: &Path,
    (program, words): (&OsString, &[OsString]),
) -> Result<ExitCode, Error> {
    if Settings::new().rank().is_some() {
        let why = "a launcher goes behind the `--`, not before this program";
        return Err(Error::Argument("plot", why.to_owned()));
    }
    let not_written = |error| Error::Plot(file.to_owned(), error);
    plot::check(file).map_err(not_written)?;
    if let Some(size) = arguments.local.filter(|_| !arguments.force) {
        room::check(size, arguments.nodes.as_ref(), &arguments.options()?)?;
    }
    let folder = Folder::new().map_err(|error| Error::Os("a folder for samples", error))?;
    let code = if let Some(size) = arguments.local {
        let local = Local::new(size).command(program, words).variable(SAMPLES, &folder.0);
        let nodes = arguments.nodes.iter();
        program::start::<Arguments>(nodes.fold(local, |local, map| local.nodes(map.clone())))?
    } else if arguments.nodes.is_some() {
        return Err(Error::Argument("nodes", "with another program it goes with --local".into()));
    } else {
        let status = Command::new(program).args(words).env(SAMPLES, &folder.0).status();
        let status =
            status.map_err(|error| Error::Program(program.display().to_string(), error))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        code.map_or(ExitCode::FAILURE, ExitCode::from)
    };
    let shuffles = folder.read().map_err(|error| Error::Os("reading samples", error))?;
    if shuffles.is_empty() && code != ExitCode::SUCCESS {
        // It has said why.
        return Ok(code);
    }
    if shuffles.is_empty() {
        let why = format!("no process of {} has made a shuffle here", program.display());
        return Err(Error::Argument("plot", why));
    }
    fs::write(file, samples::plot(&shuffles).to_string()).map_err(not_written)?;
    Ok(code)
}

/// Where shuffles leave samples; taken away at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let mut number = 0_u32;
        loop {
            let name = format!("shuffle-runner-{}-{number}", process::id());
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // One that was killed has left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// What each shuffle of each rank has left, from the first sample on.
    fn read(&self) -> io::Result<Vec<Vec<Sample>>> {
        let files = fs::read_dir(&self.0)?;
        let mut shuffles = files
            .map(|file| {
                let text = fs::read_to_string(file?.path())?;
                Ok(text.split_inclusive('\n').filter_map(parse).collect())
            })
            .collect::<io::Result<Vec<Vec<Sample>>>>()?;
        let begin = shuffles.iter().flatten().map(|sample| sample.time_us).min().unwrap_or(0);
        shuffles.iter_mut().flatten().for_each(|sample| sample.time_us -= begin);
        Ok(shuffles)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `None`: not a whole line, as the last one of a process that was killed.
fn parse(line: &str) -> Option<Sample> {
    let numbers = line
        .strip_suffix('\n')?
        .split(' ')
        .map(str::parse)
        .collect::<Result<Vec<u64>, _>>()
        .ok()?;
    let [time_us, delivered, origin, network, relay, undelivered] = numbers[..] else {
        return None;
    };
    Some(Sample { time_us, delivered, depths: [origin, network, relay, undelivered] })
}

/// Tells each shuffle of a program where to leave its samples.
const SAMPLES: &str = "HG_SHUFFLE_SAMPLES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_is_no_sample() {
        let whole = Sample { time_us: 10, delivered: 20, depths: [1, 2, 3, 45] };
        assert_eq!(parse("10 20 1 2 3 45\n"), Some(whole));
        assert_eq!(["10 20 1 2 3 4", "10 20 1 2\n", ""].map(parse), [None; 3]);
    }

    #[test]
    fn a_folder_that_was_left_there_is_not_taken() {
        let [first, second] = [Folder::new().unwrap(), Folder::new().unwrap()];
        assert_ne!(first.0, second.0);
    }
}
