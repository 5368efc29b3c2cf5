//! The transports that tests run over: URLs, some with a word in front for what an engine is told besides.
//!
//! | word | engine |
//! |---|---|
//! | `denied` | keeps from reaching into the memory of others; module `denied` has the system forbid it |
//! | `plain` | is not reached by shared memory inside the node |
//! | `sealed` | the same, and has a key (feature `tcp-key`) |
//!
//! Without a word, `tcp` is routed: its engines take shared memory inside the node. Over libfabric ([`bulk_urls`]) transfers
//! are tested, and arguments that travel by them; calls are in `tests/ofi` and the conformance suite.

use hg::{Builder, Engine, Error, Wait};

use crate::common::Witness;

const URLS: &[&str] = &[
    "sm://",
    "denied+sm://",
    #[cfg(feature = "tcp")]
    PLAIN_TCP,
    #[cfg(feature = "tcp-key")]
    "sealed+tcp://127.0.0.1:0",
    #[cfg(feature = "sm-routing")]
    "tcp://127.0.0.1:0",
];

/// libfabric, between processes and inside a machine.
const LIBFABRIC: &[&str] =
    if cfg!(feature = "ofi") { &["plain+ofi+tcp://127.0.0.1", "ofi+shm://"] } else { &[] };

/// Sockets, whatever else there is.
#[cfg(feature = "tcp")]
pub(crate) const PLAIN_TCP: &str = "plain+tcp://127.0.0.1:0";

/// One after the other; a test that fails says over which.
pub(crate) fn urls() -> impl Iterator<Item = &'static str> {
    told(URLS)
}

/// The same, and libfabric's.
pub(crate) fn bulk_urls() -> impl Iterator<Item = &'static str> {
    urls().chain(told(LIBFABRIC))
}

#[expect(clippy::print_stderr, reason = "shown for tests that fail")]
fn told(urls: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    urls.iter().copied().inspect(|url| eprintln!("over {url}"))
}

/// Opens an engine over one of [`urls`], or any other URL.
pub(crate) fn open_over(builder: Builder, url: &str) -> Result<Engine, Error> {
    if let Some(url) = url.strip_prefix("denied+") {
        return builder.setting("cma", "off").open(url);
    }
    if let Some(url) = url.strip_prefix("plain+") {
        return unrouted(builder).open(url);
    }
    #[cfg(feature = "tcp-key")]
    if let Some(url) = url.strip_prefix("sealed+") {
        return unrouted(builder).setting("key-file", &key_file()).open(url);
    }
    builder.open(url)
}

fn unrouted(builder: Builder) -> Builder {
    if cfg!(feature = "sm-routing") { builder.setting("routing", "off") } else { builder }
}

/// The name of a file with a key, the same for all processes.
#[cfg(feature = "tcp-key")]
fn key_file() -> String {
    use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path, sync::OnceLock};
    static NAME: OnceLock<String> = OnceLock::new();
    let make = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let own = folder.join(format!("key-{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&own).expect("a file can be made");
        file.write_all(KEY.as_bytes()).expect("a file can be written");
        // At once in its place, where other processes may be reading the same.
        let shared = folder.join("key");
        fs::rename(&own, &shared).expect("a file can be renamed");
        shared.to_str().expect("a path of UTF-8").to_owned()
    };
    NAME.get_or_init(make).clone()
}

/// What is in it.
#[cfg(feature = "tcp-key")]
const KEY: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

/// A witness of a target that is reached by one of [`urls`].
pub(crate) fn witness_over(url: &str, address: &str) -> Witness {
    let engine = open_over(hg::builder().wait(Wait::Block), url);
    Witness::with(engine.expect("this process can open an engine"), address)
}
