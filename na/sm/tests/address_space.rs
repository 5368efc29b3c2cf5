//! A process whose address space is limited (`RLIMIT_AS`) works, or says by name what it lacks: no limit ends it by a signal.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "what the process of the test says")]

use std::{
    env, fs,
    process::{Command, Output},
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Message, Op, OpenOptions, Plugin as _, QUIET,
};
use hg_na_sm::SmPlugin;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::{Watchdog, alone, in_time};

/// Set in a process that is limited: whom it is to connect to.
const PEERS: &str = "HG_SM_PEERS";
/// More than fit into the least limit, and fewer than into the highest.
const PEER_COUNT: u8 = 8;
const LONG: usize = 200_000;

fn contexts(count: u8) -> Result<Vec<Box<dyn Context>>, Error> {
    let domain = SmPlugin.open(&"sm://".parse().unwrap(), &OpenOptions::listening())?;
    (0..count).map(|id| domain.context(id)).collect()
}

#[test]
fn at_every_limit_of_address_space_peers_are_connected_or_refused_by_name_and_the_heap_goes_on() {
    let mut targets = contexts(PEER_COUNT).unwrap();
    let addresses: Vec<_> = targets.iter().map(|it| it.address().as_str().to_owned()).collect();
    let addresses = addresses.join(",");
    let (mut worked, mut refused) = (0, 0);
    for megabytes in (50..=230).step_by(10) {
        let output = std::thread::scope(|scope| {
            let limited = scope.spawn(|| limited(megabytes, &addresses));
            while !limited.is_finished() {
                for target in &mut targets {
                    target.progress(Instant::now(), &mut Vec::new()).unwrap();
                }
            }
            limited.join().unwrap()
        });
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{megabytes} MB: {}\n{said}\n{why}", output.status);
        worked += said.matches("worked").count();
        refused += said.matches("refused").count();
    }
    assert!(worked > 0 && refused > 0, "{worked} worked, {refused} were refused");
}

/// What comes of this program under a limit.
fn limited(megabytes: u32, addresses: &str) -> Output {
    let program = env::current_exe().unwrap();
    let script = "ulimit -v \"$0\" && exec \"$@\" --exact a_process_that_is_limited --nocapture";
    let kilobytes = (megabytes * 1000).to_string();
    let mut shell = Command::new("sh");
    shell.args(["-c", script, &kilobytes]).arg(program).env(PEERS, addresses).output().unwrap()
}

/// The other process. As a test by itself it does nothing.
#[test]
fn a_process_that_is_limited() {
    let Ok(addresses) = env::var(PEERS) else { return };
    let _watchdog = Watchdog::start();
    let mut open = match contexts(1) {
        Ok(open) => open,
        Err(error) => return is_named(&error.to_string()),
    };
    for address in addresses.split(',') {
        match long_request(open[0].as_mut(), &Address::new(address).unwrap()) {
            Ok(()) => println!("worked"),
            Err(why) => is_named(&why),
        }
    }
    // What everything else of a program takes, in pieces that nobody can be refused.
    let small: Vec<Box<[usize; 512]>> = (0..1024).map(|at| Box::new([at; 512])).collect();
    assert!(small.iter().zip(0..).all(|(it, at)| it[7] == at));
}

fn is_named(why: &str) {
    assert!(why.contains("ulimit -v"), "{why}");
    println!("refused: {why}");
}

fn long_request(context: &mut dyn Context, address: &Address) -> Result<(), String> {
    let to = context.lookup(address).unwrap();
    let message = Message::copied(&[1; LONG]);
    let posted = context.post(7, Op::SendUnexpected { to, message });
    posted.map_err(|rejected| rejected.error.to_string())?;
    let start = Instant::now();
    loop {
        let mut done = Vec::new();
        context.progress(Instant::now(), &mut done).unwrap();
        for completion in done {
            match completion {
                Completion::Done(done) => {
                    return done.result.map_err(|failure| failure.error.to_string());
                }
                Completion::Gone { reason, .. } => return Err(reason.to_string()),
                _ => {}
            }
        }
        in_time!(start, "nothing is told");
    }
}

#[test]
fn a_body_that_finds_no_memory_ends_its_connection_and_is_nobodys_fault() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (contexts(1).unwrap(), contexts(1).unwrap());
        let (one, other) = (one[0].as_mut(), other[0].as_mut());
        let (start, mut done) = (Instant::now(), Vec::new());
        let to = one.lookup(other.address()).unwrap();
        for bytes in [&[1; 8][..], &[1; LONG]] {
            let message = Message::copied(bytes);
            one.post(QUIET, Op::SendUnexpected { to, message }).unwrap();
            while bytes.len() == 8 && done.is_empty() {
                in_time!(start, "the first request never came");
                one.progress(Instant::now(), &mut Vec::new()).unwrap();
                other.progress(Instant::now(), &mut done).unwrap();
            }
        }
        let filler = fill_the_heap();
        let reason = loop {
            in_time!(start, "nothing is told");
            let mut done = Vec::new();
            other.progress(Instant::now(), &mut done).unwrap();
            if let Some(Completion::Gone { reason, .. }) = done.pop() {
                break reason;
            }
        };
        drop(filler);
        assert!(matches!(reason, GoneReason::Exhausted(_)), "{reason}");
        assert!(reason.to_string().contains("ulimit -v"), "{reason}");
    });
}

/// No memory is to be had but for what is half as long.
fn fill_the_heap() -> Vec<Vec<u8>> {
    let mut filler = Vec::with_capacity(100_000);
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, pages * 4096, hard).unwrap();
    loop {
        let mut piece = Vec::new();
        if piece.try_reserve_exact(LONG / 2).is_err() {
            filler.pop(); // That place is for what is short.
            return filler;
        }
        filler.push(piece);
    }
}
