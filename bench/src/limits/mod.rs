//! What this machine allows: the figures that every other figure is held against.
//!
//! | figure                  | what it is                                                    | module       |
//! |-------------------------|---------------------------------------------------------------|--------------|
//! | `cache_line_round_trip` | a line to another core and one back, spinning                 | `cache_line` |
//! | `ring_rate`             | requests and answers through a bare ring of lines, pipelined  | `ring`       |
//! | `handover_rate`         | the same with 4 KiB beside each request, copied in and out    | `handover`   |
//! | `eventfd_round_trip`    | two wake-ups through eventfd and epoll                        | `eventfd`    |
//! | `futex_round_trip`      | two wake-ups through futex                                    | `futex`      |
//! | `unix_round_trip`       | 8 bytes there and back through a socket pair                  | `stream`     |
//! | `tcp_round_trip`        | the same through TCP on the loopback                          | `stream`     |
//! | `tcp_stream`            | 1 MiB messages, one process sending, one receiving            | `tcp_stream` |
//! | `memcpy`                | a copy inside one process                                     | `memcpy`     |
//! | `cma`                   | `process_vm_readv` (pull) and `writev` (push)                 | `cma`        |
//! | `fi_pingpong`           | libfabric's own program, beside figures over libfabric only   | `fi_pingpong` |
//!
//! Hot: the same buffers again and again, not rewritten in between. Cold: rotating over
//! [`memory::COLD_BYTES`]. Each is a [`Measure`], so that any other measurement can be taken in
//! turns with the limit beside it.

pub(crate) mod beside;
pub(crate) mod cache_line;
pub(crate) mod cma;
pub(crate) mod eventfd;
pub(crate) mod fi_pingpong;
pub(crate) mod futex;
pub(crate) mod handover;
pub(crate) mod memcpy;
pub(crate) mod memory;
pub(crate) mod ring;
mod round_trips;
mod spin;
pub(crate) mod stream;
pub(crate) mod tcp_stream;

use crate::error::Error;
use crate::measure::{Measure, Op, Wait};
use crate::pair::{Control, Cores};

use cma::Remote;
use memory::Arena;

/// What a second process is for; the names are those of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Answers in [`cache_line`].
    CacheLine,
    /// Answers in [`ring`].
    Ring,
    /// Reads in [`handover`].
    Handover,
    /// Answers in [`eventfd`].
    Eventfd,
    /// Answers in [`futex`].
    Futex,
    /// Answers in [`stream`].
    Stream,
    /// Receives or sends in [`tcp_stream`].
    TcpStream,
    /// Owns the memory of [`cma`].
    Memory,
    /// Receives the blocks of [`crate::invoke`].
    Blocks,
}

/// The second process: answers until its parent is gone.
pub(crate) fn serve(role: Role, control: Control) -> Result<(), Error> {
    match role {
        Role::CacheLine => cache_line::serve(control),
        Role::Ring => ring::serve(control),
        Role::Handover => handover::serve(control),
        Role::Eventfd => eventfd::serve(control),
        Role::Futex => futex::serve(control),
        Role::Stream => stream::serve(control),
        Role::TcpStream => tcp_stream::serve(control),
        Role::Memory => cma::serve(control),
        Role::Blocks => crate::invoke::serve_blocks(control),
    }
}

