//! What is measured: calls through the public facade, `#[hg::rpc]` and nothing private.
//!
//! | module   | what it is                                                        |
//! |----------|-------------------------------------------------------------------|
//! | `target` | a target in a process of its own                                  |
//! | `crowd`  | processes of peers that made one call each and are idle           |
//! | `call`   | the measurement: calls back to back, or several in flight         |

pub(crate) mod call;
pub(crate) mod crowd;
pub(crate) mod target;

use crate::error::Error;
use crate::measure::Wait;

/// The 8-byte call: 8 bytes there and 8 bytes back.
#[hg::rpc]
pub(crate) fn echo(value: u64) -> u64 {
    value
}

/// The call with a larger argument: how many bytes arrived.
#[hg::rpc]
pub(crate) fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

/// A call that the target never answers.
#[hg::rpc]
pub(crate) fn hold() -> u64;

/// A builder that waits as asked.
pub(crate) fn builder(wait: Wait) -> hg::Builder {
    hg::Engine::builder().wait(match wait {
        Wait::Spin => hg::Wait::Spin,
        Wait::Adaptive => hg::Wait::default(),
        Wait::Block => hg::Wait::Block,
    })
}

/// An engine that only calls; the thread in `wait` makes its progress.
pub(crate) fn origin(url: &str, wait: Wait) -> Result<hg::Engine, Error> {
    Ok(builder(wait).progress(hg::Progress::Own).open(url)?)
}

/// Calls `echo` once and checks the answer.
pub(crate) fn call_once(engine: &hg::Handle, peer: &hg::Peer, value: u64) -> Result<(), Error> {
    let got = engine.call(echo, peer, (value,)).wait()?;
    call::check(value, got)
}
