//! A server that is started again and again while a client calls: whoever finds it finds its handlers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use hg::{Builder, CallError, Engine, Error, Peer, RegisterError};

use crate::common::Watchdog;

#[hg::rpc]
fn by_register() -> u8 {
    1
}

#[hg::rpc]
fn by_serve() -> u8;

#[hg::rpc]
fn by_serve_async() -> u8;

#[hg::rpc]
fn by_serve_blocking() -> u8;

#[hg::rpc]
fn by_serve_later() -> u8;

fn with_handlers() -> Result<Builder, RegisterError> {
    hg::builder()
        .register(by_register)?
        .serve(by_serve, |_, ()| Ok(2))?
        .serve_async(by_serve_async, |_, ()| async { Ok(3) })?
        .serve_blocking(by_serve_blocking, |_, ()| Ok(4))?
        .serve_later(by_serve_later, |_, (), answer| answer.send(Ok(5)))
}

/// At an address that the one before may still be leaving.
fn open(url: &str) -> Engine {
    loop {
        match with_handlers().unwrap().setting("routing", "off").listen(true).open(url) {
            Ok(engine) => return engine,
            Err(Error::AddressInUse(_)) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Calls all handlers, one after the other; how many have answered.
fn call_all(origin: &Engine, peer: &Peer) -> Result<(), CallError> {
    assert_eq!(origin.call(by_register, peer, ()).wait()?, 1);
    assert_eq!(origin.call(by_serve, peer, ()).wait()?, 2);
    assert_eq!(origin.call(by_serve_async, peer, ()).wait()?, 3);
    assert_eq!(origin.call(by_serve_blocking, peer, ()).wait()?, 4);
    assert_eq!(origin.call(by_serve_later, peer, ()).wait()?, 5);
    Ok(())
}

#[test]
fn a_server_that_is_restarted_has_its_handlers_from_the_first_request_on() {
    const RESTARTS: usize = 50;
    const CLIENTS: usize = 6;
    let _watchdog = Watchdog::start();
    let name = format!("sm://restarts-{}", std::process::id());
    for url in [name.as_str(), "tcp://127.0.0.1"] {
        let mut target = open(url);
        let address = target.address().clone();
        let place = if url == name { url } else { address.as_str() };
        let (rounds, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let client = || {
                let origin = hg::builder().setting("routing", "off").open(url).unwrap();
                while !over.load(Ordering::SeqCst) {
                    let peer = origin.lookup(&address).unwrap();
                    let refused = loop {
                        match call_all(&origin, &peer) {
                            Ok(()) => drop(rounds.fetch_add(1, Ordering::SeqCst)),
                            Err(error) => break error,
                        }
                        if over.load(Ordering::SeqCst) {
                            return;
                        }
                    };
                    assert!(matches!(refused, CallError::PeerGone { .. }), "{url}: {refused}");
                }
            };
            let clients = [(); CLIENTS].map(|()| scope.spawn(client));
            for _ in 0..RESTARTS {
                let before = rounds.load(Ordering::SeqCst);
                while rounds.load(Ordering::SeqCst) < before + CLIENTS {
                    if clients.iter().any(thread::ScopedJoinHandle::is_finished) {
                        // It has said why.
                        return over.store(true, Ordering::SeqCst);
                    }
                    thread::yield_now();
                }
                target.close();
                target = open(place);
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}

#[test]
fn what_is_registered_before_opening_counts_like_what_is_registered_later() {
    let twice = with_handlers().unwrap().register(by_register).unwrap_err();
    assert!(matches!(twice, RegisterError::Twice { name } if name.ends_with("by_register")));
    let alive = Arc::new(());
    let kept = Arc::clone(&alive);
    let serving = hg::builder()
        .serve(by_serve, move |_, ()| Ok(u8::from(Arc::strong_count(&kept) > 0)))
        .unwrap();
    let target = serving.listen(true).open("sm://").unwrap();
    let twice = target.serve(by_serve, |_, ()| Ok(2)).unwrap_err();
    assert!(matches!(twice, RegisterError::Twice { .. }), "{twice}");
    assert!(target.deregister(by_serve));
    target.serve(by_serve, |_, ()| Ok(2)).unwrap();
    let origin = hg::open("sm://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(by_serve, &peer, ()).wait().unwrap(), 2);
    assert_eq!(Arc::strong_count(&alive), 1, "a handler goes when it is deregistered");
}
