//! `hydrargyrum ping`: whether an engine answers at an address, by which way, and how fast.
//!
//! It calls an RPC that nobody registers: every engine answers that it does not know it, which is a whole
//! round trip through both engines.

use std::{
    fmt::Display,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use hg::{Address, CallError, CallOptions, Engine, Error, GoneReason, Peer};

use crate::cli::{Wrong, print};

/// Calls after the first one, which also connects.
const CALLS: usize = 11;

/// Arguments of `hydrargyrum ping`.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(crate) struct Ping {
    /// The address of an engine, as Engine::address gives it
    address: String,
    /// Time for each answer
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
    /// A setting of the transport: key-file=FILE, ...
    #[arg(long, value_name = "NAME=VALUE")]
    setting: Vec<String>,
}

/// What an address looks like.
const WHOLE: &str = "an engine that listens at tcp:// says its address in the form \
    uid://NODE#sm://...#tcp://HOST:PORT, of which tcp://HOST:PORT is the part for other nodes";

const AFTER: &str = "\
Exit status: 0 if it answers, 1 if it does not, 2 if the command line is wrong.";

#[hg::rpc(name = "hg::ping")]
fn nobody_registers_this();

impl Ping {
    /// Prints how fast an engine answers.
    ///
    /// # Errors
    /// When it does not answer, or cannot be asked.
    pub(crate) fn run(&self) -> Result<ExitCode, Wrong> {
        let address: Address = self.address.parse().map_err(Wrong::from)?;
        let mut builder = hg::builder();
        for setting in &self.setting {
            let (name, value) = setting.split_once('=').ok_or_else(|| {
                Wrong::asked(
                    "`--setting` takes NAME=VALUE; `hydrargyrum ping --help` has an example"
                        .to_owned(),
                )
            })?;
            builder = builder.setting(name, value);
        }
        let transport = transport(&address)
            .ok_or_else(|| Wrong::asked(format!("`{address}` is not whole: {WHOLE}")))?;
        let engine = builder.open(&format!("{transport}://"))?;
        let peer = engine.lookup(&address).map_err(|error| match error {
            Error::BadAddress { .. } => Wrong::asked(format!("{error}: {WHOLE}")),
            other => other.into(),
        })?;
        let first = self.ask(&engine, &peer)?;
        let mut others = Vec::new();
        for _ in 0..CALLS {
            others.push(self.ask(&engine, &peer)?);
        }
        others.sort_unstable();
        let (way, median) = (engine.way_of(&peer), others[CALLS / 2]);
        print(&format!(
            "{address} answers by {way}: first after {}, then in {} (median of {CALLS})\n",
            Time(first),
            Time(median),
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    fn ask(&self, engine: &Engine, peer: &Peer) -> Result<Duration, Wrong> {
        let within = CallOptions::within(Duration::from_millis(self.timeout_ms));
        let start = Instant::now();
        match engine.call_with(nobody_registers_this, peer, (), within).wait() {
            Ok(()) | Err(CallError::NoSuchRpc { .. }) => Ok(start.elapsed()),
            Err(CallError::PeerGone { reason: GoneReason::Misbehaved(why), .. }) => Err(Wrong {
                status: 1,
                sentence: format!("{}: something else listens there: {why}", self.address),
            }),
            Err(error) => {
                let sentence = format!("{} does not answer: {error}", self.address);
                Err(Wrong { status: 1, sentence })
            }
        }
    }
}

/// The scheme of the engine that reaches an address: of one with several parts, the network's, which stands last.
fn transport(address: &Address) -> Option<&str> {
    if address.scheme() != hg::na::UID {
        return Some(address.scheme());
    }
    let (_, last) = address.rest().rsplit_once('#')?;
    last.split_once("://").map(|(scheme, _)| scheme)
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        let asked_wrong = matches!(
            error,
            Error::BadAddress { .. }
                | Error::NoPlugin { .. }
                | Error::BadSetting { .. }
                | Error::UnknownSetting { .. }
        );
        Self { status: if asked_wrong { 2 } else { 1 }, sentence: error.to_string() }
    }
}

/// Three digits and a unit.
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = self.0.as_secs_f64() * 1e6;
        match us {
            ..10.0 => write!(out, "{us:.2} us"),
            ..100.0 => write!(out, "{us:.1} us"),
            ..1000.0 => write!(out, "{us:.0} us"),
            _ => write!(out, "{:.1} ms", us / 1000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_several_parts_is_reached_by_the_network_s_engine() {
        let of = |text: &str| transport(&Address::new(text).unwrap()).map(str::to_owned);
        assert_eq!(of("uid://node#sm://a/0#ofi+tcp://[::1]:4").as_deref(), Some("ofi+tcp"));
        assert_eq!(of("sm://a#b://c").as_deref(), Some("sm"));
        assert_eq!((of("uid://"), of("uid://node#sm")), (None, None));
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let of = |ns: u64| Time(Duration::from_nanos(ns)).to_string();
        assert_eq!(of(1234), "1.23 us");
        assert_eq!(of(12_340), "12.3 us");
        assert_eq!(of(123_400), "123 us");
        assert_eq!(of(12_345_678), "12.3 ms");
    }
}
