//! The pre-shared key.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use hg_na::{Completion, Done, Error, GoneReason, Memory, Op, Peer, Region, Rights, Token};
use watchdog::in_time;

use crate::{
    end::{End, LOOPBACK, Server, address, arrived, ended, gone},
    log::Log,
};

/// A file in a folder for temporary ones; removed in the end.
pub(crate) struct KeyFile(PathBuf);

impl KeyFile {
    pub(crate) fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hg-tcp-{name}-{}", std::process::id()));
        let mut open = std::fs::OpenOptions::new();
        let mut file =
            open.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What each side learns of an attempt: the one that connects, and the log of the other.
fn attempt(target: &[(&str, &str)], origin: &[(&str, &str)]) -> (String, String) {
    let (mut target, mut origin) = (End::open(LOOPBACK, target), End::open(LOOPBACK, origin));
    let peer = origin.lookup(&target.text());
    origin.send(1, peer, b"secret");
    let log = Log::default();
    let start = std::time::Instant::now();
    let reason = loop {
        origin.round();
        tracing::subscriber::with_default(log.clone(), || target.round());
        if let Some((_, reason)) = origin.take(gone) {
            break reason;
        }
        in_time!(start, "{:?}", origin.seen);
    };
    assert!(target.take(arrived).is_none(), "nothing came through");
    assert!(matches!(reason, GoneReason::Refused(_)), "{reason}");
    assert!(origin.take(ended(1)).unwrap().is_err());
    let logged = log.text();
    (reason.to_string(), logged)
}

#[test]
fn with_the_same_key_two_ends_understand_each_other() {
    let key = KeyFile::new("same", &format!("{}\n", "c3".repeat(32)));
    let settings = [("key-file", key.path())];
    let server = Server::start(LOOPBACK, &settings);
    let mut end = End::open(LOOPBACK, &settings);
    let peer = end.lookup(&server.address);
    for (tag, len) in (0..).zip([0, 1, 65_000, 66_000, 200_000]) {
        let bytes = vec![5; len];
        assert_eq!(end.call(peer, tag, &bytes).unwrap(), bytes);
    }
}

#[test]
fn a_wrong_key_is_a_clear_error_on_both_sides() {
    let (one, other) =
        (KeyFile::new("one", &"01".repeat(32)), KeyFile::new("other", &"02".repeat(32)));
    let (origin, target) = attempt(&[("key-file", one.path())], &[("key-file", other.path())]);
    for said in [origin, target] {
        assert!(said.contains("the keys of the two ends differ"), "{said}");
    }
}

#[test]
fn a_key_on_one_side_only_is_a_clear_error_on_both_sides() {
    let key = KeyFile::new("lone", &"03".repeat(32));
    let with = [("key-file", key.path())];
    let (origin, target) = attempt(&with, &[]);
    for said in [origin, target] {
        assert!(said.contains("only the end that is connected to has a key"), "{said}");
    }
    let (origin, target) = attempt(&[], &with);
    for said in [origin, target] {
        assert!(said.contains("only the end that connects has a key"), "{said}");
    }
}

#[test]
fn a_key_that_is_none_is_refused_without_being_shown() {
    let open = |name: &str, value: &str| match End::try_open(LOOPBACK, &[(name, value)]) {
        Err(Error::BadSetting { why, .. }) => why,
        other => panic!("{:?}", other.map(|end| end.text())),
    };
    let (short, long) = ("ab".repeat(31), "ab".repeat(400));
    for content in [&short, &long, &"xy".repeat(32), ""] {
        let file = KeyFile::new("bad", content);
        let why = open("key-file", file.path());
        assert!(why.contains("64 hexadecimal digits") && !why.contains("abab"), "{why}");
    }
    assert!(open("key-file", "/nowhere/at/all").contains("cannot be read"));
    assert!(open("key-file", "/tmp").contains("is no file"));
    assert!(open("key-env", "HG_TCP_TEST_UNSET").contains("HG_TCP_TEST_UNSET is not set"));
    let given = open("key", &"ab".repeat(32));
    assert!(given.contains("key-file") && !given.contains("abab"), "{given}");
    let pipe = std::env::temp_dir().join(format!("hg-tcp-pipe-{}", std::process::id()));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let why = open("key-file", pipe.to_str().unwrap());
    std::fs::remove_file(&pipe).unwrap();
    assert!(why.contains("is no file"), "{why}");
}

#[test]
fn a_key_can_come_from_the_environment() {
    // The one variable that a test can rely on without changing its own process: PATH is no key.
    let refused = End::try_open(LOOPBACK, &[("key-env", "PATH")]).err().unwrap();
    let Error::BadSetting { name, why } = refused else { panic!("{refused}") };
    assert!(name == "key-env" && why.contains("64 hexadecimal digits"), "{why}");
}

/// Passes bytes on in both directions, changed by `change`; gives what it has seen from the dialler.
fn relay(
    to: String,
    mut change: impl FnMut(&mut [u8], usize) + Send + 'static,
) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("tcp://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(crate::raw::place(&to)).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Both);
        });
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = near.read(&mut buffer) {
            let mut seen = kept.lock().unwrap();
            let before = seen.len();
            seen.extend(&buffer[..len]);
            drop(seen);
            change(&mut buffer[..len], before);
            if far.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(Shutdown::Both);
    });
    (at, seen)
}

