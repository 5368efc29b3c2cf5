//! Peers that speak to the lifeline by hand: half a greeting, rubbish, questions whose answers are not read, crowds that say nothing,
//! processes of another user, and ten thousand that come and go.

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context, Descriptor, Error, Op, Rights};

use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Uid, geteuid, setresuid},
};

use watchdog::alone;

use super::{MARK, greet, open, said, until};

/// Something to read and write that does not block.
trait Line: Read + Write {}
impl Line for TcpStream {}
impl Line for UnixStream {}

fn connect(address: &Address) -> Box<dyn Line> {
    if address.scheme() == "ofi+shm" {
        let name = format!("hydrargyrum-ofi/{}", address.rest());
        let line =
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        line.set_nonblocking(true).unwrap();
        return Box::new(line);
    }
    let line = TcpStream::connect(address.rest()).unwrap();
    line.set_nonblocking(true).unwrap();
    Box::new(line)
}

/// A greeting as the layout in `wire` says, of an endpoint that is nowhere.
fn hello(address: &Address, number: u32) -> Vec<u8> {
    let name = if address.scheme() == "ofi+shm" {
        format!("fi_shm://{}:{number}\0", 4_000_000 + number).into_bytes()
    } else {
        let [high, low] = u16::try_from(1024 + number).unwrap().to_be_bytes();
        [&2u16.to_ne_bytes()[..], &[high, low, 127, 0, 0, 1], &[0; 8]].concat()
    };
    hello_of(address, number, &name)
}

/// The same of an endpoint of any name.
fn hello_of(address: &Address, number: u32, name: &[u8]) -> Vec<u8> {
    let provider = address.scheme().strip_prefix("ofi+").unwrap();
    let mut record = vec![1];
    record.extend(b"hg-ofi\x00\x04");
    record.extend(number.to_le_bytes());
    record.extend(7u64.to_le_bytes());
    record.extend(4096u32.to_le_bytes());
    record.extend(0u32.to_le_bytes());
    for text in [provider.as_bytes(), name] {
        record.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        record.extend(text);
    }
    [&u32::try_from(record.len()).unwrap().to_le_bytes()[..], &record].concat()
}

/// Progresses until the other side has said something (`true`) or hung up.
fn answered(context: &mut Box<dyn Context>, line: &mut dyn Line) -> bool {
    let (mut bytes, mut answer) = ([0; 1024], None);
    until(&mut [context], |_| {
        match line.read(&mut bytes) {
            Ok(len) => answer = Some(len > 0),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => answer = Some(false),
        }
        answer.is_some()
    });
    answer.unwrap()
}

#[test]
fn half_a_greeting_ends_within_its_bound_and_rubbish_at_once() {
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let domain = open(url, &[("connect-timeout-ms", "300")]).unwrap();
        let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let whole = hello(context.address(), 1);
        let mut half = connect(context.address());
        half.write_all(&whole[..whole.len() / 2]).unwrap();
        let mut silent = connect(context.address());
        // Others are served meanwhile.
        greet(&mut friend, &mut context);
        assert!(!answered(&mut context, half.as_mut()), "{url}: it took half a greeting");
        assert!(!answered(&mut context, silent.as_mut()), "{url}: it took silence");
        for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[9, 0, 0, 0, 77, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut line = connect(context.address());
            line.write_all(rubbish).unwrap();
            // Perhaps after a sentence.
            while answered(&mut context, line.as_mut()) {}
        }
        greet(&mut friend, &mut context);
    }
}

#[test]
fn a_name_of_another_form_is_refused_and_keeps_nobody_from_being_inserted() {
    let [four, six] = [2u16, 10].map(u16::to_ne_bytes);
    let of_six = [&six[..], &[4, 1], &[0; 24]].concat();
    let names: [&[u8]; 5] = [&[0], &[255], &four, &[&four[..], &[4; 13]].concat(), &of_six];
    let domain = open("ofi+tcp://127.0.0.1", &[]).unwrap();
    let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
    for (number, name) in (1..).zip(names) {
        let mut line = connect(context.address());
        line.write_all(&hello_of(context.address(), number, name)).unwrap();
        // After a sentence.
        while answered(&mut context, line.as_mut()) {}
    }
    greet(&mut friend, &mut context);
}

