//! A receiver that is started on another host: by ssh, by srun, by anything that runs a command there.
//!
//! It is told key and folder by its standard input and tells its address by its standard output; when its input ends, it does.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{arguments::Arguments, key::Key};

/// How long what has started a receiver may stay when that was told to end: a connection that was cut off, or a script that goes on, would.
const FAREWELL: Duration = Duration::from_secs(10);

/// One of them, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Started {
    process: Child,
    input: Option<ChildStdin>,
    released: Option<Instant>,
}

impl Started {
    /// Starts it, and waits until it has said its address.
    ///
    /// # Errors
    /// It does not start: it has said why on standard error.
    pub(crate) fn start(
        arguments: &Arguments,
        key: Key,
        host: &str,
        folder: &str,
    ) -> Result<(Self, String), String> {
        let words = words(arguments, host);
        let (program, rest) = words.split_first().ok_or("--start: has no command")?;
        let mut command = Command::new(program);
        command.args(rest).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process =
            command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
        let mut input = process.stdin.take().expect("piped above");
        let output = process.stdout.take().expect("piped above");
        let told = writeln!(input, "{}\n{folder}", key.digits());
        let mut this = Self { process, input: Some(input), released: None };
        let mut address = String::new();
        let heard = BufReader::new(output).read_line(&mut address);
        let address = address.trim();
        if told.is_err() || heard.is_err() || !address.contains("://") {
            this.input = None;
            let ended = this.process.wait().map_err(|error| error.to_string())?;
            return Err(format!(
                "no receiver has started there: `{}` ended with {ended}",
                words.join(" ")
            ));
        }
        Ok((this, address.to_owned()))
    }
}

impl Started {
    /// Lets it end, which it does by itself: nobody waits for it yet.
    pub(crate) fn release(&mut self) {
        self.input = None;
        self.released.get_or_insert_with(Instant::now);
    }

    /// Whether it ends by itself.
    fn ends(&self) -> bool {
        let since = self.released.map_or(Duration::ZERO, |it| it.elapsed());
        let left = FAREWELL.saturating_sub(since).try_into();
        let ended = pidfd_open(Pid::from_child(&self.process), PidfdFlags::empty());
        let (Ok(ended), Ok(left)) = (ended, left) else { return false };
        poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)).is_ok_and(|count| count > 0)
    }

    /// Its host has failed, and may give no sign of life, so that what has started it would not end by itself.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.release();
        if !self.ends() {
            self.kill();
        }
        // How it ends is of no interest any more.
        let _ = self.process.wait();
    }
}

/// The command that starts it.
fn words(arguments: &Arguments, host: &str) -> Vec<String> {
    let mut words: Vec<String> =
        arguments.start.split_whitespace().map(|word| word.replace("{}", host)).collect();
    if !arguments.start.contains("{}") {
        words.push(host.to_owned());
    }
    words.extend([arguments.program.clone(), "--receive".to_owned(), "-".to_owned()]);
    for setting in &arguments.setting {
        words.extend(["--setting".to_owned(), setting.clone()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_host_stands_where_it_is_wanted_or_last() {
        let of = |words: &[&str]| {
            let arguments =
                Arguments::try_parse_from([&["multicast-cp", "f", "h:"], words].concat());
            words_of(&arguments.unwrap())
        };
        assert_eq!(of(&[]), "ssh h multicast-cp --receive -");
        let more =
            ["--start", "srun -w {} -n1", "--program", "/p", "--setting", "subnet=10.0.0.0/8"];
        assert_eq!(of(&more), "srun -w h -n1 /p --receive - --setting subnet=10.0.0.0/8");
    }

    fn words_of(arguments: &Arguments) -> String {
        words(arguments, "h").join(" ")
    }
}
