//! A peer that makes its doorbell block, and fills it, keeps nobody; and is woken.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Plugin as _, QUIET};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    sys::prctl::set_no_new_privs,
    unistd::{read, write},
};
use watchdog::{LIMIT, Watchdog, in_time};

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

/// Has the kernel refuse asynchronous operations to this thread from now on, as where they are used up.
fn deny_asynchronous_operations() {
    let statement = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let code = |bits: u32| u16::try_from(bits).unwrap();
    let (load, skip_if) = (libc::BPF_LD | libc::BPF_W, libc::BPF_JMP | libc::BPF_JEQ);
    let number = u32::try_from(std::mem::offset_of!(libc::seccomp_data, nr)).unwrap();
    let mut filter = [
        statement(code(load | libc::BPF_ABS), 0, number),
        statement(code(skip_if), 2, u32::try_from(libc::SYS_io_setup).unwrap()),
        statement(code(skip_if), 1, u32::try_from(libc::SYS_io_submit).unwrap()),
        statement(code(libc::BPF_RET), 0, libc::SECCOMP_RET_ALLOW),
        statement(code(libc::BPF_RET), 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN.unsigned_abs()),
    ];
    let len = u16::try_from(filter.len()).unwrap();
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    set_no_new_privs().unwrap();
    #[expect(unsafe_code, reason = "seccomp(2), for which no crate of ours has a safe call")]
    // SAFETY:
    // - arguments: an operation, no flags, and a program that lives until the call is over.
    // - effects: further system calls of this thread, as the program says; memory is not touched.
    let answer = unsafe {
        let filter = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, filter, 0, &raw const program)
    };
    assert_eq!(answer, 0, "seccomp: {}", Errno::last());
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

fn is_rung_all_the_same() {
    let _watchdog = Watchdog::start();
    let (mut one, mut other) = (open(), open());
    let before = eventfds();
    let (to, start) = (one.lookup(other.address()).unwrap(), Instant::now());
    let post = |one: &mut dyn Context| {
        one.post(QUIET, Op::SendUnexpected { to, message: Message::copied(b"request") }).unwrap();
    };
    post(one.as_mut());
    while round(other.as_mut()) == 0 {
        round(one.as_mut());
        in_time!(start, "no connection");
    }
    let bells: Vec<RawFd> = eventfds().difference(&before).copied().collect();
    assert_eq!(bells.len(), 4, "that of either side, once on each");
    for _ in 0..3 {
        bells.iter().copied().for_each(fill);
        // What filling them told is heard before the sleep.
        other.waiter().wait(Some(Duration::ZERO)).unwrap();
        while !other.may_sleep() {
            assert_eq!(round(other.as_mut()), 0);
        }
        post(one.as_mut());
        let mut came = 0;
        while came == 0 {
            other.waiter().wait(Some(LIMIT)).unwrap();
            came = round(other.as_mut());
            in_time!(start, "nothing came");
        }
    }
}