/// A record without content, of a kind.
fn word(kind: u8) -> [u8; 5] {
    [1, 0, 0, 0, kind]
}

#[test]
fn who_asks_and_does_not_read_the_answers_is_heard_no_more_and_keeps_nobody() {
    /// More than the kernel has for two sockets.
    const ENOUGH: usize = 64 << 20;
    const PING: u8 = 5;
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let domain = open(url, &[]).unwrap();
        let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
        let mut line = connect(context.address());
        line.write_all(&hello(context.address(), 1)).unwrap();
        assert!(answered(&mut context, line.as_mut()), "{url}: it is not welcome");
        let pings = word(PING).repeat(20_000);
        let (mut taken, mut refusals, mut done) = (0, 0, Vec::new());
        // Refused again and again: nobody reads any more.
        while taken < ENOUGH && refusals < 2000 {
            match line.write(&pings[taken % word(PING).len()..]) {
                Ok(len) => (taken, refusals) = (taken + len, 0),
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{url}");
                    refusals += 1;
                }
            }
            context.progress(Instant::now(), &mut done).unwrap();
        }
        assert!(taken < ENOUGH, "{url}: {taken} bytes of questions were taken");
        greet(&mut friend, &mut context);
        // Whoever reads them is heard again.
        let (mut bytes, mut pongs) = (vec![0; 1 << 16], 0);
        until(&mut [&mut context], |_| {
            pongs += line.read(&mut bytes).unwrap_or(0);
            pongs + word(PING).len() > taken
        });
    }
}

#[test]
fn crowds_that_say_nothing_are_no_peers_and_the_oldest_make_room() {
    /// One more than are let alone.
    const CROWD: usize = 1025;
    const PATIENCE: Duration = Duration::from_secs(1);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Both ends are of this process.
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(4096), hard).unwrap();
    for url in ["ofi+tcp://127.0.0.1", "ofi+shm://"] {
        let mut context = open(url, &[("max-peers", "2")]).unwrap().context(0).unwrap();
        let own = || open(url, &[]).unwrap().context(0).unwrap();
        let mut crowd: Vec<_> = (0..CROWD).map(|_| connect(context.address())).collect();
        let mut friends = [own(), own()];
        for friend in &mut friends {
            greet(friend, &mut context);
        }
        // Those that really are too many are told so.
        let mut third = own();
        let there = third.lookup(context.address()).unwrap();
        third.post(1, Op::SendUnexpected { to: there, message: vec![0; 9].into() }).unwrap();
        let is_told = |it: &Completion| match it {
            Completion::Gone { reason, .. } => reason.to_string().contains("max-peers"),
            _ => false,
        };
        until(&mut [&mut third, &mut context], |seen| seen[0].iter().any(is_told));
        let patient = Instant::now() + PATIENCE;
        until(&mut [&mut context], |_| Instant::now() > patient);
        crowd.push(connect(context.address()));
        assert!(!answered(&mut context, crowd[0].as_mut()), "{url}: the oldest one is still there");
        assert!(friends.iter_mut().all(|it| !it.connected().is_empty()), "{url}");
    }
}

/// Set in a process of another user: the address that it is to call.
const CALLS: &str = "HG_TEST_CALLS";
const NOBODY: u32 = 65_534;

