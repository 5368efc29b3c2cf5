//! Which limit a figure of the product is held against.
//!
//! | what                            | by shared memory        | by TCP                                   |
//! |---------------------------------|-------------------------|------------------------------------------|
//! | a call, one in flight, spinning | `cache_line_round_trip` | `tcp_round_trip`, spinning               |
//! | the same, blocking              | `eventfd_round_trip`    | `tcp_round_trip`, blocking               |
//! | several calls in flight         | `ring_rate`             | `tcp_round_trip`, as round trips a second |
//!
//! Adaptive waiting is held against the spinning limit.

use super::{cache_line, eventfd, ring, stream};
use crate::error::Error;
use crate::measure::{Measure, Wait};
use crate::pair::Cores;

/// What carries a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Memory that both processes map.
    SharedMemory,
    /// TCP over the loopback.
    Tcp,
}

/// The limit beside a call with `inflight` of them under way.
pub(crate) fn call(
    cores: Cores,
    way: Way,
    wait: Wait,
    inflight: u32,
) -> Result<Box<dyn Measure>, Error> {
    let bare = if wait == Wait::Block { Wait::Block } else { Wait::Spin };
    Ok(match (way, inflight, bare) {
        (Way::Tcp, 1, _) => Box::new(stream::Pair::tcp(cores, bare)?),
        (Way::Tcp, ..) => Box::new(stream::Pair::tcp(cores, bare)?.counted()),
        (Way::SharedMemory, 1, Wait::Block) => Box::new(eventfd::Pair::start(cores)?),
        (Way::SharedMemory, 1, _) => {
            Box::new(cache_line::Pair::start(cores, cache_line::Payload::Word)?)
        }
        (Way::SharedMemory, ..) => Box::new(ring::Pair::start(cores, inflight)?),
    })
}
