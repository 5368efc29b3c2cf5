//! A peer that makes its doorbell block, and fills it, keeps nobody; and is woken.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::IoSlice,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Peer, Plugin as _, QUIET};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socketpair},
    unistd::{read, write},
};
use watchdog::{LIMIT, Watchdog, alone, in_time};

#[path = "common/denied.rs"]
mod denied;
#[path = "common/eventfds.rs"]
mod eventfds;

use denied::deny;
use eventfds::eventfds;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// The next write to it waits for a read that never comes.
fn fill(number: RawFd) {
    #[expect(unsafe_code, reason = "a descriptor of the transport's, which stays open")]
    // SAFETY:
    // - open: it was found among this process's descriptors, and its connection lives to the end of the test.
    let eventfd = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(eventfd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let _empty_already = read(eventfd, &mut [0; 8]);
    assert_eq!(write(eventfd, &(u64::MAX - 1).to_ne_bytes()), Ok(8), "{}", eventfd.as_raw_fd());
    fcntl(eventfd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// Requests that one round has found.
fn round(context: &mut dyn Context) -> usize {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).unwrap();
    done.iter().filter(|it| matches!(it, Completion::Unexpected { .. })).count()
}

/// Refuses them to this thread from now on, as where they are used up.
fn deny_asynchronous_operations() {
    deny(&[libc::SYS_io_setup, libc::SYS_io_submit], Errno::EAGAIN);
    let mut queue = 0_usize;
    #[expect(unsafe_code, reason = "io_setup(2), for which no crate of ours has a safe call")]
    // SAFETY:
    // - `queue` is a word that holds 0, as is asked for.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, &raw mut queue) };
    assert_eq!(Errno::result(made), Err(Errno::EAGAIN));
}

/// Does something in a thread of its own, to which packets are refused, too.
fn without_packets(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            deny(&[libc::SYS_sendmsg], Errno::ENOBUFS);
            let flags = SockFlag::SOCK_CLOEXEC;
            let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
            let (bytes, none) = ([IoSlice::new(b"x")], MsgFlags::empty());
            let sent = sendmsg::<UnixAddr>(pair.0.as_raw_fd(), &bytes, &[], none, None);
            assert_eq!(sent, Err(Errno::ENOBUFS));
            act();
        });
    });
}

#[test]
fn a_doorbell_that_blocks_and_is_full_is_rung_all_the_same() {
    alone(is_rung_all_the_same);
}

#[test]
fn so_it_is_where_the_system_has_no_asynchronous_operations_left() {
    alone(|| {
        deny_asynchronous_operations();
        is_rung_all_the_same();
    });
}

#[test]
fn a_sleeper_whom_nothing_could_wake_is_woken_once_the_system_lets_him_be() {
    alone(|| {
        deny_asynchronous_operations();
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (open(), open());
        let (to, start) = connect(one.as_mut(), other.as_mut());
        falls_asleep(other.as_mut());
        without_packets(|| {
            post(one.as_mut(), to);
            assert!(!one.may_sleep(), "nobody would ring again");
        });
        other.waiter().wait(Some(Duration::ZERO)).unwrap();
        while round(other.as_mut()) == 0 {
            in_time!(start, "nothing came");
            round(one.as_mut());
            other.waiter().wait(Some(Duration::ZERO)).unwrap();
        }
    });
}

#[test]
fn so_is_a_sender_who_sleeps_for_want_of_space() {
    alone(|| {
        deny_asynchronous_operations();
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (open(), open());
        let (to, start) = connect(one.as_mut(), other.as_mut());
        (0..MORE_THAN_A_RING).for_each(|_| post(one.as_mut(), to));
        falls_asleep(one.as_mut());
        let mut came = 0;
        without_packets(|| {
            (0..ROUNDS).for_each(|_| came += round(other.as_mut()));
        });
        assert!((1..MORE_THAN_A_RING).contains(&came), "{came}");
        while came < MORE_THAN_A_RING {
            came += round(other.as_mut());
            one.waiter().wait(Some(Duration::ZERO)).unwrap();
            round(one.as_mut());
            in_time!(start, "only {came} came");
        }
    });
}

#[test]
fn where_the_system_does_not_say_what_a_descriptor_is_nobody_is_blamed() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let (mut one, mut other) = (open(), open());
        deny(&[libc::SYS_readlink, libc::SYS_readlinkat], Errno::EACCES);
        let (to, start) = (one.lookup(other.address()).unwrap(), Instant::now());
        post(one.as_mut(), to);
        let mut done = Vec::new();
        while !done.iter().any(|it| matches!(it, Completion::HungUp { .. })) {
            in_time!(start, "it is connected");
            one.progress(Instant::now(), &mut done).unwrap();
            other.progress(Instant::now(), &mut Vec::new()).unwrap();
        }
        let said = format!("{done:?}");
        assert!(said.contains("readlink") && !said.contains("broke the protocol"), "{said}");
    });
}

/// Requests that a ring of 64 does not hold.
const MORE_THAN_A_RING: usize = 100;
/// In which all of a ring is taken, and that is said.
const ROUNDS: u32 = 1000;

fn falls_asleep(context: &mut dyn Context) {
    let start = Instant::now();
    while !context.may_sleep() {
        assert_eq!(round(context), 0);
        in_time!(start, "it does not sleep");
    }
}

fn post(from: &mut dyn Context, to: Peer) {
    from.post(QUIET, Op::SendUnexpected { to, message: Message::copied(b"request") }).unwrap();
}

/// One request gets through.
fn connect(one: &mut dyn Context, other: &mut dyn Context) -> (Peer, Instant) {
    let (to, start) = (one.lookup(other.address()).unwrap(), Instant::now());
    post(one, to);
    while round(other) == 0 {
        round(one);
        in_time!(start, "no connection");
    }
    (to, start)
}

fn is_rung_all_the_same() {
    let _watchdog = Watchdog::start();
    let (mut one, mut other) = (open(), open());
    let before = eventfds();
    let (to, start) = connect(one.as_mut(), other.as_mut());
    let bells: Vec<RawFd> = eventfds().difference(&before).copied().collect();
    assert_eq!(bells.len(), 4, "that of either side, once on each");
    for _ in 0..3 {
        bells.iter().copied().for_each(fill);
        // What filling them told is heard before the sleep.
        other.waiter().wait(Some(Duration::ZERO)).unwrap();
        while !other.may_sleep() {
            assert_eq!(round(other.as_mut()), 0);
        }
        post(one.as_mut(), to);
        let mut came = 0;
        while came == 0 {
            other.waiter().wait(Some(LIMIT)).unwrap();
            came = round(other.as_mut());
            in_time!(start, "nothing came");
        }
    }
}