#[test]
fn what_travels_cannot_be_read_on_the_way() {
    let key = KeyFile::new("read", &"04".repeat(32));
    let settings = [("key-file", key.path())];
    let server = Server::start(LOOPBACK, &settings);
    let (at, seen) = relay(server.address.clone(), |_, _| {});
    let mut end = End::open(LOOPBACK, &settings);
    let peer = end.context.lookup(&address(&at)).unwrap();
    let secret = b"the bishop moves at dawn";
    assert_eq!(end.call(peer, 1, secret).unwrap(), secret);
    let seen = seen.lock().unwrap();
    let shows = |bytes: &[u8]| seen.windows(bytes.len()).any(|window| window == bytes);
    assert!(shows(b"HG-TCP") && !shows(secret) && !shows(end.text().as_bytes()));
}

#[test]
fn what_was_recorded_is_read_by_nobody_who_has_the_key_and_of_no_use_when_it_is_said_again() {
    let key = KeyFile::new("again", &"06".repeat(32));
    let settings = [("key-file", key.path())];
    let server = Server::start(LOOPBACK, &settings);
    let (at, seen) = relay(server.address.clone(), |_, _| {});
    let mut end = End::open(LOOPBACK, &settings);
    let peer = end.context.lookup(&address(&at)).unwrap();
    end.call(peer, 1, b"once").unwrap();
    let recorded = seen.lock().unwrap().clone();
    let mut again = crate::raw::connect(&server.address);
    again.write_all(&recorded).unwrap();
    // The target has the key, and is told the same: it answers with a new one of its own, and can read no more.
    let answer = crate::raw::read_to_the_end(&mut again);
    assert_eq!(answer[7], 6, "the second message of the key exchange: {answer:?}");
    let mut target = server.stop();
    assert_eq!(target.context.connected().len(), 1, "the one who said it first");
}

#[test]
fn who_says_the_first_word_again_and_announces_a_long_record_costs_no_more_than_a_stranger() {
    let key = KeyFile::new("long", &"07".repeat(32));
    let settings = [("key-file", key.path()), ("connect-timeout-ms", "600000")];
    let server = Server::start(LOOPBACK, &settings);
    let (at, seen) = relay(server.address.clone(), |_, _| {});
    let mut end = End::open(LOOPBACK, &settings);
    let peer = end.context.lookup(&address(&at)).unwrap();
    end.call(peer, 1, b"once").unwrap();
    let recorded = seen.lock().unwrap().clone();
    let mut first = recorded[..10 + usize::from(recorded[8])].to_vec();
    first.extend(u16::MAX.to_le_bytes());
    let mut again = crate::raw::connect(&server.address);
    again.write_all(&first).unwrap();
    let answer = crate::raw::read_to_the_end(&mut again);
    assert_eq!(answer[7], 6, "the second message of the key exchange: {answer:?}");
}

