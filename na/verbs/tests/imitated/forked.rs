//! A process that forks with open contexts: the child's copies are inert, nothing on the card is touched by them, and the parent goes on.
//!
//! The process is this test binary again, by the test `a_process_of_its_own`.

#![expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{env, process::Command, sync::Arc, time::Instant};

use hg_na::{Address, Completion, Context, Domain, Message, Op, OpenOptions, Peer, Plugin as _};
use hg_na_conformance::is_inert;
use hg_na_verbs::VerbsPlugin;
use nix::{
    libc,
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use watchdog::in_time;

use crate::imitation::{LIBRARY, left};

const FORKS: &str = "HG_TEST_FORKS";
const CARD: usize = 0;

fn open() -> Arc<dyn Domain> {
    let url = Address::new("verbs://imitated0").unwrap();
    VerbsPlugin::over(&LIBRARY).open(&url, &OpenOptions::listening()).unwrap()
}

/// One message there, and its arrival.
fn greet(from: &mut dyn Context, peer: Peer, to: &mut dyn Context) {
    let message = Message::copied(b"hello");
    from.post(1, Op::SendUnexpected { to: peer, message }).unwrap();
    let (start, mut heard) = (Instant::now(), Vec::new());
    while !heard.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
        in_time!(start, "{heard:?}");
        from.progress(Instant::now(), &mut Vec::new()).unwrap();
        to.progress(Instant::now(), &mut heard).unwrap();
    }
}

/// Everything that the child has a copy of is refused, and dropped without a call that would free something on the card.
fn is_inert_on_the_card(
    domain: Arc<dyn Domain>,
    contexts: (Box<dyn Context>, Box<dyn Context>),
    peer: Peer,
) -> bool {
    let before = left(CARD);
    // It would put into the queues what the parent has submitted.
    let is_due = contexts.0.next_deadline().is_some();
    let is_inert = !is_due && is_inert(&domain, contexts.0, contexts.1, peer);
    drop(domain);
    is_inert && left(CARD) == before
}

#[test]
#[expect(clippy::print_stdout, reason = "what it says to its parent")]
fn a_process_of_its_own() {
    if env::var_os(FORKS).is_none() {
        return;
    }
    let (domain, other) = (open(), open());
    let (mut context, dropped) = (domain.context(0).unwrap(), domain.context(1).unwrap());
    let mut friend = other.context(0).unwrap();
    let peer = context.lookup(friend.address()).unwrap();
    greet(&mut *context, peer, &mut *friend);
    assert!(context.next_deadline().is_some(), "something is silent");
    // SAFETY:
    // - nobody else runs in this process but the test harness, which holds no lock of ours.
    let forked = unsafe { fork() }.unwrap();
    let ForkResult::Parent { child } = forked else {
        let is_inert = is_inert_on_the_card(domain, (context, dropped), peer);
        // SAFETY:
        // - ends the child at once, without running anything of the parent's.
        unsafe { libc::_exit(if is_inert { 0 } else { 1 }) }
    };
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)), "the child is not inert");
    greet(&mut *context, peer, &mut *friend);
    drop((context, dropped, domain, friend, other));
    assert_eq!(left(CARD), (0, 0), "something is left on the card");
    println!("@ fine");
}

#[test]
fn a_forked_childs_copies_are_inert_and_its_parent_goes_on() {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "forked::a_process_of_its_own", "--nocapture", "--test-threads", "1"])
        .env(FORKS, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("@ fine"), "{said}{failed}");
}
