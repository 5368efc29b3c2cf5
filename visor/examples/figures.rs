//! A call of 8 bytes through two daemons, through one, and over tcp without any, interleaved; and the memory of an application with its
//! share of the daemon. Every process is on this machine.
//!
//! `cargo run --release -p hydrargyrum-visor --example figures -- target/release/hg-visor`

#![expect(clippy::print_stdout, reason = "prints its figures")]

use std::{
    error::Error,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    time::Instant,
};

use hg::{Engine, Peer};
use hg_visor::VisorPlugin;

const ROUNDS: usize = 60;
const CALLS: usize = 400;
const APPLICATIONS: usize = 32;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[hg::rpc]
fn echo(number: u64) -> u64 {
    number
}

/// A daemon, killed when it is dropped.
struct Daemon {
    child: Child,
    name: String,
}

impl Daemon {
    fn start(program: &str, name: &str) -> Outcome<Self> {
        let name = format!("figures-{}-{name}", std::process::id());
        let mut command = Command::new(program);
        command.args(["serve", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let text = format!("name = \"{name}\"\nnetwork = \"tcp://127.0.0.1:0\"\n");
        child.stdin.take().ok_or("no input")?.write_all(text.as_bytes())?;
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut String::new())?;
        Ok(Self { child, name })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ended_already = self.child.wait();
    }
}

fn open(daemon: Option<&Daemon>, listen: bool) -> Outcome<Engine> {
    let builder = hg::builder().register(echo)?.listen(listen);
    Ok(match daemon {
        Some(daemon) => builder.plugin(VisorPlugin::through(&daemon.name)).open("visor://")?,
        None => builder.setting("routing", "off").open("tcp://127.0.0.1:0")?,
    })
}

/// Bytes of a process that are its own alone.
fn own_memory(pid: u32) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    // What both map is shared, and counts half at each.
    Ok(of("Pss:"))
}

/// Nanoseconds of each call.
fn calls(origin: &Engine, peer: &Peer) -> Outcome<Vec<u64>> {
    let once = |number| -> Outcome<u64> {
        let start = Instant::now();
        origin.call(echo, peer, (number,)).wait()?;
        Ok(u64::try_from(start.elapsed().as_nanos())?)
    };
    (0..CALLS as u64).map(once).collect()
}

fn main() -> Outcome<()> {
    let program = std::env::args().nth(1).ok_or("which hg-visor?")?;
    let (near, far) = (Daemon::start(&program, "near")?, Daemon::start(&program, "far")?);
    let ways = [
        ("tcp", None, None),
        ("one daemon", Some(&far), Some(&far)),
        ("two daemons", Some(&near), Some(&far)),
    ];
    let mut pairs = Vec::new();
    for (name, of_origin, of_target) in ways {
        let (target, origin) = (open(of_target, true)?, open(of_origin, false)?);
        let peer = origin.lookup(target.address())?;
        pairs.push((name, target, origin, peer, Vec::new()));
    }
    for _ in 0..ROUNDS {
        for (_, _, origin, peer, all) in &mut pairs {
            all.extend(calls(origin, peer)?);
        }
    }
    for (name, _, _, _, all) in &mut pairs {
        all.sort_unstable();
        let at = |part: usize| all[all.len() * part / 100];
        println!("{name}: p50 {} ns, p99 {} ns", at(50), at(99));
    }
    let ids = [std::process::id(), near.child.id()];
    for (name, daemon) in [("tcp", None), ("a daemon", Some(&near))] {
        let before = ids.iter().map(|pid| own_memory(*pid)).sum::<Outcome<u64>>()?;
        let target = if daemon.is_some() { &pairs[2].1 } else { &pairs[0].1 };
        let mut applications = Vec::new();
        for _ in 0..APPLICATIONS {
            let origin = open(daemon, true)?;
            let peer = origin.lookup(target.address())?;
            origin.call(echo, &peer, (1,)).wait()?;
            applications.push((origin, peer));
        }
        let after = ids.iter().map(|pid| own_memory(*pid)).sum::<Outcome<u64>>()?;
        println!("{name}: {} KiB an application", (after - before) / APPLICATIONS as u64);
    }
    Ok(())
}
