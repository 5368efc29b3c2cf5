//! Real processes, one of which is killed at each step of a transfer: every survivor learns whom, what it has is whole, and the others go on
//! without it, by block.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a member tells its parent")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use hg_multicast::{
    Blocks, Data, Destination, Group, GroupId, Multicast, Object, Options, schedule::Choice,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use watchdog::Watchdog;

const MEMBERS: usize = 8;
const BLOCK: usize = 20_000;
const BLOCKS: usize = 5;

/// An object in memory, whose process kills itself when so many of its blocks were written or read.
struct Deadly {
    bytes: Vec<u8>,
    left: Option<usize>,
}

impl Deadly {
    fn step(&mut self) {
        match &mut self.left {
            Some(0) => kill(Pid::this(), Signal::SIGKILL).unwrap(),
            Some(left) => *left -= 1,
            None => {}
        }
    }
}

impl Blocks for Deadly {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        if self.bytes[0] == 0 {
            self.step(); // The root's own.
        }
        let start = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.step();
        let start = usize::try_from(offset).unwrap();
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        assert!(self.bytes == object(self.bytes[1]), "it is whole");
        Ok(())
    }
}

fn object(number: u8) -> Vec<u8> {
    let mut bytes: Vec<_> = (0..BLOCK * BLOCKS).map(|it| u8::try_from(it % 241).unwrap()).collect();
    bytes[..2].copy_from_slice(&[0, number]);
    bytes
}

/// What each process does that [`Member::start`] starts.
#[test]
fn member() {
    let Ok(url) = std::env::var("MULTICAST_MEMBER") else { return };
    let multicast = Multicast::open(hg::builder().setting("routing", "off"), &url)
        .or_else(|_| Multicast::open(hg::builder(), &url))
        .unwrap();
    println!("\naddress {}", multicast.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let id = u128::from_str_radix(words[0], 16).unwrap();
    let own: u32 = words[1].parse().unwrap();
    // The object and its block at which this one dies.
    let dies: Option<(u64, usize)> =
        words[2].split_once('.').map(|it| (it.0.parse().unwrap(), it.1.parse().unwrap()));
    let members: Vec<hg::Address> = words[4..].iter().map(|it| it.parse().unwrap()).collect();
    let mut options = Options::default();
    (options.schedule, options.block_size) = (Choice::Pipeline, Some(BLOCK as u64));
    let left = move |number| dies.filter(|it| it.0 == number).map(|it| it.1);
    let incoming = move |incoming: hg_multicast::Incoming<'_>| {
        let bytes = vec![1; BLOCK * BLOCKS];
        Ok(Destination::Blocks(Box::new(Deadly { bytes, left: left(incoming.number) })))
    };
    let group =
        multicast.group(GroupId::from_bytes(id.to_le_bytes()), &members, own, options, incoming);
    let group = group.unwrap();
    if own == 0 {
        for number in 0..2 {
            let from = Box::new(Deadly {
                bytes: object(u8::try_from(number).unwrap()),
                left: left(number),
            });
            let size = (BLOCK * BLOCKS) as u64;
            drop(group.send(Object::Blocks { from, size }, b"").unwrap());
        }
    }
    if words[3] == "closes" {
        println!("closed {}", group.close().wait().expect_err("one of them dies").member);
        return;
    }
    let failed = receive(&group).expect_err("one of them dies");
    println!("failed {failed}");
    let was_root = own == 0;
    let group = group.reform().wait().unwrap();
    if group.own() == 0 {
        if !was_root {
            let from = Box::new(Deadly { bytes: object(2), left: None });
            drop(group.send(Object::Blocks { from, size: (BLOCK * BLOCKS) as u64 }, b"").unwrap());
        }
        group.close().wait().unwrap();
    } else {
        receive(&group).unwrap();
        println!("here {}", group.progress().blocks);
        group.close().wait().unwrap();
    }
    println!("closed");
}

