//! A process that serves calls and bulk data over a network, and what is asked of it. It stands alone: tests of several transports take it in
//! by `#[path]`.
//!
//! The process is the test binary again, by the test `a_process_of_its_own`, with a URL in its environment.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use hg::{
    CallError, Engine, Peer, Request,
    bulk::{Descriptor, Rights},
};

const URL: &str = "HG_TEST_URL";
const ROUTING: &str = "HG_TEST_ROUTING";
const MARK: &str = "@ ";
pub(crate) const MIB: usize = 1 << 20;

#[hg::rpc]
pub(crate) fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[hg::rpc]
pub(crate) fn echo(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

#[hg::rpc]
pub(crate) async fn reversed(
    request: &Request,
    from: Descriptor,
    into: Descriptor,
) -> Result<u64, String> {
    let (engine, origin) = (request.engine(), request.origin());
    let mut bytes = engine.fetch(&origin, &from).await.map_err(|error| error.to_string())?;
    bytes.reverse();
    let own = engine.expose(bytes, Rights::empty()).map_err(|error| error.to_string())?;
    engine.push(&origin, &own, into).await.map_err(|error| error.to_string())?;
    Ok(own.len())
}

pub(crate) fn builder(routing: &str) -> hg::Builder {
    match routing {
        "" => hg::builder(),
        value => hg::builder().setting("routing", value),
    }
}

/// A process that serves; killed when dropped.
pub(crate) struct Target {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Target {
    pub(crate) fn start(url: &str, routing: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "target::a_process_of_its_own", "--nocapture", "--test-threads", "1"])
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

    pub(crate) fn kill(&mut self) {
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

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
}

/// Memory is reversed by pulls and pushes, and a descriptor of what was unregistered moves nothing. `url` is for what fails.
pub(crate) fn assert_moves(engine: &Engine, peer: &Peer, lens: &[usize], url: &str) {
    for len in lens.iter().copied() {
        let mut bytes = pattern(len);
        let from = engine.expose(bytes.clone(), Rights::READ).unwrap();
        let into = engine.expose(vec![0; len], Rights::WRITE).unwrap();
        let call = engine.call(reversed, peer, (from.bound_descriptor(), into.descriptor()));
        assert_eq!(call.wait().unwrap(), len as u64, "{url}");
        bytes.reverse();
        assert!(into.into_vec().unwrap() == bytes, "{url}: {len} bytes");
    }
    let gone = engine.expose(pattern(MIB), Rights::READ).unwrap();
    let stale = gone.descriptor();
    drop(gone.into_vec().unwrap());
    let into = engine.expose(vec![0; MIB], Rights::WRITE).unwrap();
    let refused = engine.call(reversed, peer, (stale, into.descriptor())).wait();
    assert!(refused.is_err(), "{url}: {refused:?}");
    assert!(into.into_vec().unwrap() == vec![0; MIB]);
}

/// A target that is killed is gone, and another one at its address, which opening `url` anew gives it, is a new peer.
pub(crate) fn assert_succeeded(engine: &Engine, mut target: Target, again: &str, routing: &str) {
    let peer = engine.lookup(&target.address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
    target.kill();
    let failed = engine.call(add, &peer, (1, 1)).wait();
    assert!(matches!(failed, Err(CallError::PeerGone { .. })), "{again}: {failed:?}");
    let successor = Target::start(again, routing);
    assert_eq!(successor.address, target.address);
    let peer = engine.lookup(&successor.address).unwrap();
    assert_eq!(engine.call(add, &peer, (2, 2)).wait().unwrap(), 4, "{again}");
}

/// Calls come back, and an argument of so many bytes.
pub(crate) fn assert_answers(engine: &Engine, peer: &Peer, large: &[u8], url: &str) {
    for number in 0..100 {
        assert_eq!(engine.call(add, peer, (number, 1)).wait().unwrap(), number + 1);
    }
    assert!(engine.call(echo, peer, (large,)).wait().unwrap() == large, "{url}");
}
