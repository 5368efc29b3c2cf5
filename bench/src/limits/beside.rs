//! Which limit a figure of the product is held against.
//!
//! | what                            | by shared memory        | by TCP                                   |
//! |---------------------------------|-------------------------|------------------------------------------|
//! | a call, one in flight, spinning | `cache_line_round_trip` | `tcp_round_trip`, spinning               |
//! | the same, blocking              | `eventfd_round_trip`    | `tcp_round_trip`, blocking               |
//! | several calls in flight         | `ring_rate`             | `tcp_round_trip`, as round trips a second |
//!
//! Over libfabric it is `fi_pingpong` of the same provider in every mode, which spins.
//! Adaptive waiting is held against the spinning limit.

use super::fi_pingpong::Pingpong;
use super::{cache_line, eventfd, ring, stream};
use crate::error::Error;
use crate::measure::{Measure, Unit, Wait};
use crate::pair::Cores;

/// What carries a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Memory that both processes map.
    SharedMemory,
    /// TCP over the loopback.
    Tcp,
    /// A provider of libfabric's, as `fi_pingpong` names it.
    Fabric(&'static str),
}

impl Way {
    /// Told by the transport's name in a URL.
    pub(crate) fn of(scheme: &str) -> Way {
        match scheme {
            "tcp" => Way::Tcp,
            "ofi+tcp" => Way::Fabric("tcp;ofi_rxm"),
            "ofi+shm" => Way::Fabric("shm"),
            "ofi+verbs" => Way::Fabric("verbs;ofi_rxm"),
            _ => Way::SharedMemory,
        }
    }
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
        (Way::Fabric(provider), 1, _) => {
            Box::new(Pingpong::round_trip(cores, provider, Unit::Microseconds))
        }
        (Way::Fabric(provider), ..) => {
            Box::new(Pingpong::round_trip(cores, provider, Unit::PerSecond))
        }
        (Way::SharedMemory, 1, Wait::Block) => Box::new(eventfd::Pair::start(cores)?),
        (Way::SharedMemory, 1, _) => {
            Box::new(cache_line::Pair::start(cores, cache_line::Payload::Word)?)
        }
        (Way::SharedMemory, ..) => Box::new(ring::Pair::start(cores, inflight)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_told_by_their_scheme() {
        assert_eq!((Way::of("sm"), Way::of("tcp")), (Way::SharedMemory, Way::Tcp));
        assert_eq!(Way::of("ofi+shm"), Way::Fabric("shm"));
    }
}
