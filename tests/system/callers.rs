//! A handler sees who calls: inside a node the process and its user, over a network the address, and nobody that is gone.

use std::sync::mpsc::{self, Receiver};

use hg::{Engine, Identity, Request};
use nix::unistd::geteuid;

use crate::{
    common::{Child, Watchdog, is_root_or_says, until},
    roles::add,
    transports::open_over,
};

/// An engine that tells of each request of `add` that it serves.
fn listening(url: &str, settings: &[(&str, &str)]) -> (Engine, Receiver<(Request, Identity)>) {
    let (tell, told) = mpsc::channel();
    let mut builder = hg::builder().listen(true);
    for (name, value) in settings {
        builder = builder.setting(name, value);
    }
    let serve = move |request: &Request, (a, b)| {
        tell.send((request.clone(), request.caller())).unwrap();
        Ok(a + b)
    };
    (open_over(builder.serve(add, serve).unwrap(), url).unwrap(), told)
}

/// What a target over `url` says of a process that visits it.
fn visit(url: &str) -> (u32, Identity) {
    let (engine, told) = listening(url, &[]);
    let mut visitor = Child::start("visitor", &format!("to={} url={url}", engine.address()));
    assert_eq!(visitor.hear(), "ok", "over {url}");
    (visitor.pid(), told.recv().unwrap().1)
}

#[test]
fn a_caller_inside_the_node_is_known_by_its_process_and_user() {
    let _watchdog = Watchdog::start();
    let mut urls = vec!["sm://"];
    if cfg!(feature = "sm-routing") {
        urls.push("tcp://127.0.0.1");
    }
    if cfg!(feature = "ofi") {
        urls.push("ofi+shm://");
    }
    for url in urls {
        let (pid, said) = visit(url);
        let user = geteuid().as_raw();
        assert_eq!((said.pid, said.uid, said.address), (Some(pid), Some(user), None), "over {url}");
    }
}

#[test]
fn a_caller_over_a_network_is_known_by_its_address() {
    let _watchdog = Watchdog::start();
    let mut urls = Vec::new();
    if cfg!(feature = "tcp") {
        urls.push("plain+tcp://127.0.0.1");
    }
    if cfg!(feature = "tcp-key") {
        urls.push("sealed+tcp://127.0.0.1");
    }
    if cfg!(feature = "ofi") {
        urls.push("plain+ofi+tcp://127.0.0.1");
    }
    for url in urls {
        let (_, said) = visit(url);
        let ip = said.address.map(|it| it.ip().to_string());
        let is_alone = (said.pid, said.uid) == (None, None);
        assert!(ip.as_deref() == Some("127.0.0.1") && is_alone, "over {url}: {said:?}");
    }
}

#[test]
fn another_user_is_told_from_the_own_one() {
    let _watchdog = Watchdog::start();
    if !is_root_or_says("another_user_is_told_from_the_own_one") {
        return;
    }
    let (engine, told) = listening("sm://", &[("allow-uid", "65534")]);
    for uid in [65534, 0] {
        let settings = format!("to={} uid={uid} sm.allow-uid=0", engine.address());
        let mut visitor = Child::start("visitor", &settings);
        assert_eq!(visitor.hear(), "ok");
        let said = told.recv().unwrap().1;
        assert_eq!((said.uid, said.pid), (Some(uid), Some(visitor.pid())));
    }
}

#[test]
fn nobody_is_known_who_is_gone_and_nobody_by_a_closed_engine() {
    let _watchdog = Watchdog::start();
    let (engine, told) = listening("sm://", &[]);
    let origins = [hg::open("sm://").unwrap(), hg::open("sm://").unwrap()];
    let requests = [0, 1].map(|at: usize| {
        let peer = origins[at].lookup(engine.address()).unwrap();
        origins[at].call(add, &peer, (1, 2)).wait().unwrap();
        told.recv().unwrap().0
    });
    // The identity outlives the request's service.
    let own = std::process::id();
    assert!(requests.iter().all(|request| request.caller().pid == Some(own)));
    let [gone, stays] = requests;
    let [leaves, _stays] = origins;
    drop(leaves);
    until(|| gone.caller() == Identity::default());
    assert_eq!(stays.caller().pid, Some(own));
    engine.close();
    assert_eq!(stays.caller(), Identity::default());
}
