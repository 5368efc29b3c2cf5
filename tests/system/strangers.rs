//! Peers that break the transport itself: greetings, descriptors, shared memory; and other users.

use std::{
    fs::{self, File, OpenOptions},
    io::{IoSlice, IoSliceMut},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
        unix::fs::FileExt as _,
    },
    time::Duration,
};

use hg::{CallError, Engine, GoneReason, Wait};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{
            AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag,
            SockType, UnixAddr, accept4, bind, connect, listen, recvmsg, sendmsg, socket,
        },
    },
    unistd::{close, ftruncate},
};

use crate::{
    common::{
        Child, Random, Watchdog, Witness, child::say, falls_to, is_root_or_says, process::fds,
        settled,
    },
    roles::{Settings, add, echo},
};

/// The abstract socket behind an address.
fn socket_address(address: &str) -> UnixAddr {
    let name = format!("hydrargyrum/{}", address.strip_prefix("sm://").unwrap());
    UnixAddr::new_abstract(name.as_bytes()).unwrap()
}

fn new_socket() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// Somebody who has connected and not said anything yet.
fn stranger(address: &str) -> OwnedFd {
    let stranger = new_socket();
    connect(stranger.as_raw_fd(), &socket_address(address)).unwrap();
    stranger
}

fn send(stranger: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    let pieces = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    // The other side may have hung up already.
    let _ = sendmsg::<()>(stranger.as_raw_fd(), &pieces, control, flags, None);
}

/// One packet and its descriptors; nothing at the end of the connection.
fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<RawFd>) {
    let mut bytes = [0; 4096];
    let mut space = nix::cmsg_space!([RawFd; 16]);
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let mut look = || {
        recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags)
            .map(|message| (message.bytes, message.cmsgs().unwrap().collect::<Vec<_>>()))
    };
    // Who hung up before it had read everything: that comes once, in front of what it has said (unix(7)).
    let came = match look() {
        Err(Errno::ECONNRESET) => look(),
        other => other,
    };
    let Ok((len, controls)) = came else { return (Vec::new(), Vec::new()) };
    let mut descriptors = Vec::new();
    for control in controls {
        if let ControlMessageOwned::ScmRights(some) = control {
            descriptors.extend(some);
        }
    }
    (bytes[..len].to_vec(), descriptors)
}

/// Waits until the other side has hung up; gives what it said before.
fn last_words(socket: &OwnedFd) -> String {
    let mut words = String::new();
    loop {
        let (bytes, descriptors) = receive(socket);
        descriptors.into_iter().for_each(|descriptor| close(descriptor).unwrap());
        if bytes.is_empty() {
            return words;
        }
        words += &String::from_utf8_lossy(bytes.get(16..).unwrap_or_default());
    }
}

/// What an honest origin says first, taken by a listener that is none.
struct Overheard {
    hello: Vec<u8>,
    descriptors: Vec<RawFd>,
    /// The origin waits at the other end.
    _socket: OwnedFd,
    _engine: Engine,
}

impl Overheard {
    fn hello() -> Self {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let address = format!("sm://trap-{}-{serial}/0", std::process::id());
        let trap = new_socket();
        bind(trap.as_raw_fd(), &socket_address(&address)).unwrap();
        listen(&trap, Backlog::new(1).unwrap()).unwrap();
        let engine = hg::open("sm://").unwrap();
        let peer = engine.lookup(&address).unwrap();
        drop(engine.notify(add, &peer, (1, 2)));
        let socket = accepted(&trap);
        let (hello, descriptors) = receive(&socket);
        assert_eq!(descriptors.len(), 3, "the greeting has changed: so must this test");
        Self { hello, descriptors, _socket: socket, _engine: engine }
    }
}

impl Drop for Overheard {
    fn drop(&mut self) {
        self.descriptors.drain(..).for_each(|descriptor| close(descriptor).unwrap());
    }
}

fn accepted(trap: &OwnedFd) -> OwnedFd {
    use std::os::fd::BorrowedFd;
    let raw = accept4(trap.as_raw_fd(), SockFlag::SOCK_CLOEXEC).unwrap();
    #[expect(unsafe_code, reason = "a descriptor that the kernel has just made")]
    // SAFETY:
    // - open until it is closed below, and nobody else knows it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
    let owned = borrowed.try_clone_to_owned().unwrap();
    close(raw).unwrap();
    owned
}

#[test]
fn strangers_at_the_socket_are_sent_away_and_cost_nothing() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block sm.connect-timeout-ms=300");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    let honest = Overheard::hello();
    let mut random = Random::new(11);
    for round in 0..400 {
        let len = random.size_below(600);
        let mut bytes = random.bytes(len);
        // Half of them begin as a greeting does.
        if round % 2 == 0 {
            let start = random.size_below(honest.hello.len()).min(bytes.len());
            bytes[..start].copy_from_slice(&honest.hello[..start]);
        }
        let count = random.size_below(6).min(honest.descriptors.len());
        let one = stranger(&address);
        send(&one, &bytes, &honest.descriptors[..count]);
        if round % 4 == 0 {
            last_words(&one);
        }
    }
    assert!(falls_to(calm, || fds(target.pid())) <= calm, "strangers keep descriptors open");
    witness.testifies();
}

