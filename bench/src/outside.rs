//! Programs of others, and of this project, that measure themselves: started, waited for, and asked for their rate.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::Value;

use crate::error::{Context, Error};
use crate::measure::{Measure, Subject};
use crate::pair::Cores;

/// A program that says how many of something a second there were, in its last line.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) subject: Subject,
    pub(crate) program: OsString,
    pub(crate) words: Vec<String>,
    /// The name of the rate in that line.
    pub(crate) rate: &'static str,
    pub(crate) cores: Cores,
    /// Where its ranks may run: this process itself is pinned.
    pub(crate) allowed: CpuSet,
    /// Another number of that line.
    pub(crate) also: Option<Also>,
}

/// A number that a program says beside its rate. It is measured in turns behind the program itself.
#[derive(Debug, Clone)]
pub(crate) struct Also {
    subject: Subject,
    /// The name of the number.
    name: &'static str,
    /// How many of it make one of the subject's unit.
    per_unit: f64,
    said: Rc<Cell<f64>>,
}

impl Also {
    pub(crate) fn new(subject: Subject, name: &'static str, per_unit: f64) -> Self {
        Self { subject, name, per_unit, said: Rc::default() }
    }
}

impl Measure for Also {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        Ok(self.said.get() / self.per_unit)
    }
}

/// A program that was built with this one; `what` tells how, where it is not there.
pub(crate) fn beside_this(name: &str, what: &str) -> Result<PathBuf, Error> {
    let beside = std::env::current_exe().context("readlink /proc/self/exe")?;
    let beside = beside.with_file_name(name);
    if beside.is_file() {
        return Ok(beside);
    }
    Err(Error::Impossible(format!("{} is not there: {what}", beside.display())))
}

impl Measure for Outside {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let mut command = Command::new("timeout");
        command.args(["-k", "2", PATIENCE_S]).arg(&self.program).args(&self.words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sched_setaffinity(Pid::from_raw(0), &self.allowed).context("sched_setaffinity")?;
        let started = command.spawn();
        self.cores.pin_origin()?;
        let started = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NoProgram { program: "timeout", package: "coreutils" });
            }
            started => started.context("spawn")?,
        };
        let output = started.wait_with_output().context("waitpid")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        let rate = output.status.success().then(|| number(&text, self.rate)).flatten();
        let words: Vec<&str> =
            [text.trim(), said.trim()].into_iter().filter(|words| !words.is_empty()).collect();
        let failed = || failed(&self.program, &words.join("; "));
        if let Some(also) = &self.also {
            also.said.set(number(&text, also.name).ok_or_else(failed)?);
        }
        rate.ok_or_else(failed)
    }
}

/// A number of the last line, if nothing was wrong.
fn number(text: &str, name: &str) -> Option<f64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    let wrong = ["lost", "repeated", "corrupted", "wrong"];
    let is_well = wrong.iter().all(|name| last[name].as_u64().is_none_or(|count| count == 0));
    last[name].as_f64().filter(|_| is_well)
}

fn failed(program: &OsStr, said: &str) -> Error {
    Error::Failed(format!("{} did not end well: {said}", program.display()))
}

/// How long one run may take.
const PATIENCE_S: &str = "120";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_only_when_nothing_was_wrong() {
        assert_eq!(number("{}\n{\"x_per_s\":2.5,\"lost\":0,\"wrong\":0}\n", "x_per_s"), Some(2.5));
        for bad in ["", "no", "{}", "{\"x_per_s\":1,\"wrong\":3}"] {
            assert_eq!(number(bad, "x_per_s"), None, "{bad}");
        }
    }
}