/// Becomes another user, calls by hand and by the plugin, and says what came of it.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_of_another_user() {
    let Ok(address) = env::var(CALLS) else { return };
    let address = Address::new(&address).unwrap();
    let nobody = Uid::from_raw(NOBODY);
    setresuid(nobody, nobody, nobody).unwrap();
    let name = format!("hydrargyrum-ofi/{}", address.rest());
    let mut line =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    // Perhaps it has been refused already.
    let _whatever = line.write_all(&hello(&address, 1));
    let mut answer = Vec::new();
    let _cut = line.read_to_end(&mut answer);
    let by_hand = String::from_utf8_lossy(answer.get(5..).unwrap_or_default()).into_owned();
    let mut own = open("ofi+shm://", &[]).unwrap().context(0).unwrap();
    let there = own.lookup(&address).unwrap();
    own.post(1, Op::SendUnexpected { to: there, message: vec![0; 9].into() }).unwrap();
    let mut why = String::new();
    until(&mut [&mut own], |seen| {
        let gone = seen[0].iter().find_map(|it| match it {
            Completion::Gone { reason, .. } => Some(reason.to_string()),
            _ => None,
        });
        why = gone.unwrap_or_default();
        !why.is_empty()
    });
    println!("{MARK}{by_hand} | {why}");
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn a_process_of_another_user_is_refused_over_shm_in_words_at_both_ends() {
    const NAME: &str = "a_process_of_another_user_is_refused_over_shm_in_words_at_both_ends";
    if !geteuid().is_root() {
        eprintln!("SKIPPED: {NAME}: only root can start a process of another user");
        return;
    }
    let domain = open("ofi+shm://", &[]).unwrap();
    let (mut context, mut friend) = (domain.context(0).unwrap(), domain.context(1).unwrap());
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", "strangers::a_process_of_another_user", "--nocapture"])
        .env(CALLS, context.address().as_str())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until(&mut [&mut context], |_| process.try_wait().unwrap().is_some());
    let said = said(&process.wait_with_output().unwrap());
    let (by_hand, by_the_plugin) = said.split_once(" | ").unwrap();
    assert!(by_hand.contains("user 65534's") && by_hand.contains("allow-uid"), "{said}");
    assert!(by_the_plugin.contains("user 0's") && by_the_plugin.contains("allow-uid"), "{said}");
    greet(&mut friend, &mut context);
}

#[test]
fn floods_of_forged_claims_and_refused_transfers_cost_their_sender_alone() {
    alone(|| {
        ["ofi+tcp://127.0.0.1", "ofi+shm://"].into_iter().for_each(floods);
    });
}

