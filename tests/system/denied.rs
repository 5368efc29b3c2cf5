//! Processes that the system does not let reach into each other's memory: a seccomp filter answers
//! `process_vm_readv` and `process_vm_writev` with EPERM, for one side, for the other, for both. Everything works as elsewhere.

#![expect(unsafe_code, reason = "seccomp(2), for which no crate of ours has a safe call")]

use std::{
    io::{IoSlice, IoSliceMut},
    mem::offset_of,
    sync::Mutex,
};

use hg::{
    CallError, Engine, Peer, Request,
    bulk::{Bulk, Descriptor, Memory, Rights, TransferError, alloc},
};
use nix::{
    errno::Errno,
    libc,
    sys::{
        prctl::set_no_new_privs,
        uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    },
    unistd::getpid,
};

use crate::{
    bulk::{holds, move_range, pattern},
    common::{
        Child, Watchdog,
        child::{next_command, say},
    },
    roles::{Settings, add, echo},
    transports::urls,
};

const MIB: usize = 1 << 20;
/// Memory that is lent.
const LENT: usize = 5 * MIB;

/// Has the kernel refuse cross memory attach to this process from now on.
fn deny_cma() {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let load = |offset: usize| {
        let offset = u32::try_from(offset).expect("a small structure");
        statement(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), offset)
    };
    // Skips so many of the statements that follow when the number is this one.
    let skip_if = |number: libc::c_long, jt| {
        let k = u32::try_from(number).expect("a number of a system call");
        libc::sock_filter { code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), jt, jf: 0, k }
    };
    let end = |k| statement(code(libc::BPF_RET | libc::BPF_K), k);
    let mut filter = [
        load(offset_of!(libc::seccomp_data, nr)),
        skip_if(libc::SYS_process_vm_readv, 2),
        skip_if(libc::SYS_process_vm_writev, 1),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()),
    ];
    let len = u16::try_from(filter.len()).expect("a short filter");
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    set_no_new_privs().expect("a call of Linux");
    // SAFETY:
    // - arguments: an operation, a flag (for all threads), and a program that lives until the call is over.
    // - effects: further system calls of this process, as the program says; memory is not touched.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    assert_eq!(answer, 0, "seccomp: {}", Errno::last());
}

fn code(bits: u32) -> u16 {
    u16::try_from(bits).expect("a code has 16 bits")
}

/// How this process reaches its own memory by the way that is denied.
fn try_cma() -> [Result<usize, Errno>; 2] {
    let (mut ours, theirs) = ([0; 8], [7; 8]);
    let remote = |bytes: &[u8; 8]| [RemoteIoVec { base: bytes.as_ptr().addr(), len: 8 }];
    let read = process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut ours)], &remote(&theirs));
    let written = process_vm_writev(getpid(), &[IoSlice::new(&theirs)], &remote(&ours));
    [read, written]
}

/// What was lent and stays so.
static KEPT: Mutex<Vec<Bulk>> = Mutex::new(Vec::new());

/// Lends memory of a kind to everybody.
#[hg::rpc]
fn lend(request: &Request, kind: String) -> Result<Descriptor, String> {
    let mut buffer = alloc(LENT).map_err(|error| error.to_string())?;
    buffer.copy_from_slice(&pattern(0, LENT));
    let (memory, rights) = match kind.as_str() {
        "heap" => (Memory::from(pattern(0, LENT)), Rights::all()),
        "shared" => (Memory::from(buffer), Rights::all()),
        _ => (buffer.freeze().map_err(|error| error.to_string())?.into(), Rights::READ),
    };
    let bulk = request.engine().expose(memory, rights).map_err(|error| error.to_string())?;
    let descriptor = bulk.descriptor();
    KEPT.lock().map_err(|_poisoned| "a handler has failed")?.push(bulk);
    Ok(descriptor)
}

/// The role: serves, and uses another one with `use ADDRESS`. `deny=yes`: reaches into nobody's memory.
/// Says whether it could, and its address.
pub(crate) fn play(settings: &Settings) {
    if settings.text("deny").is_some() {
        deny_cma();
    }
    let can = match try_cma() {
        [Ok(8), Ok(8)] => "can",
        [Err(Errno::EPERM), Err(Errno::EPERM)] => "cannot",
        other => panic!("neither way: {other:?}"),
    };
    let engine = settings.open(true).expect("an engine");
    engine.register(add).expect("a fresh registry");
    engine.register(echo).expect("a fresh registry");
    engine.register(move_range).expect("a fresh registry");
    engine.register(lend).expect("a fresh registry");
    say(&format!("{can} {}", engine.address()));
    while let Some(command) = next_command() {
        let address = command.strip_prefix("use ").expect("the only command");
        say(&use_peer(&engine, address).map_or_else(|error| error.0, |()| "ok".to_owned()));
    }
}

