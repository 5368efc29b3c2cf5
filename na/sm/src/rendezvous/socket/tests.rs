//! Sockets: passing of descriptors, and what happens at the limits.

use std::{process::Command, sync::atomic::AtomicU64};

use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::socketpair,
    },
    unistd::getpid,
};

use super::*;
use crate::{
    os::{
        event::{Doorbell, PeerBell},
        mapping::{Access, Mapping, TABLE_SEALS},
    },
    rendezvous::packet::PACKET_MAX,
};

impl Socket {
    /// Both ends of a connection of this process with itself.
    pub(crate) fn pair() -> Result<(Self, Self), Error> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
            .map_err(|e| os_error("socketpair", e))?;
        Ok((one.into(), other.into()))
    }
}

fn listening() -> (Name, Listener) {
    let name = Name::generate().unwrap();
    let listener = Listener::bind(&name, 0).unwrap();
    (name, listener)
}

fn greeting(socket: &Socket) -> Packet {
    let mut buffer = [0; PACKET_MAX];
    match socket.recv(&mut buffer).unwrap() {
        Received::Message { len, .. } => Packet::decode(&buffer[..len]).unwrap(),
        other => panic!("a greeting was sent, not {other:?}"),
    }
}

#[test]
fn a_connection_carries_packets_both_ways_and_tells_of_its_end() {
    let (name, mut listener) = listening();
    assert!(listener.accept().unwrap().is_none());
    let origin = Socket::connect(&name, 0).unwrap();
    let target = listener.accept().unwrap().unwrap();
    let mut buffer = [0; 16];
    assert!(matches!(target.recv(&mut buffer).unwrap(), Received::Nothing));
    assert_eq!(origin.send(b"ping", &[]).unwrap(), Sent::Done);
    assert!(matches!(target.recv(&mut buffer).unwrap(), Received::Message { len: 4, .. }));
    assert_eq!(&buffer[..4], b"ping");
    drop(target);
    assert!(matches!(origin.recv(&mut buffer).unwrap(), Received::Closed));
    assert_eq!(origin.send(b"x", &[]).unwrap(), Sent::Closed);
}

#[test]
fn both_sides_learn_who_the_other_is() {
    let (name, mut listener) = listening();
    let origin = Socket::connect(&name, 0).unwrap();
    let target = listener.accept().unwrap().unwrap();
    let me = Credentials { pid: getpid().as_raw(), uid: nix::unistd::geteuid().as_raw() };
    assert_eq!(origin.peer_credentials().unwrap(), me);
    assert_eq!(target.peer_credentials().unwrap(), me);
}