/// Receives until the end, or until somebody has failed.
fn receive(group: &Group) -> Result<(), u32> {
    loop {
        match group.receive().wait() {
            Ok(Some(received)) => {
                let Data::Blocks(mut blocks) = received.data else { panic!("it was given blocks") };
                let mut head = [0; 2];
                blocks.read_at(0, &mut head).unwrap();
                println!("object {}", head[1]);
            }
            Ok(None) => return Ok(()),
            Err(failure) => return Err(failure.member),
        }
    }
}

/// A process, which is killed at the latest when it is dropped.
struct Member {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["member", "--exact", "--nocapture"])
            .env("MULTICAST_MEMBER", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that begins with one of these words; `None`: it has ended.
    fn hear(&mut self, words: &[&str]) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if words.iter().any(|it| line.starts_with(it)) {
                return Some(line.trim().to_owned());
            }
        }
    }
}

/// All of them, of which one dies there.
fn start(url: &str, victim: usize, (object, block): (u64, usize), then: &str) -> Vec<Member> {
    let mut members: Vec<_> = (0..MEMBERS).map(|_| Member::start(url)).collect();
    let addresses: Vec<_> = members
        .iter_mut()
        .map(|it| it.hear(&["address "]).unwrap().split_off("address ".len()))
        .collect();
    let id = u128::from_le_bytes(GroupId::random().unwrap().to_bytes());
    for (own, member) in members.iter_mut().enumerate() {
        let dies = if own == victim { format!("{object}.{block}") } else { "-".to_owned() };
        let line = format!("{id:x} {own} {dies} {then} {}\n", addresses.join(" "));
        member.child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    }
    members
}

fn kill_one(url: &str, victim: usize, object: u64, block: usize) {
    let what = format!("{url}: member {victim} at block {block} of object {object}");
    let mut members = start(url, victim, (object, block), "reforms");
    for (own, member) in members.iter_mut().enumerate().filter(|it| it.0 != victim) {
        let mut objects = Vec::new();
        let mut failed = None;
        loop {
            let line = member.hear(&["object ", "failed ", "here ", "closed"]);
            let line = line.unwrap_or_else(|| panic!("{what}: member {own} has ended"));
            match line.split_once(' ') {
                Some(("object", number)) => objects.push(number.parse::<u8>().unwrap()),
                Some(("failed", who)) => failed = Some(who.parse::<usize>().unwrap()),
                Some(_) => {}
                None => break,
            }
        }
        assert_eq!(failed, Some(victim), "{what}: member {own}");
        match (own, victim) {
            (0, _) | (1, 0) => {}
            // What the dead root had given is whole or nothing; what the new one gives comes after.
            (_, 0) => {
                assert_eq!(objects.pop(), Some(2), "{what}: member {own}");
                assert!(objects == [0, 1][..objects.len()], "{what}: member {own}: {objects:?}");
            }
            _ => assert_eq!(objects, [0, 1], "{what}: member {own}"),
        }
    }
}

fn kill_at_every_step(url: &str) {
    let _watchdog = Watchdog::within(std::time::Duration::from_secs(170));
    for victim in 0..MEMBERS {
        for block in 0..BLOCKS {
            kill_one(url, victim, u64::from(block % 2 == 1), block);
        }
    }
}

#[test]
fn whoever_is_killed_at_whatever_block_the_survivors_know_and_go_on_over_sm() {
    kill_at_every_step("sm://");
}

#[test]
fn whoever_is_killed_at_whatever_block_the_survivors_know_and_go_on_over_tcp() {
    kill_at_every_step("tcp://127.0.0.1");
}

#[test]
fn whoever_is_killed_no_survivor_closes() {
    let _watchdog = Watchdog::start();
    for url in ["sm://", "tcp://127.0.0.1"] {
        for victim in [0, 3, MEMBERS - 1] {
            let members = start(url, victim, (1, 2), "closes");
            for (own, mut member) in members.into_iter().enumerate().filter(|it| it.0 != victim) {
                let closed = member.hear(&["closed "]);
                let what = format!("{url}: member {own} of which {victim} was killed");
                assert_eq!(closed, Some(format!("closed {victim}")), "{what}");
            }
        }
    }
}
