//! Two processes exchange messages of every size, spinning and sleeping; the target sees the origin go.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{Wait, call, next};
use hg_na::{Completion, Context, Done, Message, Op, OpenOptions, Peer, Plugin as _};
use hg_na_sm::SmPlugin;

const ROLE: &str = "HG_SM_TEST_WAIT";

/// Starts this test program again as a target; gives its address.
fn target(wait: &str) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "target_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, wait)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "the target prints its address");
        if let Some((_, address)) = line.trim_end().split_once("address ") {
            break address.to_owned();
        }
    };
    (child, output, address)
}

/// Not a test of its own: the other process of those below.
#[test]
fn target_process() {
    let Ok(wait) = env::var(ROLE) else { return };
    let mut context = open("sm://");
    #[expect(clippy::print_stdout, reason = "tells the parent where to call")]
    {
        println!("\naddress {}", context.address());
    }
    let served = serve(&mut *context, if wait == "spin" { Wait::Spin } else { Wait::Sleep });
    assert!(served > 0);
}

fn ping_pong(target_waits: &str, wait: Wait, rounds: u64) {
    let (mut child, mut output, address) = target(target_waits);
    let mut context = open("sm://");
    let peer = context.lookup(&address.parse().unwrap()).unwrap();
    for tag in 0..rounds {
        let len = [8, 48, 49, 56, 57, 4096, 65_536, 262_144][usize::try_from(tag % 8).unwrap()];
        let mut request = vec![0x5a; len];
        request[..8].copy_from_slice(&tag.to_le_bytes());
        if len > 8 {
            request[len - 1] ^= 1;
        }
        let answer = call(&mut *context, peer, tag, &request, wait);
        assert!(answer == request, "round {tag}");
    }
    drop(context);
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn spinning_processes_get_every_message_whole() {
    ping_pong("spin", Wait::Spin, 2000);
}

#[test]
fn sleeping_processes_get_every_message_whole() {
    ping_pong("sleep", Wait::Sleep, 2000);
}

#[test]
fn a_spinning_and_a_sleeping_process_mix() {
    ping_pong("sleep", Wait::Spin, 1000);
    ping_pong("spin", Wait::Sleep, 1000);
}

/// A context of a domain of its own.
fn open(url: &str) -> Box<dyn Context> {
    let options = OpenOptions::listening();
    SmPlugin.open(&url.parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// Answers each request with its bytes, the tag in its first eight bytes, until the last peer is gone.
fn serve(context: &mut dyn Context, wait: Wait) -> u64 {
    let (mut served, mut done) = (0, Vec::new());
    loop {
        next(context, wait, &mut done);
        for completion in done.drain(..) {
            match completion {
                Completion::Unexpected { from, message } => {
                    let bytes = message.as_slice();
                    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    let mut answer = context.message(from, bytes.len()).unwrap();
                    answer.as_mut_slice().copy_from_slice(bytes);
                    post_answer(context, from, tag, answer);
                    served += 1;
                }
                Completion::Done(Done { result: Ok(()), .. }) => {}
                Completion::HungUp { .. } => {}
                Completion::Gone { .. } => return served,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

fn post_answer(context: &mut dyn Context, to: Peer, tag: u64, message: Message) {
    context.post(0, Op::SendExpected { to, tag, message }).unwrap();
}
