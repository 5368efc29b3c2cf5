//! What is measured: calls through the public facade, `#[hg::rpc]` and nothing private.
//!
//! | module     | what it is                                                       |
//! |------------|------------------------------------------------------------------|
//! | `target`   | a target in a process of its own                                 |
//! | `crowd`    | processes of peers that made one call each and are idle          |
//! | `call`     | the measurement: calls back to back, or several in flight        |
//! | `store`    | memory with known bytes, in this process or in the target        |
//! | `transfer` | the measurement of pulls, pushes and views                       |
//! | `bare`     | the kernel's transfers of the same buffers                       |
//! | `origin`   | calls as programs make them: awaited, or of several threads      |
//! | `probed`   | pulls of a handler while another thread asks for the lock        |
//! | `pulled`   | the measurement of calls whose target pulls the argument         |

pub(crate) mod bare;
pub(crate) mod call;
pub(crate) mod crowd;
pub(crate) mod origin;
pub(crate) mod probed;
pub(crate) mod pulled;
pub(crate) mod store;
pub(crate) mod target;
pub(crate) mod transfer;

use crate::error::Error;
use crate::given;
use crate::limits::beside::Way;
use crate::measure::Wait;

/// The 8-byte call: 8 bytes there and 8 bytes back.
#[hg::rpc]
pub(crate) fn echo(value: u64) -> u64 {
    value
}

/// The same call, to a handler that is polled once.
#[hg::rpc(implements = echo)]
pub(crate) async fn echo_async(value: u64) -> u64 {
    value
}

/// The call with a larger argument: how many bytes arrived.
#[hg::rpc]
pub(crate) fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// The call whose argument is seen where it lies: its first and last byte.
#[hg::rpc]
pub(crate) fn ends(memory: hg::bulk::Frozen) -> u64 {
    ends_of(&memory)
}

/// What [`ends`] answers.
pub(crate) fn ends_of(bytes: &[u8]) -> u64 {
    let end = |byte: Option<&u8>| byte.copied().map_or(0, u64::from);
    end(bytes.first()) << 8 | end(bytes.last())
}

/// Has the target register memory of its own.
#[hg::rpc]
pub(crate) fn own(layout: store::Layout) -> Result<Vec<store::Owned>, store::Refused>;

/// The call whose argument the target pulls: its first word.
#[hg::rpc]
pub(crate) fn pull_first(from: hg::bulk::Descriptor) -> Result<u64, store::Refused>;

/// The call whose handler pulls the argument again and again.
#[hg::rpc]
pub(crate) fn pulls(
    from: hg::bulk::Descriptor,
    plan: probed::Plan,
) -> Result<probed::Pulled, store::Refused>;

/// Blocks a thread of the target's pool for so many microseconds.
#[hg::rpc(blocking)]
pub(crate) fn nap(micros: u64) {
    std::thread::sleep(std::time::Duration::from_micros(micros));
}

/// A call that the target never answers.
#[hg::rpc]
pub(crate) fn hold() -> u64;

/// Sockets, on this machine.
pub(crate) const TCP: &str = "tcp://127.0.0.1:0";
/// Through a daemon.
pub(crate) const VISOR: &str = "visor://";

/// A builder for engines at this URL that wait as asked.
///
/// `tcp://`, `verbs://` and `ofi+...://` are networks here, also inside one node; routing's figures are those of `sm+tcp://`.
pub(crate) fn builder(url: &str, wait: Wait) -> hg::Builder {
    let builder = hg::builder().wait(match wait {
        Wait::Spin => hg::Wait::Spin,
        Wait::Adaptive => hg::Wait::default(),
        Wait::Block => hg::Wait::Block,
    });
    let builder = direct(url).iter().fold(builder, |it, (name, value)| it.setting(name, value));
    given::settings().iter().fold(builder, |it, (name, value)| it.setting(name, value))
}

/// The setting without which an engine at this URL would choose a way.
pub(crate) fn direct(url: &str) -> Option<(&'static str, &'static str)> {
    // Inside one node only: it has no other way.
    let local = ["sm", "ofi+shm"].contains(&scheme(url));
    let network = ["tcp", "verbs"].contains(&scheme(url)) || scheme(url).starts_with("ofi+");
    (network && !local).then_some(("routing", "off"))
}

/// The transport's name in a URL.
pub(crate) fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// By which transport a peer is reached: told once something was exchanged.
#[derive(Debug, Clone)]
pub(crate) struct Via {
    way: String,
    chosen: bool,
}

impl Via {
    /// Asks the engine.
    pub(crate) fn of(engine: &hg::Engine, peer: &hg::Peer, url: &str) -> Via {
        let way = engine.way_of(peer);
        Via { chosen: way != scheme(url), way }
    }

    /// The limits that its figures are held against.
    pub(crate) fn way(&self) -> Way {
        Way::of(&self.way)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.way
    }

    /// Its name for the key `via`: where the URL left a choice.
    pub(crate) fn key(&self) -> Option<String> {
        self.chosen.then(|| self.way.clone())
    }
}

/// An engine that only calls; the thread in `wait` makes its progress.
pub(crate) fn origin(url: &str, wait: Wait) -> Result<hg::Engine, Error> {
    Ok(builder(url, wait).progress(hg::Progress::Own).open(url)?)
}

/// Calls `echo` once and checks the answer.
pub(crate) fn call_once(engine: &hg::Engine, peer: &hg::Peer, value: u64) -> Result<(), Error> {
    let got = engine.call(echo, peer, (value,)).wait()?;
    call::check(value, got)
}