#[test]
fn what_was_changed_on_the_way_is_not_taken() {
    let key = KeyFile::new("flip", &"05".repeat(32));
    let settings = [("key-file", key.path())];
    for at_byte in [12, 60, 100, 300] {
        let server = Server::start(LOOPBACK, &settings);
        let (at, _) = relay(server.address.clone(), move |bytes, start| {
            if let Some(place) = usize::checked_sub(at_byte, start)
                && let Some(byte) = bytes.get_mut(place)
            {
                *byte ^= 1;
            }
        });
        let mut end = End::open(LOOPBACK, &settings);
        let peer = end.context.lookup(&address(&at)).unwrap();
        assert!(end.call(peer, 1, &[6; 400]).is_err(), "byte {at_byte} was changed");
        let mut target = server.stop();
        target.round();
        assert!(target.take(arrived).is_none(), "byte {at_byte} was changed");
    }
}

/// Bytes of a transfer: several sealed records.
const LEN: usize = 1_000_001;
/// Transfers each way.
const COUNT: usize = 16;

fn finished(completion: &Completion) -> Option<(Token, bool)> {
    match completion {
        Completion::Done(Done { token, result, .. }) => Some((*token, result.is_ok())),
        _ => None,
    }
}

/// Both ends of a connection, and what they have been told.
struct Both {
    ends: [End; 2],
    peers: [Peer; 2],
    told: [Vec<(Token, bool)>; 2],
    came: [usize; 2],
}

impl Both {
    fn connected(settings: &[(&str, &str)]) -> Self {
        let mut ends = [0, 1].map(|_| End::open(LOOPBACK, settings));
        let to = ends[1].text();
        let peer = ends[0].lookup(&to);
        ends[0].send(1, peer, b"connect");
        let start = std::time::Instant::now();
        let back = loop {
            ends.iter_mut().for_each(End::round);
            if let Some((from, _)) = ends[1].take(arrived) {
                break from;
            }
            in_time!(start);
        };
        ends[0].until(ended(1)).unwrap();
        Self { ends, peers: [peer, back], told: Default::default(), came: [0; 2] }
    }

    fn round(&mut self) {
        for (place, end) in self.ends.iter_mut().enumerate() {
            end.round();
            while let Some(told) = end.take(finished) {
                self.told[place].push(told);
            }
            while end.take(arrived).is_some() {
                self.came[place] += 1;
            }
        }
    }

    /// Transfers of the first one's, so many at a time, each with a message both ways behind it; until all is told.
    fn run(&mut self, in_flight: usize, [near, far]: [&Region; 2]) {
        let (start, mut posted) = (std::time::Instant::now(), 0);
        let slot = |number: usize| (number * LEN) as u64;
        while self.told.iter().zip([4, 2]).any(|(told, of)| told.len() < of * COUNT)
            || self.came != [2 * COUNT; 2]
        {
            let is_transfer = |it: &&(Token, bool)| it.0 < 1000;
            let over = self.told[0].iter().filter(is_transfer).count();
            while posted < 2 * COUNT && posted - over < in_flight {
                // By turns, so that words on puts are said between pieces of gets.
                let number = posted / 2 + if posted % 2 == 0 { 0 } else { COUNT };
                let local = near.slice(slot(number), LEN as u64).unwrap();
                let remote = far.descriptor().slice(slot(number), LEN as u64).unwrap();
                let op = match number < COUNT {
                    true => Op::Get { from: self.peers[0], local, remote },
                    false => Op::Put { to: self.peers[0], local, remote },
                };
                self.ends[0].post(posted as u64, op);
                for (end, peer) in self.ends.iter_mut().zip(self.peers) {
                    end.send(1000 + posted as u64, peer, b"behind it");
                }
                posted += 1;
            }
            self.round();
            in_time!(start, "{in_flight} in flight: {:?} {:?}", self.told, self.came);
        }
        self.flush();
    }

    fn flush(&mut self) {
        let (start, mut has_flushed) = (std::time::Instant::now(), [false; 2]);
        while has_flushed != [true; 2] {
            for (end, has_flushed) in self.ends.iter_mut().zip(&mut has_flushed) {
                *has_flushed |= end.context.flush();
            }
            self.round();
            in_time!(start, "a flush does not end");
        }
    }
}

