//! Calls and bulk data over libfabric, through the facade, between processes: `ofi+tcp://` and `ofi+shm://`, and
//! `ofi+tcp://` that is reached by shared memory inside the node.
//!
//! A second process is this test binary again, by the test `a_process_of_its_own`, with a URL in its environment.

#![cfg(all(feature = "ofi", feature = "sm-routing"))]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use hg::{
    CallError, Error, Request,
    bulk::{Descriptor, Rights},
};

use watchdog::Watchdog;

const URL: &str = "HG_TEST_URL";
const ROUTING: &str = "HG_TEST_ROUTING";
const MARK: &str = "@ ";
const MIB: usize = 1 << 20;

#[hg::rpc]
fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[hg::rpc]
fn echo(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

#[hg::rpc]
async fn reversed(request: &Request, from: Descriptor, into: Descriptor) -> Result<u64, String> {
    let (engine, origin) = (request.engine(), request.origin());
    let mut bytes = engine.fetch(&origin, &from).await.map_err(|error| error.to_string())?;
    bytes.reverse();
    let own = engine.expose(bytes, Rights::empty()).map_err(|error| error.to_string())?;
    engine.push(&origin, &own, into).await.map_err(|error| error.to_string())?;
    Ok(own.len())
}

fn builder(routing: &str) -> hg::Builder {
    match routing {
        "" => hg::builder(),
        value => hg::builder().setting("routing", value),
    }
}

/// A process that serves; killed when dropped.
struct Target {
    process: Child,
    address: String,
}

impl Target {
    fn start(url: &str, routing: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "a_process_of_its_own", "--nocapture", "--test-threads", "1"])
            .env(URL, url)
            .env(ROUTING, routing)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned())).unwrap();
        Self { process, address }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves until its parent ends.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_of_its_own() {
    let Ok(url) = env::var(URL) else { return };
    watchdog::answer();
    let engine = builder(&env::var(ROUTING).unwrap()).listen(true).open(&url).unwrap();
    engine.register(add).unwrap();
    engine.register(echo).unwrap();
    engine.register(reversed).unwrap();
    println!("{MARK}{}", engine.address());
    let _ = std::io::stdin().read(&mut [0]);
}

/// URL, its setting `routing`, and the way that calls take.
const WAYS: [(&str, &str, &str); 3] = [
    ("ofi+tcp://127.0.0.1", "off", "ofi+tcp"),
    ("ofi+shm://", "", "ofi+shm"),
    ("ofi+tcp://127.0.0.1", "", "sm"),
];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

#[test]
fn calls_and_arguments_of_64_mib_come_back() {
    let _watchdog = Watchdog::start();
    let large = pattern(64 * MIB);
    for (url, routing, way) in WAYS {
        let target = Target::start(url, routing);
        let engine = builder(routing).open(url).unwrap();
        let peer = engine.lookup(&target.address).unwrap();
        for number in 0..100 {
            assert_eq!(engine.call(add, &peer, (number, 1)).wait().unwrap(), number + 1);
        }
        assert_eq!(engine.way_of(&peer), way);
        if way == "sm" {
            continue; // Its own tests move more.
        }
        assert!(engine.call(echo, &peer, (&large,)).wait().unwrap() == large, "{url}");
    }
}

#[test]
fn bulk_data_moves_both_ways_and_forged_descriptors_move_nothing() {
    let _watchdog = Watchdog::start();
    for (url, routing, _) in WAYS {
        let target = Target::start(url, routing);
        let engine = builder(routing).listen(true).open(url).unwrap();
        let peer = engine.lookup(&target.address).unwrap();
        for len in [1, 4097, 3 * MIB + 5] {
            let mut bytes = pattern(len);
            let from = engine.expose(bytes.clone(), Rights::READ).unwrap();
            let into = engine.expose(vec![0; len], Rights::WRITE).unwrap();
            let call = engine.call(reversed, &peer, (from.bound_descriptor(), into.descriptor()));
            assert_eq!(call.wait().unwrap(), len as u64, "{url}");
            bytes.reverse();
            assert!(into.into_vec().unwrap() == bytes, "{url}: {len} bytes");
        }
        // Memory that was unregistered: its descriptor names nothing any more.
        let gone = engine.expose(pattern(MIB), Rights::READ).unwrap();
        let stale = gone.descriptor();
        drop(gone.into_vec().unwrap());
        let into = engine.expose(vec![0; MIB], Rights::WRITE).unwrap();
        let refused = engine.call(reversed, &peer, (stale, into.descriptor())).wait();
        assert!(refused.is_err(), "{url}: {refused:?}");
        assert!(into.into_vec().unwrap() == vec![0; MIB]);
    }
}

#[test]
fn a_killed_target_is_reported_and_its_successor_is_a_new_peer() {
    let _watchdog = Watchdog::start();
    for (url, routing, _) in &WAYS[..2] {
        let mut target = Target::start(url, routing);
        let engine = builder(routing).open(url).unwrap();
        let peer = engine.lookup(&target.address).unwrap();
        assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
        target.kill();
        let failed = engine.call(add, &peer, (1, 1)).wait();
        assert!(matches!(failed, Err(CallError::PeerGone { .. })), "{url}: {failed:?}");
        // The same address again.
        let (scheme, place) = target.address.split_once("://").unwrap();
        let again = format!("{scheme}://{}", place.trim_end_matches("/0"));
        let successor = Target::start(&again, routing);
        assert_eq!(successor.address, target.address);
        let peer = engine.lookup(&successor.address).unwrap();
        assert_eq!(engine.call(add, &peer, (2, 2)).wait().unwrap(), 4, "{url}");
    }
}

/// What libfabric's `shm` has in memory for a process.
fn memory_of(process: u32) -> Vec<std::ffi::OsString> {
    let own = format!("{process}:");
    let all = std::fs::read_dir("/dev/shm").unwrap().map(|it| it.unwrap().file_name());
    all.filter(|name| name.to_string_lossy().starts_with(&own)).collect()
}

#[test]
fn what_processes_leave_that_are_all_killed_is_removed_by_the_next_one() {
    let _watchdog = Watchdog::start();
    let mut targets = [Target::start("ofi+shm://", ""), Target::start("ofi+shm://", "")];
    for target in &mut targets {
        assert_eq!(memory_of(target.process.id()).len(), 1);
        target.kill();
    }
    let living = Target::start("ofi+shm://", "");
    for target in &targets {
        assert!(memory_of(target.process.id()).is_empty());
    }
    let engine = hg::open("ofi+shm://").unwrap();
    assert_eq!(memory_of(living.process.id()).len(), 1, "who lives keeps it");
    let peer = engine.lookup(&living.address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
}

#[test]
fn one_address_names_both_ways() {
    let _watchdog = Watchdog::start();
    let target = Target::start("ofi+tcp://127.0.0.1", "");
    assert!(target.address.starts_with("uid://"), "{}", target.address);
    let address: hg::Address = target.address.parse().unwrap();
    assert!(address.part("sm").is_some());
    // Whoever has no shared memory with it takes the network's part.
    let engine = builder("off").open("ofi+tcp://127.0.0.1").unwrap();
    let peer = engine.lookup(address.part("ofi+tcp").unwrap().as_str()).unwrap();
    assert_eq!(engine.call(add, &peer, (3, 4)).wait().unwrap(), 7);
    assert_eq!(engine.way_of(&peer), "ofi+tcp");
}

#[test]
fn what_is_missing_is_said_when_it_is_opened() {
    let error = hg::listen("ofi+cxi://").map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Missing { .. }) && error.to_string().contains("no provider `cxi`"),
        "{error}"
    );
}
