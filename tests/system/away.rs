//! Memory that is not there: whoever reads it by the kernel waits until its owner has fetched it, who never does. Only the thread
//! that reads it is held up.

#![expect(unsafe_code, reason = "userfaultfd(2), for which no crate of ours has a safe call")]

use std::{
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use hg::{
    CallError, CallOptions, Engine, Request,
    bulk::{Descriptor, Memory, Rights},
};
use nix::{errno::Errno, libc};

use crate::{
    common::{
        Child, Watchdog,
        child::{next_command, say},
        process::threads,
        until,
    },
    roles::{Settings, add, never, serve_all},
};

const MIB: usize = 1 << 20;
/// Lent by each owner: more than any allocator keeps among other memory.
const LENT: usize = 4 * MIB;
const PAGE: usize = 4096;
/// A call that is held up is so for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// `struct uffdio_api` of `linux/userfaultfd.h`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const API: u64 = 0xaa;
const MISSING: u64 = 1;

/// Takes the pages of a buffer away that nobody touches any more: they are fetched from what is given, which fetches none.
fn take_away(address: usize, len: usize) -> Result<OwnedFd, Errno> {
    let start = address.next_multiple_of(PAGE);
    let len = (address + len - start) / PAGE * PAGE;
    // SAFETY:
    // - a number of flags is all that it takes.
    let raw = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
    // SAFETY:
    // - the kernel gave it just now: it is nobody else's.
    let fault = unsafe { OwnedFd::from_raw_fd(i32::try_from(raw).expect("a descriptor")) };
    let mut api = Api { api: API, features: 0, ioctls: 0 };
    let (start, len) = (start as u64, len as u64);
    let mut register = Register { start, len, mode: MISSING, ioctls: 0 };
    let fd = fault.as_raw_fd();
    // SAFETY:
    // - the structure has the kernel's layout, and lives through the call.
    Errno::result(unsafe { libc::ioctl(fd, UFFDIO_API, &raw mut api) })?;
    let pages = std::ptr::with_exposed_provenance_mut(usize::try_from(start).expect("64 bits"));
    let size = usize::try_from(len).expect("64 bits");
    // SAFETY:
    // - whole pages of a buffer that nobody in this process touches from now on: what they held is not missed.
    Errno::result(unsafe { libc::madvise(pages, size, libc::MADV_DONTNEED) })?;
    // SAFETY:
    // - the structure has the kernel's layout, and lives through the call; the pages are those of above.
    Errno::result(unsafe { libc::ioctl(fd, UFFDIO_REGISTER, &raw mut register) })?;
    Ok(fault)
}

/// Reads all of somebody's memory.
#[hg::rpc]
fn read_all(memory: Descriptor) -> Result<u64, String>;

/// Lends memory that is not there, and has the target read it; says so, or why that cannot be.
pub(crate) fn play(settings: &Settings) {
    let engine = settings.open(false).expect("this process can open an engine");
    let bytes = vec![7; LENT];
    let address = bytes.as_ptr().expose_provenance();
    let lent = engine.expose(Memory::from(bytes), Rights::READ).expect("memory can be lent");
    let peer = engine.lookup(settings.target()).expect("an address");
    engine.call(add, &peer, (1, 2)).wait().expect("the target serves");
    let _fault = match take_away(address, LENT) {
        Ok(fault) => fault,
        Err(error) => return say(&format!("error: {error}")),
    };
    let call = engine.call(read_all, &peer, (lent.descriptor(),));
    say("asked");
    while next_command().is_some() {}
    drop(call);
}

/// Serves whoever lends, in an `async` handler, or with `blocking=yes` in a thread of the pool. Commands: `late`, `close`.
pub(crate) fn play_reader(settings: &Settings) {
    let engine = settings.open(true).expect("this process can open an engine");
    serve_all(&engine);
    let registered = if settings.text("blocking").is_some() {
        engine.serve_blocking(read_all, |request: &Request, (memory,)| {
            say("asked");
            let bytes = request.fetch(&memory).wait().map_err(|error| error.to_string())?;
            Ok(bytes.len() as u64)
        })
    } else {
        engine.serve_async(read_all, |request: Request, (memory,)| async move {
            say("asked");
            let bytes = request.fetch(&memory).await.map_err(|error| error.to_string())?;
            Ok(bytes.len() as u64)
        })
    };
    registered.expect("a fresh registry");
    say(engine.address().as_str());
    let mut engine = Some(engine);
    while let Some(command) = next_command() {
        match (command.as_str(), &engine) {
            ("late", Some(engine)) => say(&late(engine)),
            _ => {
                engine = None;
                say("closed");
            }
        }
    }
}

/// How a call of its own ends that nobody answers.
fn late(engine: &Engine) -> String {
    let other = hg::listen("sm://").expect("this process can open an engine");
    serve_all(&other);
    let peer = engine.lookup(other.address()).expect("an address");
    let within = CallOptions::within(Duration::from_millis(20));
    let begun = Instant::now();
    match engine.call_with(never, &peer, (), within).wait() {
        Err(CallError::DeadlineExceeded(_)) if begun.elapsed() < LIMIT => "in time".to_owned(),
        other => format!("{other:?} after {:?}", begun.elapsed()),
    }
}

#[expect(clippy::print_stdout, reason = "says what is skipped")]
fn is_there(owner: &mut Child) -> bool {
    let said = owner.hear();
    if let Some(why) = said.strip_prefix("error: ") {
        println!("SKIPPED: a_peer_whose_memory_is_not_there: userfaultfd: {why}");
        return false;
    }
    assert_eq!(said, "asked");
    true
}

#[test]
fn a_peer_whose_memory_is_not_there_holds_up_nobody_elses_calls() {
    let _watchdog = Watchdog::start();
    for kind in ["", "blocking=yes"] {
        let mut reader = Child::start("reader", kind);
        let to = format!("to={}", reader.hear());
        let calm = threads(reader.pid());
        let mut healthy = Child::start("origin", &to);
        assert_eq!(healthy.hear(), "ready");
        assert_eq!(healthy.ask("call 1"), "ok");
        let mut owners: Vec<_> = (0..3).map(|_| Child::start("away", &to)).collect();
        if !owners.iter_mut().all(is_there) {
            return;
        }
        owners.iter().for_each(|_| assert_eq!(reader.hear(), "asked"));
        for _ in 0..3 {
            assert_eq!(healthy.ask("call 100"), "ok", "{kind}");
        }
        assert_eq!(reader.ask("late"), "in time", "{kind}");
        // It can be closed while threads of it are held up; they end with the owners.
        assert_eq!(reader.ask("close"), "closed", "{kind}");
        owners.iter_mut().for_each(Child::kill);
        until(|| threads(reader.pid()) <= calm);
    }
}
