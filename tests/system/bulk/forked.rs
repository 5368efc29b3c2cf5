//! Frozen memory in a forked child: what it did not inherit has no byte there, and the parent's stays as it is.

#![expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]

use hg::{
    CallError, Engine, Error, Peer,
    bulk::{Buffer, Frozen, alloc},
};
use nix::{
    libc,
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};

use super::{
    frozen::{frozen, sum, sum_of},
    mover, open, patterned, url_of,
};
use crate::{
    common::{Child, Watchdog, child::say},
    roles::Settings,
    transports::bulk_urls,
};

const MIB: usize = 1 << 20;

/// What the child says when all is as it shall be.
const AS_DOCUMENTED: &str = "as documented";

/// The role: has frozen memory looked at and forks; its child says what is left of that, then it says so itself.
pub(crate) fn play_forker(settings: &Settings) {
    let engine = open(settings.builder(), url_of(settings));
    let peer = engine.lookup(settings.target()).expect("an address");
    let (image, heap) = (frozen(MIB), Frozen::from(patterned(MIB)));
    let buffer = alloc(5000).expect("memory");
    let ask = || engine.call(sum, &peer, (image.clone(),)).wait().ok();
    let expected = sum_of(&image);
    assert_eq!(ask(), Some(expected), "mapped there, and registered here");
    // SAFETY:
    // - nobody else runs in this process but the test harness and threads of the engine, which hold no lock of ours.
    match unsafe { fork() }.expect("a process can be started") {
        ForkResult::Child => {
            say(in_child(settings, (&engine, &peer), (&image, &heap), buffer));
            // SAFETY:
            // - ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            let is_whole = *image == *patterned(MIB) && buffer.len() == 5000;
            say(&format!("{}", is_whole && ask() == Some(expected)));
        }
    }
}

/// The first thing that is not as it shall be.
fn in_child(
    settings: &Settings,
    (engine, peer): (&Engine, &Peer),
    (image, heap): (&Frozen, &Frozen),
    buffer: Buffer,
) -> &'static str {
    if !image.is_empty() || !image.clone().is_empty() {
        return "frozen memory that was not inherited has bytes";
    }
    if **heap != *patterned(MIB) {
        return "frozen bytes of the heap were lost";
    }
    if !buffer.is_empty() || !matches!(buffer.freeze(), Err(Error::Forked)) {
        return "a buffer that was not inherited can be frozen";
    }
    if !is_refused(engine, peer, image) {
        return "the parent's engine makes calls";
    }
    let own = open(settings.builder(), url_of(settings));
    let peer = own.lookup(settings.target()).expect("an address");
    if !is_refused(&own, &peer, image) {
        return "what has no byte here is sent";
    }
    let is_carried = |image: Frozen| {
        let expected = sum_of(&patterned(MIB));
        own.call(sum, &peer, (image,)).wait().is_ok_and(|found| found == expected)
    };
    if !is_carried(heap.clone()) || !is_carried(frozen(MIB)) {
        return "an engine of its own does not carry what it has";
    }
    AS_DOCUMENTED
}

/// Whether a call with it fails, and says that a child makes it.
fn is_refused(engine: &Engine, peer: &Peer, image: &Frozen) -> bool {
    let called = engine.call(sum, peer, (image.clone(),)).wait();
    matches!(called, Err(CallError::NotMade(Error::Forked)))
}

#[test]
fn a_forked_child_has_no_byte_of_frozen_memory_that_it_did_not_inherit_and_can_have_its_own() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (_target, address) = mover(url);
        for progress in ["own", "background"] {
            let to = format!("url={url} to={address} progress={progress}");
            let mut forker = Child::start("frozen-forker", &to);
            assert_eq!(forker.hear(), AS_DOCUMENTED, "over {url}");
            assert_eq!(forker.hear(), "true", "the parent's memory is not what it was, over {url}");
            assert_eq!(forker.end().code(), Some(0));
        }
    }
}
