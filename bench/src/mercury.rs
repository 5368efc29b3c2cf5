//! `hg-perf mercury`: calls beside those of C Mercury, by its own programs.
//!
//! They are built with Mercury where `BUILD_TESTING_PERF` is on (no package has them), and are found in `PATH` or in `--programs`.
//! Both sides spin. Each repetition starts a server and a client anew, since a client ends its server.
//!
//! | figure           | beside it                                                                     |
//! |------------------|-------------------------------------------------------------------------------|
//! | `call`           | `hg_rate`: 8 bytes there, and as many calls in flight                         |
//! | `call_with_pull` | `hg_bw_write`: a call whose handler pulls that many bytes of heap memory      |
//! | `..._to_mercury` | the ratio, round by round: of times below 1, of rates above it, is ahead      |

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error};
use crate::limits::fi_pingpong::{Killed, PATIENCE};
use crate::measure::{Measure, Memory, Subject, Unit, Wait};
use crate::pair::{self, Cores};
use crate::product::call::{Caller, Shape, WORD};
use crate::product::pulled;
use crate::product::target::Target;
use crate::report;
use crate::turns::Turns;

/// `hg-perf mercury`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport: `sm://`, or `ofi+PROVIDER://127.0.0.1`.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Bytes that handlers pull.
    #[arg(long, value_delimiter = ',', default_value = "4096,65536,1048576")]
    sizes: Vec<usize>,
    /// Calls in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    inflight: u32,
    /// The folder that has `hg_perf_server`, `hg_rate` and `hg_bw_write`.
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let Some(plugin) = plugin(&arguments.url) else {
        return Err(Error::Impossible(format!(
            "Mercury is asked for sm:// or ofi+PROVIDER://, not for {}",
            arguments.url
        )));
    };
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let target = Rc::new(Target::start(&arguments.url, Wait::Spin, cores)?);
    let shape = |size| {
        let (url, inflight) = (arguments.url.clone(), arguments.inflight);
        Shape { url, size, inflight, wait: Wait::Spin, peers: 1 }
    };
    let beside = |client, size| {
        let programs = arguments.programs.clone();
        Mercury { cores, programs, plugin: plugin.clone(), client, shape: shape(size) }
    };
    let mut turns = Turns::default();
    let call = turns.add(Caller::connect(shape(WORD), &target)?);
    let rate = turns.add(beside("hg_rate", WORD));
    turns.line(move |taken| taken.figure(call));
    turns.line(move |taken| taken.figure(rate));
    turns.ratio_line("call_to_mercury", call, rate);
    for &size in &arguments.sizes {
        let pulled = turns.add(pulled::Caller::connect(shape(size), Memory::Heap, &target)?);
        let beside = turns.add(beside("hg_bw_write", size));
        turns.line(move |taken| taken.figure(pulled));
        turns.line(move |taken| taken.figure(beside));
        turns.ratio_line("call_with_pull_to_mercury", pulled, beside);
    }
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// What its programs are told of a transport.
fn plugin(url: &str) -> Option<Vec<String>> {
    let (scheme, host) = url.split_once("://")?;
    let words = match scheme.strip_prefix("ofi+") {
        Some(provider) => vec!["-c", "ofi", "-p", provider, "-H", host],
        None if scheme == "sm" => vec!["-c", "na", "-p", "sm"],
        None => return None,
    };
    Some(words.into_iter().map(str::to_owned).collect())
}

/// One of its programs.
#[derive(Debug)]
struct Mercury {
    cores: Cores,
    programs: Option<PathBuf>,
    plugin: Vec<String>,
    client: &'static str,
    /// What it calls.
    shape: Shape,
}

impl Mercury {
    fn start(
        &self,
        program: &'static str,
        core: Option<usize>,
        more: &[String],
    ) -> Result<Killed, Error> {
        // What is started inherits the core.
        core.map_or(Ok(()), pair::pin)?;
        let path = self.programs.as_ref().map_or_else(|| program.into(), |at| at.join(program));
        let mut command = Command::new(path);
        command.args(&self.plugin).args(["-b", "-f"]).arg(address_file()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.spawn();
        self.cores.pin_origin()?;
        match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let what = "is built with Mercury by -DBUILD_TESTING=ON -DBUILD_TESTING_PERF=ON";
                Err(Error::Impossible(format!(
                    "`{program}` was not found: it {what}; name its folder by --programs"
                )))
            }
            started => started.map(Killed).context("spawn"),
        }
    }
}

impl Measure for Mercury {
    fn subject(&self) -> Subject {
        Subject { figure: self.client.into(), ..self.shape.subject() }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let file = address_file();
        let _none_yet = fs::remove_file(&file);
        let Shape { size, inflight, .. } = self.shape;
        let limit = Instant::now() + PATIENCE;
        let mut server = self.start("hg_perf_server", self.cores.target, &[])?;
        while fs::metadata(&file).map_or(0, |it| it.len()) == 0 {
            if server.0.try_wait().context("waitpid")?.is_some() || Instant::now() > limit {
                let (_, said) = server.ended("hg_perf_server", limit)?;
                return Err(Error::NoCount { tool: "hg_perf_server", said });
            }
            thread::sleep(LOOK_EVERY);
        }
        let loops = loops(size) / inflight;
        let words = format!("-y {size} -z {size} -w 1 -x {inflight} -l {loops}");
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let client = self.start(self.client, self.cores.origin, &words)?;
        let (output, said) = client.ended(self.client, limit)?;
        let _it_is_over = fs::remove_file(&file);
        let us = output.lines().last().and_then(|line| time(line, size));
        let us = us.ok_or(Error::NoCount { tool: self.client, said })?;
        Ok(if self.subject().unit == Unit::Microseconds { us } else { 1e6 / us })
    }
}

/// `size, rate or bandwidth, microseconds`: the last.
fn time(line: &str, size: usize) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [of, _, us] = *words else { return None };
    us.parse().ok().filter(|us| of.parse() == Ok(size) && *us > 0.0)
}

/// Where the server writes its address.
fn address_file() -> PathBuf {
    std::env::temp_dir().join(format!("hg-perf-mercury-{}", std::process::id()))
}

/// Calls: enough for a clock, few enough for a repetition.
fn loops(size: usize) -> u32 {
    match size {
        0..=1024 => 20_000,
        1025..=65_536 => 4_000,
        _ => 400,
    }
}

/// The file is looked for, so that a server that hangs can be given up.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_time_of_a_call() {
        let line = "65536                      14561.98                     4.29";
        assert_eq!((time(line, 65_536), time(line, 8)), (Some(4.29), None));
        assert_eq!(
            time("# Size          \"Bandwidth (MiB/s)\"              \"Time (us)\"", 8),
            None
        );
    }

    #[test]
    fn transports_have_mercurys_names() {
        assert_eq!(plugin("sm://").unwrap().join(" "), "-c na -p sm");
        assert_eq!(plugin("ofi+tcp://127.0.0.1").unwrap().join(" "), "-c ofi -p tcp -H 127.0.0.1");
        assert_eq!(plugin("tcp://127.0.0.1"), None);
    }
}