#[test]
fn a_socket_that_was_handed_in_is_taken_if_it_is_the_right_one() {
    let name = Name::generate().unwrap();
    let made = |sort, name: &Name| {
        let made = socket(AddressFamily::Unix, sort, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(made.as_raw_fd(), &abstract_address(name, 0).unwrap()).unwrap();
        made
    };
    let other = made(SockType::SeqPacket, &Name::generate().unwrap());
    let stream = made(SockType::Stream, &name);
    for wrong in [999_999, other.as_raw_fd(), stream.as_raw_fd(), std::io::stdin().as_raw_fd()] {
        assert!(matches!(Listener::adopt(&name, wrong), Err(Error::BadSetting { .. })), "{wrong}");
    }
    drop(stream);
    let given = made(SockType::SeqPacket, &name);
    listen(&given, BACKLOG).unwrap();
    // It came before, and waits.
    let origin = Socket::connect(&name, 0).unwrap();
    let mut listener = Listener::adopt(&name, given.as_raw_fd()).unwrap();
    let target = listener.accept().unwrap().unwrap();
    assert_eq!(origin.send(b"ping", &[]).unwrap(), Sent::Done);
    assert!(matches!(target.recv(&mut [0; 16]).unwrap(), Received::Message { len: 4, .. }));
    assert!(listener.accept().unwrap().is_none(), "it does not block");
    drop(listener);
    assert!(Socket::connect(&name, 0).is_ok(), "whoever has made it keeps it");
}

#[test]
fn a_name_in_use_is_refused_and_free_again_after_its_listener_is_gone() {
    let (name, listener) = listening();
    assert!(matches!(Listener::bind(&name, 0), Err(Error::AddressInUse(_))));
    Listener::bind(&name, 1).unwrap();
    drop(listener);
    Listener::bind(&name, 0).unwrap();
}

#[test]
fn a_name_that_nobody_listens_at_is_unreachable() {
    let refused = Socket::connect(&Name::generate().unwrap(), 0);
    assert!(matches!(refused, Err(Error::PeerGone(GoneReason::Unreachable(_)))), "{refused:?}");
}

#[test]
fn memory_and_a_doorbell_arrive_and_work() {
    let (one, other) = Socket::pair().unwrap();
    let (mine, memory) = Mapping::create(c"test", 4096, TABLE_SEALS, 0).unwrap();
    let bell = Doorbell::new().unwrap();
    one.send(b"m", &[memory.as_fd(), bell.fd()]).unwrap();
    let mut buffer = [0; 8];
    let Received::Message { fds: Ok(mut fds), .. } = other.recv(&mut buffer).unwrap() else {
        panic!("a packet was sent")
    };
    assert!(PeerBell::from_fd(fds.pop().unwrap()).unwrap().ring());
    let theirs = Mapping::open(&fds.pop().unwrap(), 4096, TABLE_SEALS, Access::Read).unwrap();
    mine.view::<AtomicU64>(8).store(5, std::sync::atomic::Ordering::Release);
    assert_eq!(theirs.view::<AtomicU64>(8).load(std::sync::atomic::Ordering::Acquire), 5);
    let count = nix::unistd::read(bell.fd(), &mut buffer).unwrap();
    assert_eq!((count, u64::from_ne_bytes(buffer)), (8, 1), "the bell that was sent has rung");
}

#[test]
fn what_is_wrong_about_packets_is_told_and_eight_descriptors_are_taken() {
    let (bell, null) = (Doorbell::new().unwrap(), std::fs::File::open("/dev/null").unwrap());
    let too_many = [bell.fd(); PACKET_FDS_MAX + 2];
    let wrong: [(&[u8], &[BorrowedFd<'_>], &str); 3] = [
        (b"x", &too_many, "more descriptors"),
        (&[0; 9], &[bell.fd()], "more than 8 bytes"),
        (b"x", &[bell.fd(), null.as_fd()], "neither memory nor an eventfd"),
    ];
    for (bytes, fds, expected) in wrong {
        let (one, other) = Socket::pair().unwrap();
        one.send(bytes, fds).unwrap();
        let why = other.recv(&mut [0; 8]).unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
    }
    let (one, other) = Socket::pair().unwrap();
    one.send(b"x", &[bell.fd(); PACKET_FDS_MAX]).unwrap();
    let received = other.recv(&mut [0; 8]).unwrap();
    assert!(
        matches!(&received, Received::Message { fds: Ok(fds), .. } if fds.len() == 8),
        "{received:?}"
    );
    assert!(matches!(other.recv(&mut [0; 8]).unwrap(), Received::Nothing), "it was taken");
}

#[test]
fn a_refusal_is_read_although_the_peer_closed_before_it_read() {
    let (name, mut listener) = listening();
    let origin = Socket::connect(&name, 0).unwrap();
    origin.send(b"hello", &[]).unwrap();
    let target = listener.accept().unwrap().unwrap();
    target.send(&Packet::Refuse("because".to_owned()).encode(), &[]).unwrap();
    drop(target);
    assert_eq!(greeting(&origin), Packet::Refuse("because".to_owned()));
    assert!(matches!(origin.recv(&mut [0; 8]).unwrap(), Received::Closed));
}

/// Runs a test of this file again, in a process of its own whose limits it may change; true in there.
fn in_own_process(test: &str) -> bool {
    const MARK: &str = "HG_TEST_IN_OWN_PROCESS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let path = format!("rendezvous::socket::tests::{test}");
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", &path, "--nocapture"]).env(MARK, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Lowers the limit and opens sockets until it is reached.
fn use_up_descriptors() -> Vec<OwnedFd> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 32, hard).unwrap();
    std::iter::from_fn(|| new_socket().ok()).take(64).collect()
}

#[test]
fn at_the_limit_a_peer_is_refused_with_a_sentence_and_a_later_one_is_not() {
    if !in_own_process("at_the_limit_a_peer_is_refused_with_a_sentence_and_a_later_one_is_not") {
        return;
    }
    let (name, mut listener) = listening();
    let waiting = [(); 5].map(|()| Socket::connect(&name, 0).unwrap());
    let bell = Doorbell::new().unwrap();
    waiting.iter().for_each(|it| _ = it.send(b"greeting", &[bell.fd(); 3]).unwrap());
    let filler = use_up_descriptors();
    assert!(filler.len() < 64, "the limit was reached");
    assert!(listener.accept().unwrap().is_none());
    for origin in &waiting {
        let Packet::Refuse(sentence) = greeting(origin) else { panic!("refused") };
        assert!(sentence.contains("RLIMIT_NOFILE is 32"), "{sentence}");
        assert!(matches!(origin.recv(&mut [0; 8]).unwrap(), Received::Closed));
    }
    drop(filler);
    let _late = Socket::connect(&name, 0).unwrap();
    assert!(listener.accept().unwrap().is_some(), "the listener has survived");
}

#[test]
fn descriptors_lost_at_the_limit_are_an_error_that_names_it() {
    if !in_own_process("descriptors_lost_at_the_limit_are_an_error_that_names_it") {
        return;
    }
    let (one, other) = Socket::pair().unwrap();
    let bell = Doorbell::new().unwrap();
    let mut filler = use_up_descriptors();
    one.send(b"x", &[bell.fd(); 4]).unwrap();
    filler.truncate(filler.len() - 2);
    let mut buffer = [0; 8];
    let refused = other.recv(&mut buffer);
    let Ok(Received::Message { len: 1, fds: Err(Error::Limit { limit: 32, .. }) }) = refused else {
        panic!("{refused:?}")
    };
    // Those that did arrive are closed: both places are free again.
    assert!(
        new_socket().is_ok_and(|first| new_socket().map(|second| drop((first, second))).is_ok())
    );
}
