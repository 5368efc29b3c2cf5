//! A process that forks with an open engine: the child's copy is inert, and nobody takes it for the parent.

#![expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]

use std::{os::fd::AsFd as _, sync::mpsc, time::Duration};

use hg::{
    CallError, Engine, Error, Identity, Request,
    bulk::{self, Bulk, Memory, Rights},
};
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{ForkResult, fork},
};

use crate::{
    common::{
        Child, Watchdog,
        child::{next_command, say},
        falls_to,
        process::{fds, is_alive},
    },
    roles::{Settings, add, nap, never, serve_all},
    transports::{open_over, urls},
};

#[hg::rpc]
fn here();

/// Opens an engine, calls the target, says its address; forks at the first command. Then its child says what the
/// copy answers, and lives on until the standard input of both is closed; the parent does, too.
pub(crate) fn forker(settings: &Settings) {
    let engine = settings.open(true).expect("an engine");
    serve_all(&engine);
    let peer = engine.lookup(settings.target()).expect("an address");
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().expect("the target serves"), 3);
    // Its pool has a thread that the child will lack.
    assert!(serves_blocking(settings));
    let own = own_request(&engine);
    assert_ne!(own.caller(), Identity::default());
    say(engine.address().as_str());
    while let Some(command) = next_command() {
        match command.as_str() {
            "serve" => while !engine.progress(Duration::from_millis(100)) {},
            "call" => say(&format!("{:?}", engine.call(add, &peer, (1, 2)).wait().is_ok())),
            "fork" => {
                let open = engine.call(never, &peer, ());
                let exposed = exposed(&engine);
                // SAFETY:
                // - nobody else runs in this process but the test harness, which holds no lock of ours.
                match unsafe { fork() }.expect("a process can be started") {
                    ForkResult::Child => forked(settings, &engine, &peer, (open, &own), exposed),
                    ForkResult::Parent { .. } => {
                        let back = exposed.map(|bulk| bulk.into_vec().expect("nobody uses it"));
                        assert!(back.iter().all(|bytes| *bytes == [7; 5000]));
                    }
                }
            }
            other => panic!("a forker knows no `{other}`"),
        }
    }
}

/// A request that the engine has served, of its own.
fn own_request(engine: &Engine) -> Request {
    let (tell, told) = mpsc::channel();
    let serve = move |request: &Request, ()| {
        tell.send(request.clone()).expect("it is waited for");
        Ok(())
    };
    engine.serve(here, serve).expect("a fresh registry");
    let peer = engine.lookup(engine.address()).expect("an address");
    engine.call(here, &peer, ()).wait().expect("it serves itself");
    told.recv().expect("it was served")
}

/// Memory of the heap twice, and twice some that peers can map.
fn exposed(engine: &Engine) -> [Bulk; 4] {
    let mappable = || {
        let mut mappable = bulk::alloc(5000).expect("memory");
        mappable.fill(7);
        Memory::from(mappable)
    };
    let heap = || Memory::from(vec![7; 5000]);
    let rights = Rights::READ | Rights::WRITE;
    [heap(), heap(), mappable(), mappable()]
        .map(|memory| engine.expose(memory, rights).expect("room in the table"))
}

/// Whether an engine opened here has threads for blocking handlers.
fn serves_blocking(settings: &Settings) -> bool {
    let opened = settings.open(true).and_then(|target| Ok((target, settings.open(false)?)));
    opened.is_ok_and(|(target, origin)| {
        serve_all(&target);
        let peer = origin.lookup(target.address()).expect("an address");
        let mut call = origin.call(nap, &peer, (1,));
        loop {
            // With `progress=own` nobody else does it.
            target.progress(Duration::ZERO);
            origin.progress(Duration::ZERO);
            if let Some(outcome) = call.try_wait() {
                return outcome.is_ok();
            }
        }
    })
}

/// Unregisters and drops what the parent has exposed: the child has a copy of its heap, and nothing of what is shared.
fn takes_back([heap, dropped, mappable, dropped_mappable]: [Bulk; 4]) -> bool {
    drop((dropped, dropped_mappable));
    let is_elsewhere = matches!(mappable.to_vec(), Err(Error::Forked))
        && matches!(mappable.write(0, &[8]), Err(Error::Forked))
        && mappable.into_vec().is_err_and(|busy| matches!(busy.error(), Error::Forked));
    is_elsewhere
        && heap.write(0, &[7]).is_ok()
        && heap.into_vec().is_ok_and(|bytes| bytes == [7; 5000])
}

