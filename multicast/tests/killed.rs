//! Real processes, one of which is killed before each block that it writes and before each that it sends: every survivor learns whom, within a
//! bound, what it has is whole, and the others go on without it, by block.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a member tells its parent")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use hg_multicast::{
    Blocks, Data, Destination, Group, GroupId, Multicast, Object, Options,
    schedule::{Choice, Schedule, Steps},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use watchdog::Watchdog;

const MEMBERS: usize = 8;
/// What a process of a test is told by.
const URL: &str = "MULTICAST_MEMBER";
const BLOCKS: usize = 5;

/// From the end of the one that dies until every survivor has said so, on a busy machine. Who waits for a connection to time out takes
/// longer.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// Where a process kills itself: before the block with this number, of those of this object that it writes, or that it reads to send them.
#[derive(Debug, Clone, Copy)]
struct Death {
    is_send: bool,
    object: u64,
    nth: usize,
}

impl Death {
    /// What a member is told, and reads.
    fn word(death: Option<Self>) -> String {
        death.map_or("-".to_owned(), |Self { is_send, object, nth }| {
            format!("{is_send}.{object}.{nth}")
        })
    }

    fn read(word: &str) -> Option<Self> {
        let mut parts = word.split('.');
        let is_send = parts.next()?.parse().ok()?;
        let object = parts.next()?.parse().unwrap();
        Some(Self { is_send, object, nth: parts.next()?.parse().unwrap() })
    }

    /// All that a member can die, in one object after the other.
    fn all(member: usize, is_send: bool) -> impl Iterator<Item = Self> {
        let [member, members] = [member, MEMBERS].map(|it| u32::try_from(it).unwrap());
        let steps = Steps::new(Schedule::Pipeline, members, BLOCKS as u64, member);
        let happens = move |it: &hg_multicast::schedule::Step| {
            if is_send { it.send.is_some() } else { it.receive.is_some() }
        };
        let count = steps.filter(happens).count();
        (0..count).map(move |nth| Self { is_send, object: nth as u64 % 2, nth })
    }
}

/// An object in memory, whose process kills itself where that is wanted.
struct Deadly {
    bytes: Vec<u8>,
    number: u64,
    dies: Option<Death>,
    sent: usize,
    written: usize,
}

impl Deadly {
    fn new(bytes: Vec<u8>, number: u64, dies: Option<Death>) -> Self {
        Self { bytes, number, dies, sent: 0, written: 0 }
    }

    fn step(&mut self, is_send: bool) {
        let count = if is_send { &mut self.sent } else { &mut self.written };
        let here = self.dies.filter(|it| (it.is_send, it.object) == (is_send, self.number));
        if here.is_some_and(|it| it.nth == *count) {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        *count += 1;
    }
}

impl Blocks for Deadly {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.step(true);
        let start = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.step(false);
        let start = usize::try_from(offset).unwrap();
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        assert!(self.bytes == object(self.bytes[1]), "it is whole");
        Ok(())
    }
}

/// Bytes of a block: over `tcp` each is on a node of its own, and such a block comes in two parts.
fn block(url: &str) -> usize {
    if url.starts_with("tcp") { 300_000 } else { 20_000 }
}

fn size() -> usize {
    block(&std::env::var(URL).unwrap()) * BLOCKS
}

fn object(number: u8) -> Vec<u8> {
    let mut bytes: Vec<_> = (0..size()).map(|it| u8::try_from(it % 241).unwrap()).collect();
    bytes[..2].copy_from_slice(&[0, number]);
    bytes
}

/// What each process does that [`Member::start`] starts.
#[test]
fn member() {
    let Ok(url) = std::env::var(URL) else { return };
    let multicast = Multicast::open(hg::builder().setting("routing", "off"), &url)
        .or_else(|_| Multicast::open(hg::builder(), &url))
        .unwrap();
    println!("\naddress {}", multicast.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let id = u128::from_str_radix(words[0], 16).unwrap();
    let own: u32 = words[1].parse().unwrap();
    let dies = Death::read(words[2]);
    let members: Vec<hg::Address> = words[4..].iter().map(|it| it.parse().unwrap()).collect();
    let mut options = Options::default();
    (options.schedule, options.block_size) = (Choice::Pipeline, Some(block(&url) as u64));
    options.nodes = url.starts_with("tcp").then(|| (0..u32::try_from(MEMBERS).unwrap()).collect());
    let incoming = move |incoming: hg_multicast::Incoming<'_>| {
        let bytes = vec![1; size()];
        Ok(Destination::Blocks(Box::new(Deadly::new(bytes, incoming.number, dies))))
    };
    let group =
        multicast.group(GroupId::from_bytes(id.to_le_bytes()), &members, own, options, incoming);
    let group = group.unwrap();
    if own == 0 {
        (0..2).for_each(|number| send(&group, number, dies));
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
            send(&group, 2, None);
        }
        group.close().wait().unwrap();
    } else {
        receive(&group).unwrap();
        println!("here {}", group.progress().blocks);
        group.close().wait().unwrap();
    }
    println!("closed");
}