#[test]
fn strangers_that_say_nothing_are_sent_away_in_the_end() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block sm.connect-timeout-ms=300");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    let silent: Vec<_> = (0..100).map(|_| stranger(&address)).collect();
    silent.iter().for_each(|one| drop(last_words(one)));
    assert!(falls_to(calm, || fds(target.pid())) <= calm, "the silent keep descriptors open");
    witness.testifies();
}

/// A memfd of a size, without any seal.
fn unsealed(len: i64) -> OwnedFd {
    let memory = memfd_create("unsealed", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&memory, len).unwrap();
    memory
}

#[test]
fn greetings_with_wrong_descriptors_are_refused_in_words() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    let honest = Overheard::hello();
    let [segment, table, bell] = honest.descriptors[..] else { unreachable!("counted before") };
    let size = |descriptor: RawFd| {
        let path = format!("/proc/self/fd/{descriptor}");
        i64::try_from(fs::metadata(path).unwrap().len()).unwrap()
    };
    let (loose_segment, loose_table) = (unsealed(size(segment)), unsealed(size(table)));
    let (loose_segment, loose_table) = (loose_segment.as_raw_fd(), loose_table.as_raw_fd());
    let (short, null) = (unsealed(100), File::open("/dev/null").unwrap());
    let (short, null) = (short.as_raw_fd(), null.as_raw_fd());
    let cases = [
        ("none", vec![]),
        ("too few", vec![segment, table]),
        ("too many", vec![segment; 12]),
        ("four", vec![segment, table, bell, bell]),
        ("an unsealed segment", vec![loose_segment, table, bell]),
        ("an unsealed table", vec![segment, loose_table, bell]),
        ("a short segment", vec![short, table, bell]),
        ("a short table", vec![segment, short, bell]),
        ("no memory", vec![null, null, bell]),
        ("no eventfd", vec![segment, table, null]),
        ("memory as eventfd", vec![segment, table, segment]),
        ("another order", vec![table, segment, bell]),
    ];
    for (case, descriptors) in cases {
        let one = stranger(&address);
        send(&one, &honest.hello, &descriptors);
        let words = last_words(&one);
        assert!(words.len() > 10, "{case}: sent away without a word");
    }
    for (at, what) in [(4, "version"), (8, "kind"), (12, "length")] {
        let mut hello = honest.hello.clone();
        hello[at] ^= 0x55;
        let one = stranger(&address);
        send(&one, &hello, &honest.descriptors);
        let words = last_words(&one);
        assert!(words.len() > 10, "another {what}: sent away without a word");
    }
    assert!(falls_to(calm, || fds(target.pid())) <= calm, "strangers keep descriptors open");
    witness.testifies();
}

#[test]
fn an_origin_whose_target_greets_wrongly_is_told_why() {
    let _watchdog = Watchdog::start();
    type Greet = fn(&OwnedFd, &Overheard);
    let greets: [(&str, Greet); 5] = [
        ("hangs up", |_, _| {}),
        ("says nonsense", |socket, _| send(socket, &[0xEE; 80], &[])),
        ("greets as an origin does", |socket, heard| {
            send(socket, &heard.hello, &heard.descriptors);
        }),
        ("welcomes without descriptors", |socket, heard| send(socket, &welcome(heard), &[])),
        ("welcomes with too many", |socket, heard| {
            send(socket, &welcome(heard), &[heard.descriptors[0]; 12]);
        }),
    ];
    for (case, greet) in greets {
        let heard = Overheard::hello();
        let address = format!("sm://liar-{}/0", std::process::id());
        let trap = new_socket();
        bind(trap.as_raw_fd(), &socket_address(&address)).unwrap();
        listen(&trap, Backlog::new(1).unwrap()).unwrap();
        let engine = hg::builder().wait(Wait::Block).open("sm://").unwrap();
        let peer = engine.lookup(&address).unwrap();
        let call = engine.call(add, &peer, (1, 2));
        let socket = accepted(&trap);
        greet(&socket, &heard);
        let (_, descriptors) = receive(&socket);
        descriptors.into_iter().for_each(|descriptor| close(descriptor).unwrap());
        drop(socket);
        let result = call.wait();
        let Err(CallError::PeerGone { reason, .. }) = &result else { panic!("{case}: {result:?}") };
        assert!(!reason.to_string().is_empty());
        drop(trap);
    }
}

/// The same words as a target would say them.
fn welcome(heard: &Overheard) -> Vec<u8> {
    let mut bytes = heard.hello.clone();
    bytes[8] = 2;
    bytes
}

