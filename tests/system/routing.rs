//! `tcp://` with `sm-routing`: processes that reach each other by shared memory inside the node and by sockets
//! otherwise, and notice no difference.

use hg::{Builder, Engine, Wait};
use nix::sys::resource::{Resource, getrlimit};

use crate::{
    common::{
        Child, Random, Watchdog,
        child::{next_command, say},
        is_root_or_says,
        process::{fds, rss_kib, shared_rss_kib},
    },
    roles::{Settings, add, echo, relay, serve_all},
};

const URL: &str = "tcp://127.0.0.1";

/// Processes that all call each other, and what each may need: two connections with each other one, of four
/// descriptors each.
const CROWD: usize = 200;
const CROWD_FDS: usize = 64 + CROWD * 8;
/// Resident bytes of a connection: rings that were written to, and what the process keeps about it.
const CONNECTION_KIB: u64 = 64;

/// More than one message holds.
const LARGE: usize = 3 << 20;

fn routing(settings: &Settings) -> Builder {
    match settings.text("routing") {
        Some(value) => settings.builder().setting("routing", value),
        None => settings.builder(),
    }
}

/// Serves everything, and calls whom it is told to: `call ADDRESS...`, `echo ADDRESS`.
pub(crate) fn play_node(settings: &Settings) {
    let url = settings.text("url").unwrap_or(URL);
    let engine = match routing(settings).listen(true).open(url) {
        Ok(engine) => engine,
        Err(error) => return say(&format!("error: {error}")),
    };
    serve_all(&engine);
    say(engine.address().as_str());
    while let Some(command) = next_command() {
        let mut words = command.split(' ');
        let result = match words.next() {
            Some("call") => call_all(&engine, words),
            Some("echo") => echo_at(&engine, words.next().unwrap_or_default()),
            other => panic!("a node knows no {other:?}"),
        };
        say(&result.unwrap_or_else(|error| format!("error: {error}")));
    }
}

/// Calls all at once; says how many were reached by which way.
fn call_all<'a>(
    engine: &Engine,
    addresses: impl Iterator<Item = &'a str>,
) -> Result<String, Box<dyn std::error::Error>> {
    let peers: Vec<_> =
        addresses.map(|address| engine.lookup(address)).collect::<Result<_, _>>()?;
    let calls: Vec<_> =
        peers.iter().zip(0..).map(|(peer, n)| (n, engine.call(add, peer, (n, 1)))).collect();
    for (number, call) in calls {
        let sum = call.wait()?;
        if sum != number + 1 {
            return Err(format!("{number} + 1 became {sum}").into());
        }
    }
    let by = |way| peers.iter().filter(|peer| engine.way_of(peer) == way).count();
    Ok(format!("sm={} tcp={}", by("sm"), by("tcp")))
}

/// Arguments and results beyond one message.
fn echo_at(engine: &Engine, address: &str) -> Result<String, Box<dyn std::error::Error>> {
    let peer = engine.lookup(address)?;
    let bytes = Random::new(7).bytes(LARGE);
    let back = engine.call(echo, &peer, (&bytes,)).wait()?;
    Ok(if back == bytes { "same".to_owned() } else { "different".to_owned() })
}

fn node(arguments: &str) -> (Child, String) {
    let mut child = Child::start("node", arguments);
    let address = child.hear();
    assert!(!address.starts_with("error"), "{address}");
    (child, address)
}

#[test]
fn two_hundred_processes_all_call_each_other() {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(most >= CROWD_FDS as u64, "{most} descriptors at most: {CROWD_FDS} are needed");
    // However slow a machine with 200 processes is, nobody is given up who lives.
    let arguments = format!("wait=block nofile={CROWD_FDS} sm.connect-timeout-ms=100000");
    let mut children: Vec<_> = (0..CROWD).map(|_| Child::start("node", &arguments)).collect();
    let addresses: Vec<_> = children.iter_mut().map(Child::hear).collect();
    let (few_fds, little) = (fds(children[0].pid()), rss_kib(children[0].pid()));
    // Some at a time, so that no connection waits for all the others; then, connected, all at once.
    for batch in [CROWD / 10, CROWD] {
        for from in (0..CROWD).step_by(batch) {
            for (child, own) in children[from..from + batch].iter_mut().zip(&addresses[from..]) {
                let others = addresses.iter().filter(|address| *address != own);
                let others: Vec<_> = others.map(String::as_str).collect();
                child.tell(&format!("call {}", others.join(" ")));
            }
            for child in &mut children[from..from + batch] {
                assert_eq!(child.hear(), format!("sm={} tcp=0", CROWD - 1));
            }
        }
    }
    for child in children.iter().step_by(20) {
        let connections = 2 * (CROWD - 1);
        let (fds, memory) = (fds(child.pid()) - few_fds, rss_kib(child.pid()) - little);
        let shared = shared_rss_kib(child.pid());
        assert!(fds <= 4 * connections, "{fds} descriptors for {connections} connections");
        let bound = CONNECTION_KIB * connections as u64;
        assert!(
            memory <= bound,
            "{memory} KiB, {shared} of them shared, for {connections} connections"
        );
    }
}

