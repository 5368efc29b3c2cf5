//! Descriptors whose last close waits (a TCP socket that lingers, with bytes that nobody reads) hold up nobody, wherever they were sent.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::{IoSlice, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Plugin as _, QUIET};
use nix::{
    errno::Errno,
    libc::{self, linger},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg,
        setsockopt, socket, sockopt,
    },
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork, pipe},
};
use watchdog::{Watchdog, alone, in_time, until};

#[path = "common/denied.rs"]
mod denied;
#[path = "common/eventfds.rs"]
mod eventfds;
#[path = "../../tcp/tests/common/log.rs"]
mod log;

use eventfds::eventfds;

fn open(settings: &[(&str, &str)]) -> Box<dyn Context> {
    let mut options = OpenOptions::listening();
    let owned = settings.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    options.settings.extend(owned);
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// Closing it for good takes an hour, unless its other end goes.
fn lingering(listener: &TcpListener) -> (OwnedFd, TcpStream) {
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    setsockopt(&socket, sockopt::SndBuf, &4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    setsockopt(&socket, sockopt::Linger, &linger { l_onoff: 1, l_linger: 3600 }).unwrap();
    (socket.into(), other)
}

/// Somebody who has connected and not said anything yet.
fn stranger(target: &dyn Context) -> OwnedFd {
    let name = format!("hydrargyrum/{}", target.address().as_str().strip_prefix("sm://").unwrap());
    let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let stranger = socket(kind.0, kind.1, kind.2, None).unwrap();
    connect(stranger.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
    stranger
}

fn send(stranger: &OwnedFd, bytes: &[u8], fds: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let pieces = [IoSlice::new(bytes)];
    sendmsg::<()>(stranger.as_raw_fd(), &pieces, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
}

/// A request of somebody else is heard.
fn serves(target: &mut dyn Context, other: &mut dyn Context) {
    let (to, start) = (other.lookup(target.address()).unwrap(), Instant::now());
    other.post(QUIET, Op::SendUnexpected { to, message: Message::copied(b"request") }).unwrap();
    let mut done = Vec::new();
    while !done.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
        in_time!(start, "nothing is served");
        target.progress(Instant::now(), &mut done).unwrap();
        other.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
}

/// Those that may wait, and a burst of accepted ones that had not sent yet.
const MORE_THAN_MAY_WAIT: usize = 160;
/// In which all would have been let in.
const ROUNDS: u32 = 10_000;

/// Shorter than what is warned of.
const A_MOMENT: Duration = Duration::from_millis(500);

/// The magic bytes, the version, and a kind that nobody may say at once: to unmap a region.
const OUT_OF_TURN: &[u8] = b"HgSm\x08\0\0\0\x06\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn descriptors_whose_close_waits_hold_up_nobody_wherever_they_are_sent() {
    alone(hold_up_nobody);
}

fn hold_up_nobody() {
    let _watchdog = Watchdog::start();
    type Sends = fn(&OwnedFd, RawFd);
    let cases: [(&str, Sends); 7] = [
        ("with nonsense", |to, fd| send(to, b"nonsense", &[fd])),
        ("out of turn", |to, fd| send(to, OUT_OF_TURN, &[fd])),
        ("with a packet that is too long", |to, fd| send(to, &[0; 4096], &[fd])),
        ("with too many others", |to, fd| send(to, b"many", &[&[0; 200][..], &[fd]].concat())),
        ("alone", |to, fd| send(to, b"", &[fd])),
        ("behind what is wrong", |to, fd| {
            send(to, b"nonsense", &[]);
            send(to, b"", &[]);
            send(to, b"more", &[fd]);
        }),
        ("behind what is empty", |to, fd| {
            send(to, b"", &[]);
            send(to, b"", &[fd]);
        }),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    setsockopt(&listener, sockopt::RcvBuf, &4096).unwrap();
    let (mut target, mut full) = (open(&[]), open(&[("max-peers", "1")]));
    let (mut first, mut last) = (open(&[]), open(&[]));
    serves(full.as_mut(), first.as_mut());
    let mut held = Vec::new();
    for (case, sends) in cases {
        for context in [&mut target, &mut full] {
            let (socket, other) = lingering(&listener);
            let stranger = stranger(context.as_ref());
            sends(&stranger, socket.as_raw_fd());
            drop(socket);
            let start = Instant::now();
            while !is_gone(&stranger) {
                in_time!(start, "{case}: it is not sent away");
                context.progress(Instant::now(), &mut Vec::new()).unwrap();
            }
            held.push((stranger, other));
        }
        serves(target.as_mut(), last.as_mut());
        serves(full.as_mut(), first.as_mut());
    }
    // Those of so many wait that nobody else is let in; who is there is served.
    for _ in 0..MORE_THAN_MAY_WAIT {
        let (stranger, (socket, other)) = (stranger(target.as_ref()), lingering(&listener));
        send(&stranger, b"nonsense", &[socket.as_raw_fd()]);
        held.push((stranger, other));
    }
    for _ in 0..ROUNDS {
        target.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
    assert!(!held.iter().all(|(stranger, _)| is_gone(stranger)));
    until("who closes has nothing else to do", all_closers_wait);
    a_forked_child_lets_in_newcomers();
    let strangers: Vec<_> = held.into_iter().map(|(stranger, _ended)| stranger).collect();
    serves(target.as_mut(), last.as_mut());
    // Their other ends are gone: nothing waits any more.
    all_are_gone(target.as_mut(), &strangers);
}

/// In close(2), where no lock is held that a child may need.
fn all_closers_wait() -> bool {
    std::fs::read_dir("/proc/self/task").unwrap().all(|task| {
        let said = |file| std::fs::read_to_string(task.as_ref().unwrap().path().join(file));
        // Who has ended meanwhile is not there any more.
        said("comm").map_or(true, |name| name != "hg-sm-close\n")
            || said("stat").map_or(true, |stat| stat.contains(") S "))
    })
}

/// Whatever waits in this process.
fn a_forked_child_lets_in_newcomers() {
    #[expect(unsafe_code, reason = "a child that goes on without executing another program")]
    // SAFETY:
    // - the other threads of this process wait, and hold no lock: its test's harness and its watchdog to be told something, and those that
    //   close descriptors in close(2).
    // - the child ends without unwinding.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let serves = || serves(open(&[]).as_mut(), open(&[]).as_mut());
            let result = std::panic::catch_unwind(serves);
            #[expect(unsafe_code, reason = "ends without running anything of the parent's")]
            // SAFETY:
            // - a system call.
            unsafe {
                libc::_exit(i32::from(result.is_err()))
            }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

#[test]
fn without_a_thread_descriptors_stay_open_until_there_is_one_and_then_newcomers_are_let_in() {
    alone(stay_open_without_a_thread);
}

fn stay_open_without_a_thread() {
    let _watchdog = Watchdog::start();
    let (mut target, mut other) = (open(&[]), open(&[]));
    // Whoever sends wrong bytes alone has nothing closed for him.
    let harmless: Vec<_> = (0..MORE_THAN_MAY_WAIT).map(|_| stranger(target.as_ref())).collect();
    harmless.iter().for_each(|it| send(it, &[0; 4096], &[]));
    let (mut strangers, mut pipes) = (Vec::new(), Vec::new());
    let log = log::Log::default();
    std::thread::scope(|scope| {
        let (target, other, log) = (target.as_mut(), other.as_mut(), log.clone());
        let (strangers, pipes) = (&mut strangers, &mut pipes);
        scope.spawn(move || {
            let (logged, _guard) = (log.clone(), tracing::subscriber::set_default(log));
            denied::deny(&[libc::SYS_clone, libc::SYS_clone3], Errno::EAGAIN);
            all_are_gone(target, &harmless);
            for _ in 0..MORE_THAN_MAY_WAIT {
                let ((end, other_end), stranger) = (pipe().unwrap(), stranger(target));
                send(&stranger, b"nonsense", &[other_end.as_raw_fd()]);
                strangers.push(stranger);
                pipes.push(end);
            }
            let now = Instant::now();
            let mut progress = |after| {
                target.progress(now + after, &mut Vec::new()).unwrap();
            };
            (0..ROUNDS).for_each(|round| progress(A_MOMENT * round / ROUNDS));
            assert_eq!(logged.text().matches("wait to be closed").count(), 0, "for a moment");
            (1..9).for_each(|seconds| progress(A_MOMENT + Duration::from_secs(seconds)));
            assert_eq!(logged.text().matches("wait to be closed").count(), 1, "it lasts");
            who_connects_is_told_why_in_the_end(other, target);
        });
    });
    assert_eq!(log.text().matches("wait to be closed").count(), 1, "it is said once");
    assert!(!strangers.iter().all(is_gone), "nobody keeps count");
    assert!(!pipes.iter().any(is_gone), "they were closed by the thread that makes progress");
    all_are_gone(target.as_mut(), &strangers);
    serves(target.as_mut(), other.as_mut());
    all_are_gone(target.as_mut(), &pipes);
}

fn who_connects_is_told_why_in_the_end(other: &mut dyn Context, target: &dyn Context) {
    let (to, now) = (other.lookup(target.address()).unwrap(), Instant::now());
    other.post(1, Op::SendUnexpected { to, message: Message::copied(b"request") }).unwrap();
    let mut done = Vec::new();
    other.progress(now, &mut done).unwrap();
    assert!(done.is_empty(), "it may be let in later");
    for _ in 0..2 {
        other.progress(now + 2 * LONGEST, &mut done).unwrap();
    }
    let said = format!("{done:?}");
    assert!(said.contains("wait to be closed"), "{said}");
}

/// In which a connection is made, or none.
const LONGEST: Duration = Duration::from_secs(30);

#[test]
fn eventfds_that_nobody_takes_are_closed_elsewhere() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let mut target = open(&[]);
        let before = eventfds().len();
        let cases = [vec![], b"nonsense".to_vec(), OUT_OF_TURN.to_vec(), hello()];
        std::thread::scope(|scope| {
            let target = target.as_mut();
            scope.spawn(move || {
                denied::deny(&[libc::SYS_clone, libc::SYS_clone3], Errno::EAGAIN);
                let strangers = cases.map(|bytes| sends_three_eventfds(target, &bytes));
                all_are_gone(target, &strangers);
                assert_eq!(eventfds().len() - before, 3 * strangers.len());
            });
        });
        let last = stranger(target.as_ref());
        send(&last, b"nonsense", &[]);
        all_are_gone(target.as_mut(), &[last]);
        until("they are closed", || eventfds().len() == before);
    });
}

#[test]
fn who_is_refused_at_once_leaves_nothing_to_be_closed() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let (mut full, mut first) = (open(&[("max-peers", "1")]), open(&[]));
        serves(full.as_mut(), first.as_mut());
        std::thread::scope(|scope| {
            let full = full.as_mut();
            scope.spawn(move || {
                denied::deny(&[libc::SYS_clone, libc::SYS_clone3], Errno::EAGAIN);
                let sends = |_| sends_three_eventfds(full, &hello());
                let strangers: Vec<_> = (0..MORE_THAN_MAY_WAIT).map(sends).collect();
                all_are_gone(full, &strangers);
            });
        });
    });
}

/// As a newcomer says it, who then sends his descriptors.
fn hello() -> Vec<u8> {
    [&b"HgSm\x08\0\0\0\x01\0\0\0\x10\0\0\0"[..], &[7; 16]].concat()
}

fn sends_three_eventfds(target: &dyn Context, bytes: &[u8]) -> OwnedFd {
    let (stranger, eventfd) = (stranger(target), EventFd::new().unwrap());
    send(&stranger, bytes, &[eventfd.as_fd().as_raw_fd(); 3]);
    stranger
}

/// They are let in, and sent away.
fn all_are_gone(target: &mut dyn Context, strangers: &[OwnedFd]) {
    let start = Instant::now();
    while !strangers.iter().all(is_gone) {
        in_time!(start, "newcomers are let in no more");
        target.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
}

/// Whether the other side has hung up.
fn is_gone(stranger: &OwnedFd) -> bool {
    let mut hang_up = [PollFd::new(stranger.as_fd(), PollFlags::empty())];
    poll(&mut hang_up, PollTimeout::ZERO).unwrap() > 0
}
