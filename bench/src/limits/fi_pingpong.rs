//! `fi_pingpong`: what libfabric's own program reaches over a provider, without this product.
//!
//! It is Debian's (`libfabric-bin`), run as two processes over the loopback, one on each core. It prints the time of
//! one transfer, so a round trip is twice that; its bandwidth counts both directions, one after the other.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error};
use crate::measure::{Measure, Subject, Unit, Wait};
use crate::pair::{self, Cores};

/// The program with one provider and one size.
#[derive(Debug)]
pub(crate) struct Pingpong {
    cores: Cores,
    provider: &'static str,
    size: usize,
    unit: Unit,
}

impl Pingpong {
    /// The time of a round trip of 8 bytes, or with [`Unit::PerSecond`] how many there are.
    pub(crate) fn round_trip(cores: Cores, provider: &'static str, unit: Unit) -> Pingpong {
        Pingpong { cores, provider, size: 8, unit }
    }

    /// The bandwidth of messages.
    pub(crate) fn bandwidth(cores: Cores, provider: &'static str, size: usize) -> Pingpong {
        Pingpong { cores, provider, size, unit: Unit::MebibytesPerSecond }
    }

    /// One side of it: the server on `-B`, or the client that connects to `-P`.
    fn start(&self, core: Option<usize>, port: &[&str]) -> Result<Killed, Error> {
        // What is started inherits the core.
        core.map_or(Ok(()), pair::pin)?;
        let mut command = Command::new(PROGRAM);
        let (size, iterations) = (self.size.to_string(), iterations(self.size).to_string());
        command.args(["-p", self.provider, "-e", "rdm", "-S", &size, "-I", &iterations]).args(port);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.spawn();
        self.cores.pin_origin()?;
        match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::NoProgram { program: PROGRAM, package: "libfabric-bin" })
            }
            started => started.map(Killed).context("spawn"),
        }
    }

    /// The client's last line.
    fn run(&self) -> Result<String, Error> {
        let port = free_port()?;
        let mut server = self.start(self.cores.target, &["-B", &port])?;
        let limit = Instant::now() + PATIENCE;
        loop {
            let client = self.start(self.cores.origin, &["-P", &port, "127.0.0.1"])?;
            let (output, complaint) = client.ended(PROGRAM, limit)?;
            if let Some(line) = output.lines().last().filter(|line| !line.is_empty()) {
                return Ok(line.to_owned());
            }
            // The server may not be listening yet.
            if server.0.try_wait().context("waitpid")?.is_some() || Instant::now() > limit {
                return Err(Error::NoCount { tool: PROGRAM, said: complaint });
            }
        }
    }
}

impl Measure for Pingpong {
    fn subject(&self) -> Subject {
        let subject = match self.unit {
            Unit::MebibytesPerSecond => Subject::bandwidth(PROGRAM, self.size),
            unit => Subject { unit, ..Subject::round_trip(PROGRAM, 8, Wait::Spin) },
        };
        Subject { via: Some(self.provider.to_owned()), ..subject }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let line = self.run()?;
        let wrong = || Error::NoCount { tool: PROGRAM, said: line.clone() };
        let (megabytes, microseconds) = numbers(&line).ok_or_else(wrong)?;
        Ok(match self.unit {
            Unit::MebibytesPerSecond => megabytes * 1e6 / f64::from(1 << 20),
            Unit::PerSecond => 1e6 / (2.0 * microseconds),
            _ => 2.0 * microseconds,
        })
    }
}

/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`: the megabytes a second, and the microseconds.
fn numbers(line: &str) -> Option<(f64, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, _, _, megabytes, microseconds, _] = *words else { return None };
    Some((megabytes.parse().ok()?, microseconds.parse().ok().filter(|us| *us > 0.0)?))
}

/// Transfers each way: enough for a clock, few enough for a repetition.
fn iterations(size: usize) -> usize {
    if size > 4096 { 50 } else { 1000 }
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> Result<String, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind")?;
    Ok(listener.local_addr().context("getsockname")?.port().to_string())
}

/// Killed when dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    /// Its output and its complaints once it has ended; an error when it does not.
    pub(crate) fn ended(
        mut self,
        tool: &'static str,
        limit: Instant,
    ) -> Result<(String, String), Error> {
        while self.0.try_wait().context("waitpid")?.is_none() {
            if Instant::now() > limit {
                let said = "it did not end".to_owned();
                return Err(Error::NoCount { tool, said });
            }
            thread::sleep(LOOK_EVERY);
        }
        let (mut output, mut complaint) = (String::new(), String::new());
        let read = |pipe: Option<&mut dyn io::Read>, text: &mut String| {
            pipe.map_or(Ok(0), |pipe| pipe.read_to_string(text)).context("read from a program")
        };
        read(self.0.stdout.as_mut().map(|pipe| pipe as _), &mut output)?;
        read(self.0.stderr.as_mut().map(|pipe| pipe as _), &mut complaint)?;
        Ok((output, complaint))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const PROGRAM: &str = "fi_pingpong";
/// How long one run may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Another program's end is looked for, so that one that hangs can be given up.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_bandwidth_and_time_of_a_transfer() {
        let line = "1m      200     =200    400m      0.08s   5123.41     204.67       0.00";
        assert_eq!(numbers(line), Some((5123.41, 204.67)));
        assert_eq!(
            numbers("bytes   #sent   #ack     total       time     MB/sec    usec/xfer"),
            None
        );
        assert_eq!(numbers("8 2k =2k 31k 0.00s inf 0.00 0.00"), None);
    }
}