#[test]
fn a_target_that_never_answers_the_greeting_is_given_up() {
    let _watchdog = Watchdog::start();
    let address = format!("sm://mute-{}/0", std::process::id());
    let trap = new_socket();
    bind(trap.as_raw_fd(), &socket_address(&address)).unwrap();
    listen(&trap, Backlog::new(8).unwrap()).unwrap();
    let builder = hg::builder().wait(Wait::Block).setting("connect-timeout-ms", "200");
    let engine = builder.open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    let error = engine.call(add, &peer, (1, 2)).wait().unwrap_err();
    let CallError::PeerGone { reason: GoneReason::TimedOut, .. } = error else { panic!("{error}") };
    let waiting = PollFd::new(trap.as_fd(), PollFlags::POLLIN);
    assert_eq!(poll(&mut [waiting], PollTimeout::ZERO).unwrap(), 1);
}

/// An origin that calls, and meanwhile writes random bytes into everything that it shares. With `gently=yes` into
/// a few places only. Says `broken` once its calls fail.
pub(crate) fn scribbler(settings: &Settings) {
    let engine = settings.builder().open("sm://").expect("an engine");
    let peer = engine.lookup(settings.target()).expect("an address");
    let body = vec![9; 3000];
    engine.call(echo, &peer, (&body,)).wait().expect("the target serves");
    let mut random = Random::new(settings.number("seed").unwrap_or(1));
    let shared = shared_memory();
    assert!(!shared.is_empty(), "rings and arena are mapped for writing");
    let memory = OpenOptions::new().write(true).open("/proc/self/mem").expect("the own memory");
    for round in 0..100 {
        for (begin, len) in &shared {
            let (offset, piece) = if settings.text("gently").is_some() {
                (random.below(*len), 1 + random.size_below(16))
            } else {
                (0, usize::try_from((*len).min(1 << 16)).expect("a small number"))
            };
            let bytes = random.bytes(piece.min(usize::try_from(len - offset).expect("a mapping")));
            // Once the connection is over, the memory is gone.
            let _ = memory.write_at(&bytes, begin + offset);
        }
        // What it says itself goes on: it rings the target.
        drop(engine.notify(add, &peer, (1, 2)));
        drop(engine.notify(echo, &peer, (&body,)));
        drop(engine.call(add, &peer, (round, 2)));
        engine.progress(Duration::ZERO);
    }
    say("broken");
    while crate::common::child::next_command().is_some() {}
}

/// Mappings of this process that others see and that it writes: begin and length.
fn shared_memory() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let of = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        if !rest.starts_with("rw-s") || !rest.contains("memfd") {
            return None;
        }
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(begin)?, number(end)? - number(begin)?))
    };
    maps.lines().filter_map(of).collect()
}

#[test]
fn a_peer_that_overwrites_all_that_it_shares_is_disconnected_and_hurts_nobody() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    for seed in 0..20 {
        let settings = format!("to={address} seed={seed} progress=own");
        let mut scribbler = Child::start("scribbler", &settings);
        assert_eq!(scribbler.hear(), "broken");
        // A connection has four. Of those that claim to be in the middle of a transfer one is kept, to learn
        // when the process ends: this one's, and that of the one before until the next look.
        let left = falls_to(calm + 2, || fds(target.pid()));
        assert!(left <= calm + 2, "seed {seed}: a peer that scribbles is still connected");
        witness.is_served_on();
    }
    witness.testifies();
}

#[test]
fn a_peer_that_overwrites_some_of_what_it_shares_hurts_nobody() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("");
    let witness = Witness::of(&address);
    let calm = settled(|| fds(target.pid()));
    let mut scribblers: Vec<_> = (0..30)
        .map(|seed| {
            let settings = format!("to={address} seed={seed} gently=yes progress=own");
            Child::start("scribbler", &settings)
        })
        .collect();
    for scribbler in &mut scribblers {
        // Its own copy of the library may well have noticed, and given up.
        drop(scribbler.hear_or_end());
        witness.is_served_on();
    }
    drop(scribblers);
    assert!(falls_to(calm, || fds(target.pid())) <= calm);
    witness.testifies();
}

#[test]
fn another_user_is_refused_in_words_unless_both_sides_list_each_other() {
    const NAME: &str = "another_user_is_refused_in_words_unless_both_sides_list_each_other";
    let _watchdog = Watchdog::start();
    if !is_root_or_says(NAME) {
        return;
    }
    let (_target, address) = Child::target("");
    let (_open_target, open) = Child::target("sm.allow-uid=65534");
    let witness = Witness::of(&address);
    let calls = |to: &str, setting: &str| {
        let mut origin = Child::start("origin", &format!("to={to} uid=65534 {setting}"));
        assert_eq!(origin.hear(), "ready");
        origin.ask("call")
    };
    for (to, setting) in [(&address, ""), (&address, "sm.allow-uid=0"), (&open, "")] {
        let words = calls(to, setting);
        assert!(words.contains("65534") && words.contains("allow-uid"), "{words}");
    }
    assert_eq!(calls(&open, "sm.allow-uid=0"), "ok");
    witness.testifies();
}