/// Every limit of `hg-perf limits`, in the order of its table; `cold` costs 1.5 GiB of memory.
pub(crate) fn all(cores: Cores, cold: bool) -> Result<Vec<Box<dyn Measure>>, Error> {
    let mut all: Vec<Box<dyn Measure>> = vec![
        Box::new(cache_line::Pair::start(cores, cache_line::Payload::Word)?),
        Box::new(cache_line::Pair::start(cores, cache_line::Payload::Line)?),
        Box::new(ring::Pair::start(cores, INFLIGHT)?),
        Box::new(handover::Pair::start(cores, BANDWIDTH_SIZES[0], INFLIGHT)?),
        Box::new(eventfd::Pair::start(cores)?),
        Box::new(futex::Pair::start(cores)?),
        Box::new(stream::Pair::unix(cores, Wait::Spin)?),
        Box::new(stream::Pair::unix(cores, Wait::Block)?),
        Box::new(stream::Pair::tcp(cores, Wait::Spin)?),
        Box::new(stream::Pair::tcp(cores, Wait::Block)?),
        Box::new(tcp_stream::Stream::start(cores, Op::Push, STREAM_BYTES)?),
    ];
    for size in BANDWIDTH_SIZES {
        all.push(Box::new(memcpy::Copy::hot(size, 1)));
    }
    let remote = Remote::start(cores, Arena::HOT_BYTES)?;
    for op in [Op::Pull, Op::Push] {
        for size in BANDWIDTH_SIZES {
            all.push(Box::new(cma::Transfer::hot(op, size, 1, &remote)));
        }
    }
    let few = cma::Transfer::hot(Op::Pull, BANDWIDTH_SIZES[0], INFLIGHT as usize, &remote);
    all.push(Box::new(few.counted(INFLIGHT.into())));
    if cold {
        let (from, to) = (Arena::cold(), Arena::cold());
        for size in BANDWIDTH_SIZES {
            all.push(Box::new(memcpy::Copy::cold(size, &from, &to)));
        }
        let remote = Remote::start(cores, memory::COLD_BYTES)?;
        for op in [Op::Pull, Op::Push] {
            for size in BANDWIDTH_SIZES {
                all.push(Box::new(cma::Transfer::cold(op, size, &remote, &to)));
            }
        }
    }
    Ok(all)
}

/// Where the two cores of a run are to each other, told by the cache line between them.
///
/// Virtual machines move their cores: each run states its own. Known round trips are 0.13 us
/// (near), 0.28 us (between) and 0.47 us (far).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The two share the cache that a line travels through first.
    Near,
    /// Neither near nor far.
    Between,
    /// A line travels through the last-level cache or further.
    Far,
    /// There is one core for both: no figure of two spinning processes means anything.
    OneCore,
}

impl Placement {
    /// Told by the median of `cache_line_round_trip`.
    pub(crate) fn of(cores: Cores, round_trip_us: f64) -> Placement {
        match round_trip_us {
            _ if !cores.are_two() => Placement::OneCore,
            us if us < NEAR_BELOW_US => Placement::Near,
            us if us < FAR_FROM_US => Placement::Between,
            _ => Placement::Far,
        }
    }

    /// How it is written.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Placement::Near => "near",
            Placement::Between => "between",
            Placement::Far => "far",
            Placement::OneCore => "one-core",
        }
    }
}

/// Halfway, in proportion, between the round trips of [`Placement`].
const NEAR_BELOW_US: f64 = 0.19;
const FAR_FROM_US: f64 = 0.36;

/// Sizes of the bandwidth figures.
pub(crate) const BANDWIDTH_SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Messages of the stream.
const STREAM_BYTES: usize = 1 << 20;

/// Requests in flight, where there are several.
const INFLIGHT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_round_trips_tell_their_placement() {
        let two = Cores { origin: Some(0), target: Some(1) };
        assert_eq!(Placement::of(two, 0.13), Placement::Near);
        assert_eq!(Placement::of(two, 0.28), Placement::Between);
        assert_eq!(Placement::of(two, 0.47), Placement::Far);
        assert_eq!(Placement::of(Cores::default(), 0.13), Placement::OneCore);
    }

    #[test]
    fn every_role_is_known_to_the_command_line() {
        let roles = [
            "cache-line",
            "ring",
            "handover",
            "eventfd",
            "futex",
            "stream",
            "tcp-stream",
            "memory",
            "blocks",
        ];
        for role in roles {
            assert!(<Role as clap::ValueEnum>::from_str(role, false).is_ok(), "{role}");
        }
    }
}
