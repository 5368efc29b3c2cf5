//! A process that closes in good order and exits is not taken for one that has died, however late its goodbye is read.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
    time::Instant,
};

use hg_na::{Address, Completion, Context, GoneReason, Message, Op, OpenOptions, Plugin as _};
use hg_na_sm::SmPlugin;
use watchdog::in_time;

/// Whoever has it in his environment is the process that says goodbye.
const ROLE: &str = "HG_TEST_GOODBYE";

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// Says where it is, accepts a peer, and closes.
fn be_accepted_and_leave() {
    let mut context = open();
    let mut out = std::io::stdout();
    writeln!(out, " {}", context.address()).unwrap();
    let start = Instant::now();
    while context.connected().is_empty() {
        in_time!(start, "nobody connects");
        context.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
}

#[test]
fn a_peer_that_is_accepted_closes_and_exits_before_it_is_looked_at_has_closed() {
    const SELF: &str = "a_peer_that_is_accepted_closes_and_exits_before_it_is_looked_at_has_closed";
    if std::env::var_os(ROLE).is_some() {
        return be_accepted_and_leave();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", SELF, "--nocapture"]).env(ROLE, "1").stdout(Stdio::piped());
    let mut target = command.spawn().unwrap();
    let lines = BufReader::new(target.stdout.take().unwrap()).lines();
    let mut words = lines.map_while(Result::ok).filter_map(|line| {
        line.split(' ').next_back().filter(|word| word.starts_with("sm://")).map(str::to_owned)
    });
    let address: Address = words.next().unwrap().parse().unwrap();

    let mut origin = open();
    let to = origin.lookup(&address).unwrap();
    origin.post(1, Op::SendUnexpected { to, message: Message::copied(&[7; 8]) }).unwrap();
    let mut done = Vec::new();
    origin.progress(Instant::now(), &mut done).unwrap(); // Says Hello.
    assert!(words.next().is_none() && target.wait().unwrap().success());

    let start = Instant::now();
    let reason = loop {
        in_time!(start, "nobody tells that the peer is gone: {done:?}");
        origin.progress(Instant::now(), &mut done).unwrap();
        let told = done.iter().find_map(|it| match it {
            Completion::HungUp { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        if let Some(reason) = told {
            break reason;
        }
    };
    assert_eq!(reason, GoneReason::Closed, "{done:?}");
}