fn forked(
    settings: &Settings,
    engine: &Engine,
    peer: &hg::Peer,
    (open, own): (hg::Call<'_, never>, &Request),
    exposed: [Bulk; 4],
) -> ! {
    let opened_before = open.wait();
    let called = engine.call(add, peer, (1, 2)).wait();
    let notified = engine.notify(add, peer, (1, 2)).wait();
    let looked_up = engine.lookup(settings.target());
    // Whoever had the progress is not here: nothing waits for it.
    let event_loop = engine.event_loop();
    engine.progress(Duration::MAX);
    let after_progress = engine.call(add, peer, (1, 2)).wait();
    let is_forked = |error: &Error| matches!(error, Error::Forked);
    let inert = matches!(&called, Err(CallError::NotMade(error)) if is_forked(error))
        && matches!(&notified, Err(CallError::NotMade(error)) if is_forked(error))
        && matches!(&looked_up, Err(error) if is_forked(error))
        && matches!(&opened_before, Err(CallError::NotMade(error)) if is_forked(error))
        && matches!(&event_loop, Err(error) if is_forked(error))
        && after_progress.is_err()
        && own.caller() == Identity::default();
    // A new one of its own works, also after memory of the parent's was given up.
    let own = settings.open(false).and_then(|own| Ok((own.lookup(settings.target())?, own)));
    let works = takes_back(exposed)
        && own.is_ok_and(|(peer, own)| own.call(add, &peer, (1, 2)).wait().is_ok())
        && serves_blocking(settings);
    let pid = std::process::id();
    say(&format!(
        "{pid} {inert} {works} {called:?} {notified:?} {looked_up:?} {after_progress:?} {opened_before:?}"
    ));
    // What is said there is for the parent: only the end counts.
    let input = std::io::stdin();
    let mut end = [PollFd::new(input.as_fd(), PollFlags::empty())];
    while poll(&mut end, PollTimeout::NONE).is_err() {}
    // SAFETY:
    // - ends the child at once, without running anything of the parent's.
    unsafe { libc::_exit(0) }
}

/// The child's process id, and what it found.
fn fork_of(forker: &mut Child) -> u32 {
    let report = forker.ask("fork");
    let mut words = report.split_whitespace();
    let pid = words.next().unwrap().parse().unwrap();
    assert_eq!(words.next(), Some("true"), "the child's copy is not inert: {report}");
    assert_eq!(words.next(), Some("true"), "the child cannot open an engine: {report}");
    pid
}

#[test]
fn a_forked_childs_copy_is_inert_and_the_parents_engine_goes_on() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        for progress in ["own", "background"] {
            let to = format!("url={url} to={address} progress={progress} wait=block");
            let mut forker = Child::start("forker", &to);
            forker.hear();
            let pid = fork_of(&mut forker);
            assert!(is_alive(pid));
            assert_eq!(forker.ask("call"), "true");
            assert_eq!(forker.end().code(), Some(0));
        }
    }
}

#[test]
fn peers_of_a_killed_parent_see_peer_gone_while_its_child_lives() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (target, address) = Child::target(&format!("url={url}"));
        let calm = fds(target.pid());
        let engine = open_over(hg::builder(), url).unwrap();
        let settings = format!("url={url} to={address} progress=background");
        let mut forker = Child::start("forker", &settings);
        let parent = engine.lookup(forker.hear()).unwrap();
        assert_eq!(engine.call(add, &parent, (1, 2)).wait().unwrap(), 3);
        let pid = fork_of(&mut forker);
        let call = engine.call(never, &parent, ());
        forker.kill();
        let result = call.wait();
        assert!(matches!(result, Err(CallError::PeerGone { .. })), "{result:?}");
        assert!(is_alive(pid), "the child was to live on");
        // The target has let go of the parent, too; one connection is the child's own.
        assert!(falls_to(calm + 4, || fds(target.pid())) <= calm + 4);
    }
}