/// What went wrong, in words.
struct Words(String);

impl From<hg::Error> for Words {
    fn from(error: hg::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<TransferError> for Words {
    fn from(error: TransferError) -> Self {
        Self(error.to_string())
    }
}

impl<E: std::fmt::Display> From<CallError<E>> for Words {
    fn from(error: CallError<E>) -> Self {
        Self(error.to_string())
    }
}

fn check(is_so: bool, what: &str) -> Result<(), Words> {
    if is_so { Ok(()) } else { Err(Words(format!("wrong: {what}"))) }
}

/// Calls, arguments of 64 MiB, transfers of each kind of memory that either side starts.
fn use_peer(engine: &Engine, address: &str) -> Result<(), Words> {
    let peer = engine.lookup(address)?;
    check(engine.call(add, &peer, (20, 22)).wait()? == 42, "20 + 22")?;
    check(engine.way_of(&peer) == "sm", "the way")?;
    // Routing goes the same way.
    let is_routed = engine.address().scheme() != "sm";
    let body = pattern(0, if is_routed { LENT } else { 64 * MIB });
    check(engine.call(echo, &peer, (&body,)).wait()? == body, "what came back")?;
    for kind in ["heap", "shared", "frozen"] {
        let what = engine.call(lend, &peer, (kind.to_owned(),)).wait()?;
        // From the second use on, memory that can be mapped is.
        (0..3).try_for_each(|_| use_memory(engine, &peer, &what, kind))?;
    }
    let source = engine.expose(pattern(0, LENT), Rights::READ)?;
    let sink = engine.expose(vec![0; LENT], Rights::WRITE)?;
    let range = (1000, 2000, MIB as u64);
    let lens = vec![4 << 20, 2000];
    for (is_pull, bulk) in [(true, &source), (false, &sink)] {
        let arguments = (is_pull, bulk.descriptor(), range, lens.clone());
        let end = engine.call(move_range, &peer, arguments).wait()?;
        check(end == "Ok", &format!("a transfer that the other side starts: {end}"))?;
    }
    check(holds(&sink.to_vec()?, 2000, 1000, MIB as u64), "what was pushed to this side")
}

fn use_memory(engine: &Engine, peer: &Peer, what: &Descriptor, kind: &str) -> Result<(), Words> {
    let all = pattern(0, LENT);
    check(engine.fetch(peer, what).wait()? == all, "what was fetched")?;
    let seen = engine.view(peer, what.range(5..)?).wait()?;
    check(seen.to_vec()? == all[5..], "what was seen")?;
    let (at, len) = (MIB as u64 + 1, 3 * MIB as u64);
    let local = engine.expose(vec![vec![0; MIB]; 4], Rights::empty())?;
    engine.pull(peer, what.range(at..at + len)?, local.range(7..len + 7)?).wait()?;
    check(holds(&local.to_vec()?, at, 7, len), "what was pulled")?;
    let pushed = engine.push(peer, local.range(7..len + 7)?, what.range(at..at + len)?).wait();
    match pushed {
        Err(TransferError::Denied { .. }) => check(kind == "frozen", "the refusal"),
        ended => Ok(ended?),
    }
}

#[test]
fn everything_works_when_either_or_both_sides_cannot_reach_into_the_other() {
    let _watchdog = Watchdog::start();
    for url in urls().filter(|url| !url.contains('+')) {
        for denied in [["deny=yes", ""], ["", "deny=yes"], ["deny=yes", "deny=yes"]] {
            let mut sides = denied.map(|deny| {
                let mut child = Child::start("denied", &format!("url={url} {deny}"));
                let words = child.hear();
                let (can, address) = words.split_once(' ').unwrap();
                assert_eq!(can, if deny.is_empty() { "can" } else { "cannot" });
                (child, address.to_owned())
            });
            let [first, second] = &mut sides;
            assert_eq!(first.0.ask(&format!("use {}", second.1)), "ok", "{denied:?}, first");
            assert_eq!(second.0.ask(&format!("use {}", first.1)), "ok", "{denied:?}, second");
        }
    }
}