fn floods(url: &str) {
    const ROUNDS: usize = 60;
    const EACH: usize = 60;
    const LEN: usize = 100_000;
    let (own, others) = (open(url, &[]).unwrap(), open(url, &[]).unwrap());
    let mut victim = own.context(0).unwrap();
    let (mut friend, mut bad) = (others.context(0).unwrap(), others.context(1).unwrap());
    [&mut friend, &mut bad].into_iter().for_each(|it| greet(it, &mut victim));
    let there = bad.lookup(victim.address()).unwrap();
    let readable = own.register(vec![0x55; LEN].into(), Rights::READ).unwrap();
    let good = readable.descriptor().opaque().to_vec();
    let stale = own.register(vec![0; LEN].into(), Rights::all()).unwrap().descriptor().clone();
    let near = others.register(vec![0; LEN].into(), Rights::all()).unwrap();
    let (mut early, mut handed_out) = ((0, 0), 0);
    for round in 0..ROUNDS {
        // Short ones travel in frames, long ones are lent.
        let len = if round % 2 == 0 { 100 } else { LEN as u64 };
        for number in 0..EACH {
            let (is_put, kind) = (number % 2 == 0, number % 3);
            let mut opaque = good.clone();
            // Of domain, key or token. That memory is a device's (the last bit of the key) decides how it travels.
            let (byte, bit) = ((round * EACH + number) % good.len(), round % 7);
            opaque[byte] ^= u8::from(kind == 1) << bit;
            let forged = Descriptor::new(LEN as u64, Rights::all(), &opaque);
            let remote = if kind == 0 { &stale } else { &forged }.slice(0, len).unwrap();
            let local = near.slice(0, len).unwrap();
            // What is told to everybody may be read, and not be written.
            let op = match is_put || kind == 2 {
                true => Op::Put { to: there, local, remote },
                false => Op::Get { from: there, local, remote },
            };
            bad.post(2, op).unwrap();
        }
        let mut ended = 0;
        until(&mut [&mut bad, &mut victim], |seen| {
            handed_out += seen[1].len();
            let done = seen[0].iter().filter_map(|it| match it {
                Completion::Done(done) => Some(done),
                _ => None,
            });
            let named = done.map(|it| match &it.result.as_ref().unwrap_err().error {
                Error::StaleDescriptor | Error::Denied { .. } => 1,
                other => panic!("{url}: {other}"),
            });
            ended = named.sum();
            ended == EACH
        });
        greet(&mut friend, &mut victim);
        if round == ROUNDS / 2 {
            early = (resident_kib(), descriptors());
        }
    }
    assert_eq!(handed_out, 0, "{url}: the victim hears nothing of them");
    let grown = resident_kib().saturating_sub(early.0);
    assert!(grown < 1024, "{url}: {grown} KiB more");
    assert_eq!(descriptors(), early.1, "{url}");
    let memory = readable.unregister().unwrap().into_vec().unwrap();
    assert!(memory.iter().all(|byte| *byte == 0x55), "{url}: it was written to");
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory of this process in KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const PEERS: u32 = 10_000;
/// What memory may grow by in their second half: 128 lost bytes of each would be more. libfabric's shm also takes no
/// more than 256 addresses at a time.
const GROWTH_KIB: u64 = 600;

/// Peers that are there at a time: so many that a table would be seen to grow, and always as many, however fast or
/// loaded a machine is, since those that have hung up keep their places for 20 ms.
const AT_A_TIME: u32 = 50;

/// A peer comes, is welcome and goes. How many have been reported gone meanwhile.
fn come_and_go(context: &mut Box<dyn Context>, number: u32) -> u32 {
    let mut line = connect(context.address());
    line.write_all(&hello(context.address(), number)).unwrap();
    let (mut bytes, mut gone) = ([0; 1024], 0);
    until(&mut [context], |seen| {
        gone = count_gone(&seen[0]);
        // The kind of a record stands behind its length: 2 is a welcome.
        match line.read(&mut bytes) {
            Ok(len) => assert!(len > 4 && bytes[4] == 2, "peer {number} is not welcome: {bytes:?}"),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "peer {number}: {error}");
                return false;
            }
        }
        true
    });
    gone
}

fn count_gone(seen: &[Completion]) -> u32 {
    let gone = seen.iter().filter(|it| matches!(it, Completion::Gone { .. })).count();
    u32::try_from(gone).unwrap()
}

fn ten_thousand_come_and_go(url: &str) {
    let domain = open(url, &[]).unwrap();
    let mut context = domain.context(0).unwrap();
    let mut early = 0;
    for batch in 0..PEERS / AT_A_TIME {
        let numbers = batch * AT_A_TIME..(batch + 1) * AT_A_TIME;
        let gone: u32 = numbers.map(|number| come_and_go(&mut context, number)).sum();
        until(&mut [&mut context], |seen| gone + count_gone(&seen[0]) == AT_A_TIME);
        if batch == PEERS / AT_A_TIME / 2 {
            early = resident_kib();
        }
    }
    // The last ones have gone, too.
    let mut done = Vec::new();
    while context
        .next_deadline()
        .is_some_and(|when| when > std::time::Instant::now() - Duration::from_secs(5))
    {
        context.progress(std::time::Instant::now(), &mut done).unwrap();
    }
    let grown = resident_kib().saturating_sub(early);
    assert!(grown <= GROWTH_KIB, "{url}: {grown} KiB more after {PEERS} peers");
    let mut friend = domain.context(1).unwrap();
    greet(&mut friend, &mut context);
}

#[test]
fn ten_thousand_peers_come_and_go_over_tcp_with_flat_memory() {
    alone(|| {
        ten_thousand_come_and_go("ofi+tcp://127.0.0.1");
    });
}

#[test]
fn ten_thousand_peers_come_and_go_over_shm_with_flat_memory() {
    alone(|| {
        ten_thousand_come_and_go("ofi+shm://");
    });
}