fn send(group: &Group, number: u8, dies: Option<Death>) {
    let from = Box::new(Deadly::new(object(number), number.into(), dies));
    drop(group.send(Object::Blocks { from, size: size() as u64 }, b"").unwrap());
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
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until it has killed itself; when that was.
    fn is_killed(&mut self) -> Instant {
        let status = self.child.wait().unwrap();
        let now = Instant::now();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "the victim: {status}");
        now
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
fn start(url: &str, victim: usize, death: Death, then: &str) -> Vec<Member> {
    let mut members: Vec<_> = (0..MEMBERS).map(|_| Member::start(url)).collect();
    let addresses: Vec<_> = members
        .iter_mut()
        .map(|it| it.hear(&["address "]).unwrap().split_off("address ".len()))
        .collect();
    let id = u128::from_le_bytes(GroupId::random().unwrap().to_bytes());
    for (own, member) in members.iter_mut().enumerate() {
        let dies = Death::word((own == victim).then_some(death));
        let line = format!("{id:x} {own} {dies} {then} {}\n", addresses.join(" "));
        member.child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    }
    members
}

/// What a survivor has said until its end.
#[derive(Default)]
struct Said {
    objects: Vec<u8>,
    /// Who has failed, and when that was known.
    failed: Option<(usize, Instant)>,
    /// Blocks that have come, each time that one has.
    blocks: Option<usize>,
    has_closed: bool,
}

impl Said {
    fn by(member: &mut Member) -> Self {
        let mut this = Self::default();
        while let Some(line) = member.hear(&["object ", "failed ", "here ", "closed"]) {
            match line.split_once(' ') {
                Some(("object", number)) => this.objects.push(number.parse().unwrap()),
                Some(("failed", who)) => {
                    this.failed = Some((who.parse().unwrap(), Instant::now()));
                }
                Some((_, blocks)) => this.blocks = Some(blocks.parse().unwrap()),
                None => this.has_closed = true,
            }
        }
        this
    }
}

/// When the victim has ended, and what the others have said, each with its number.
fn listen(members: &mut [Member], victim: usize) -> (Instant, Vec<(usize, Said)>) {
    thread::scope(|scope| {
        let (mut ended, mut survivors) = (None, Vec::new());
        for (own, member) in members.iter_mut().enumerate() {
            if own == victim {
                ended = Some(scope.spawn(|| member.is_killed()));
            } else {
                survivors.push((own, scope.spawn(|| Said::by(member))));
            }
        }
        let ended = ended.expect("it is one of them").join().unwrap();
        (ended, survivors.into_iter().map(|(own, said)| (own, said.join().unwrap())).collect())
    })
}

/// Runs what is tested with one death, in a thread of the death's name: it stands in whatever fails there, and where the watchdog fires.
fn case(url: &str, victim: usize, death: Death, test: fn(&str, usize, Death)) {
    let what = format!("{url}: member {victim} at {death:?}");
    thread::scope(|scope| {
        let run = || {
            let _watchdog = Watchdog::start();
            test(url, victim, death);
        };
        let ended =
            thread::Builder::new().name(what.clone()).spawn_scoped(scope, run).unwrap().join();
        assert!(ended.is_ok(), "{what}");
    });
}

fn survivors_go_on(url: &str, victim: usize, death: Death) {
    let mut members = start(url, victim, death, "reforms");
    let (ended, survivors) = listen(&mut members, victim);
    for (own, mut said) in survivors {
        let what = format!("member {own}");
        assert!(said.has_closed, "{what}: it has not come to its end");
        let (failed, known) = said.failed.expect(&what);
        assert_eq!(failed, victim, "{what}");
        let after = known.saturating_duration_since(ended);
        assert!(after <= KNOWN_WITHIN, "{what}: it knows {after:?} after the death");
        match (own, victim) {
            (0, _) | (1, 0) => {}
            // What the dead root had given is whole or nothing; what the new one gives comes after.
            (_, 0) => {
                assert_eq!(said.objects.pop(), Some(2), "{what}");
                assert!(said.objects == [0, 1][..said.objects.len()], "{what}: {:?}", said.objects);
                let least = BLOCKS * (said.objects.len() + 1);
                assert!((least..=3 * BLOCKS).contains(&said.blocks.expect(&what)), "{what}");
            }
            // No block that was here before has come again.
            _ => {
                assert_eq!(said.objects, [0, 1], "{what}");
                assert_eq!(said.blocks, Some(2 * BLOCKS), "{what}");
            }
        }
    }
}

fn kill_at_each(is_send: bool, url: &str) {
    for victim in 0..MEMBERS {
        Death::all(victim, is_send).for_each(|death| case(url, victim, death, survivors_go_on));
    }
}

#[test]
fn whoever_is_killed_before_whatever_write_the_survivors_know_and_go_on_over_sm() {
    kill_at_each(false, "sm://");
}

#[test]
fn whoever_is_killed_before_whatever_write_the_survivors_know_and_go_on_over_tcp() {
    kill_at_each(false, "tcp://127.0.0.1");
}

#[test]
fn whoever_is_killed_before_whatever_send_the_survivors_know_and_go_on_over_sm() {
    kill_at_each(true, "sm://");
}

#[test]
fn whoever_is_killed_before_whatever_send_the_survivors_know_and_go_on_over_tcp() {
    kill_at_each(true, "tcp://127.0.0.1");
}

#[test]
fn whoever_is_killed_no_survivor_closes() {
    for url in ["sm://", "tcp://127.0.0.1"] {
        for victim in 0..MEMBERS {
            let death = Death { is_send: victim == 0, object: 1, nth: 2 };
            case(url, victim, death, no_survivor_closes);
        }
    }
}

fn no_survivor_closes(url: &str, victim: usize, death: Death) {
    let mut members = start(url, victim, death, "closes");
    members[victim].is_killed();
    for (own, member) in members.iter_mut().enumerate().filter(|it| it.0 != victim) {
        let closed = member.hear(&["closed "]);
        assert_eq!(closed, Some(format!("closed {victim}")), "member {own}");
    }
}