#[test]
fn three_processes_call_each_other_by_both_ways_at_once() {
    let _watchdog = Watchdog::start();
    let (mut routes, at) = node("wait=block");
    let (mut plain, plain_at) = node("wait=block routing=off");
    let (mut local, local_at) = node("wait=block url=sm://");
    assert!(at.starts_with("uid://") && plain_at.starts_with("tcp://"), "{at}, {plain_at}");
    // Each takes the part that it can reach, and is reached by the way that it has.
    for _ in 0..100 {
        plain.tell(&format!("call {at}"));
        local.tell(&format!("call {at}"));
        routes.tell(&format!("call {at} {plain_at} {local_at}"));
        assert_eq!(plain.hear(), "sm=0 tcp=1");
        assert_eq!(local.hear(), "sm=1 tcp=0");
        assert_eq!(routes.hear(), "sm=2 tcp=1");
    }
    // From the one over the third to the other, neither of which could reach it by itself.
    let engine = hg::builder().wait(Wait::Block).open("sm://").unwrap();
    let peer = engine.lookup(&at).unwrap();
    assert_eq!(engine.call(relay, &peer, (plain_at, 20, 22)).wait().unwrap(), 42);
    assert_eq!(engine.way_of(&peer), "sm");
}

#[test]
fn large_arguments_and_results_go_by_every_way() {
    let _watchdog = Watchdog::start();
    let (mut routes, at) = node("wait=block");
    let (mut other, other_at) = node("wait=block");
    let (mut plain, plain_at) = node("wait=block routing=off");
    let (mut local, local_at) = node("wait=block url=sm://");
    for address in [&at, &other_at, &plain_at, &local_at] {
        assert_eq!(routes.ask(&format!("echo {address}")), "same", "to {address}");
    }
    for child in [&mut other, &mut plain, &mut local] {
        assert_eq!(child.ask(&format!("echo {at}")), "same");
    }
}

#[test]
fn a_process_of_another_user_is_reached_by_tcp() {
    let _watchdog = Watchdog::start();
    if !is_root_or_says("a_process_of_another_user_is_reached_by_tcp") {
        return;
    }
    let (mut here, at) = node("wait=block");
    let (mut theirs, their_at) = node("wait=block uid=65534");
    assert_eq!(here.ask(&format!("call {their_at} {at}")), "sm=1 tcp=1");
    assert_eq!(theirs.ask(&format!("call {at} {their_at}")), "sm=1 tcp=1");
    assert_eq!(here.ask(&format!("echo {their_at}")), "same");
    assert_eq!(theirs.ask(&format!("echo {at}")), "same");
    assert_eq!(here.ask(&format!("call {their_at} {at}")), "sm=1 tcp=1", "it stays so");
}

#[test]
fn a_target_that_takes_no_more_peers_is_reached_by_tcp() {
    let _watchdog = Watchdog::start();
    let engine = hg::builder().setting("sm.max-peers", "2").listen(true).open(URL).unwrap();
    serve_all(&engine);
    let mut nodes: Vec<_> = (0..4).map(|_| node("wait=block").0).collect();
    let command = format!("call {}", engine.address());
    for (child, at) in nodes.iter_mut().zip(0..) {
        let wanted = if at < 2 { "sm=1 tcp=0" } else { "sm=0 tcp=1" };
        assert_eq!(child.ask(&command), wanted);
    }
    for (child, at) in nodes.iter_mut().zip(0..4).rev() {
        let wanted = if at < 2 { "sm=1 tcp=0" } else { "sm=0 tcp=1" };
        assert_eq!(child.ask(&command), wanted, "the way does not change");
    }
}

#[test]
fn a_restarted_target_at_a_fixed_port_is_found_by_its_old_address() {
    let _watchdog = Watchdog::start();
    let (child, free) = node("wait=block routing=off");
    drop(child);
    let arguments = format!("wait=block url={free}");
    let (mut target, at) = node(&arguments);
    let engine = hg::builder().wait(Wait::Block).open(URL).unwrap();
    let peer = engine.lookup(&at).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    target.kill();
    assert!(engine.call(add, &peer, (1, 2)).wait().is_err(), "the incarnation is dead");
    let (_target, same) = node(&arguments);
    assert_eq!(same, at);
    let peer = engine.lookup(&at).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    assert_eq!(engine.way_of(&peer), "sm");
}