#[test]
fn with_a_key_transfers_of_several_records_and_messages_between_them_are_each_told_once() {
    let key = KeyFile::new("transfers", &"b4".repeat(32));
    for in_flight in [1, COUNT] {
        let mut both = Both::connected(&[("key-file", key.path())]);
        let bytes = |step: usize| -> Vec<u8> {
            (0..2 * COUNT * LEN).map(|at| u8::try_from(at / step % 251).unwrap()).collect()
        };
        let all = [bytes(3), bytes(5)];
        let register = |place: usize| {
            let memory = Memory::from(all[place].clone());
            both.ends[place].domain.register(memory, Rights::all()).unwrap()
        };
        let [near, far] = [register(0), register(1)];
        both.run(in_flight, [&near, &far]);
        for (told, mut tokens) in both.told.iter_mut().zip([(0..32).collect(), Vec::new()]) {
            tokens.extend(1000..1032);
            told.sort_unstable();
            assert_eq!(*told, tokens.into_iter().map(|token| (token, true)).collect::<Vec<_>>());
        }
        let half = COUNT * LEN;
        let near = near.unregister().unwrap().into_vec().unwrap();
        let far = far.unregister().unwrap().into_vec().unwrap();
        assert!(near[..half] == all[1][..half], "what was got");
        assert!(far[half..] == all[0][half..], "what was put");
        assert!(near[half..] == all[0][half..] && far[..half] == all[1][..half], "the rest");
    }
}

#[test]
fn with_a_key_memory_that_is_unregistered_while_it_is_got_costs_nothing_else_its_end() {
    let key = KeyFile::new("word", &"c5".repeat(32));
    let mut both = Both::connected(&[("key-file", key.path())]);
    let memory = |count: usize| Memory::from(vec![7; count * LEN]);
    let owned = both.ends[1].domain.clone();
    let [lost, kept] = [0, 1].map(|_| owned.register(memory(1), Rights::all()).unwrap());
    let near = both.ends[0].domain.register(memory(2 * COUNT), Rights::all()).unwrap();
    for number in 0..2 * COUNT {
        let local = near.slice((number * LEN) as u64, LEN as u64).unwrap();
        let of = if number % 2 == 0 { &lost } else { &kept };
        let remote = of.descriptor().slice(0, LEN as u64).unwrap();
        both.ends[0].post(number as u64, Op::Get { from: both.peers[0], local, remote });
    }
    // Pieces of the owner's own, between which the words on gets whose memory is lost are said.
    let sunk = both.ends[0].domain.register(memory(1), Rights::all()).unwrap();
    for number in 0..COUNT {
        let local = kept.slice(0, LEN as u64).unwrap();
        let remote = sunk.descriptor().slice(0, LEN as u64).unwrap();
        both.ends[1].post(number as u64, Op::Put { to: both.peers[1], local, remote });
    }
    // Until the sockets are full: the other end takes nothing.
    (0..200).for_each(|_| both.ends[1].round());
    drop(lost.unregister().unwrap());
    both.ends[1].send(1000, both.peers[1], b"behind it");
    let start = std::time::Instant::now();
    while both.told[0].len() < 2 * COUNT || both.told[1].len() <= COUNT || both.came[0] == 0 {
        both.round();
        in_time!(start, "{:?}", both.told);
    }
    both.flush();
    both.told.iter_mut().for_each(|told| told.sort_unstable());
    let [of_gets, of_owner] = &both.told;
    assert!(
        (0..)
            .zip(of_gets)
            .all(|(number, (token, is_ok))| { *token == number && (*is_ok || number % 2 == 0) })
    );
    assert!(of_gets.iter().any(|(_, is_ok)| !is_ok), "some were not served yet: {of_gets:?}");
    let all_of_owner: Vec<_> = (0..COUNT as u64).chain([1000]).map(|it| (it, true)).collect();
    assert_eq!((of_gets.len(), of_owner), (2 * COUNT, &all_of_owner));
}
