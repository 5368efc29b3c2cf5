//! A peer that makes its doorbell block, and fills it, keeps nobody; and is woken.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Peer, Plugin as _, QUIET};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    unistd::{read, write},
};
use watchdog::{LIMIT, Watchdog, in_time};

#[path = "common/denied.rs"]
mod denied;

use denied::deny;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// All eventfds of this process.
fn eventfds() -> BTreeSet<RawFd> {
    let name = |number: &RawFd| std::fs::read_link(format!("/proc/self/fd/{number}"));
    let is_eventfd =
        |number: &RawFd| name(number).is_ok_and(|it| it.as_os_str() == "anon_inode:[eventfd]");
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse().unwrap()
    };
    entries.map(number).filter(is_eventfd).collect()
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

#[test]
fn a_doorbell_that_blocks_and_is_full_is_rung_all_the_same() {
    is_rung_all_the_same();
}

#[test]
fn so_it_is_where_the_system_has_no_asynchronous_operations_left() {
    deny_asynchronous_operations();
    is_rung_all_the_same();
}

#[test]
fn a_sleeper_whom_nothing_could_wake_is_woken_by_the_next_message() {
    deny_asynchronous_operations();
    let _watchdog = Watchdog::start();
    let (mut one, mut other) = (open(), open());
    let (to, start) = connect(one.as_mut(), other.as_mut());
    while !other.may_sleep() {
        assert_eq!(round(other.as_mut()), 0);
    }
    std::thread::scope(|scope| {
        let one = one.as_mut();
        scope.spawn(move || {
            deny(&[libc::SYS_sendmsg], Errno::ENOBUFS);
            post(one, to);
        });
    });
    other.waiter().wait(Some(Duration::ZERO)).unwrap();
    post(one.as_mut(), to);
    let mut came = 0;
    while came < 2 {
        other.waiter().wait(Some(LIMIT)).unwrap();
        came += round(other.as_mut());
        in_time!(start, "only {came} came");
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
