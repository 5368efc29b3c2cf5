//! `hg-perf bandwidth`: transfers, each figure measured in turns with the limit beside it.
//!
//! | what                     | limit beside it                                                               |
//! |--------------------------|-------------------------------------------------------------------------------|
//! | `sm`, heap memory        | `cma` of the same direction and size, between the same buffers                |
//! |                          | a push: a further line has `cma` after a question for the peer's life, each   |
//! | `sm`, shared memory      | `memcpy` of the same; hot, a further line stands beside `cma`                 |
//! | `sm`, `--deny-cma`       | `memcpy` of the same                                                          |
//! | `tcp`                    | `tcp_stream`: one bare connection, messages of that size                      |
//! | `ofi+PROVIDER`           | `fi_pingpong`: libfabric's own program, messages of that size                 |
//! | `--op view`              | as for a pull; a further line has the time of a view                          |
//! | `--with-call`, heap      | `cma_and_call`: an 8-byte call and a bare `cma`, one after the other, both    |
//! |                          | with the same number in flight                                                |
//! | `--with-call`, the rest  | `call`: the 8-byte call with the same number in flight; for bytes in the      |
//! |                          | descriptor a further line has `handover_rate`, another the ratio to it        |
//!
//! `ratio` is that of the two medians; `..._to_...` is the median of the ratios, round by round, which other
//! load that comes and goes disturbs less.

use std::rc::Rc;

use crate::error::Error;
use crate::limits::beside::Way;
use crate::limits::cma::{self, Remote};
use crate::limits::fi_pingpong::Pingpong;
use crate::limits::memory::{self, Arena};
use crate::limits::{handover, memcpy, tcp_stream};
use crate::measure::{Caches, Measure, Memory, Op, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{self, WORD};
use crate::product::pulled;
use crate::product::store::to_usize;
use crate::product::target::Target;
use crate::product::transfer::{Mover, Shape};
use crate::raw::denied;
use crate::report;
use crate::turns::{Turns, derived};

/// `hg-perf bandwidth`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// What is done with the target's memory.
    #[arg(long, value_enum, default_value = "pull")]
    op: Op,
    /// Bytes of a transfer.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=MAX_SIZE))]
    size: u64,
    /// Transfers in flight, each with buffers of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// Where the bytes lie at their owner; `eager` only with `--with-call`.
    #[arg(long, value_enum, default_value = "heap")]
    memory: Memory,
    /// Pieces of memory that a transfer consists of, on both sides.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    segments: u64,
    /// The same buffers again and again, or rotating over 512 MiB.
    #[arg(long, value_enum, default_value = "hot")]
    caches: Caches,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// Calls instead, whose target pulls the bytes before it answers.
    #[arg(long)]
    with_call: bool,
    /// Both sides run under a filter that denies `process_vm_readv` and `process_vm_writev`, as a container's.
    #[arg(long)]
    deny_cma: bool,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    arguments.check()?;
    if arguments.deny_cma {
        // Before the target is started: it inherits the filter.
        denied::deny_cma()?;
    }
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let target = Rc::new(Target::start(&arguments.url, arguments.wait, cores)?);
    let turns = if arguments.with_call {
        arguments.calls(cores, &target)?
    } else {
        arguments.transfers(cores, &target)?
    };
    report::print(json, &turns.take(arguments.repetitions)?)
}

impl Arguments {
    /// What the parts of the command line do not allow together.
    fn check(&self) -> Result<(), Error> {
        let impossible = |why: &str| Err(Error::Impossible(why.to_owned()));
        if self.memory == Memory::Eager && !self.with_call {
            return impossible("bytes in a descriptor are moved by a call: add --with-call");
        }
        if self.with_call && (self.op, self.segments) != (Op::Pull, 1) {
            return impossible("--with-call pulls one segment");
        }
        if self.with_call && self.caches == Caches::Cold {
            return impossible("--with-call is measured with hot caches");
        }
        if self.memory == Memory::Shared && self.segments > 1 {
            return impossible("shared memory is one segment");
        }
        if self.caches == Caches::Cold && self.segments > 1 && self.size < COLD_PIECES_FROM {
            return impossible("cold transfers of several segments begin at 64 KiB");
        }
        Ok(())
    }

    fn transfers(&self, cores: Cores, target: &Rc<Target>) -> Result<Turns, Error> {
        let shape = Shape {
            url: self.url.clone(),
            op: self.op,
            memory: self.memory,
            segments: self.segments,
            caches: self.caches,
            size: self.size,
            inflight: self.inflight,
            wait: self.wait,
        };
        let mover = Mover::connect(shape, target)?;
        let mut turns = Turns::default();
        let way = mover.via().way();
        let by_kernel = self.memory == Memory::Heap && self.by_cma(way);
        let limit = match mover.bare() {
            Some(bare) if by_kernel => turns.add(bare),
            _ => turns.add_boxed(self.limit(cores, way)?),
        };
        let asking = match mover.bare() {
            Some(bare) if by_kernel && self.op == Op::Push => Some(turns.add(bare.asking()?)),
            _ => None,
        };
        let moved = turns.add(mover);
        turns.line(move |taken| taken.beside(moved, limit));
        if let Some(asking) = asking {
            turns.line(move |taken| taken.beside(moved, asking));
            turns.ratio_line("bandwidth_to_cma_with_question", moved, asking);
        }
        let (shared, copied) = (self.memory == Memory::Shared, self.op != Op::View);
        if shared && copied && self.caches == Caches::Hot && self.by_cma(way) {
            let heap = turns.add_boxed(self.cma(cores)?);
            turns.line(move |taken| taken.beside(moved, heap));
            turns.ratio_line("bandwidth_to_cma", moved, heap);
        }
        if self.op == Op::View {
            let size = self.size as f64 / f64::from(1 << 20);
            turns.line(move |taken| {
                let subject = Subject { figure: "view".into(), ..taken.subject(moved) };
                let subject = Subject { unit: Unit::Microseconds, ..subject };
                derived(subject, taken.values(moved).iter().map(|rate| size / rate * 1e6))
            });
        }
        turns.ratio_line("bandwidth_to_limit", moved, limit);
        Ok(turns)
    }

    /// Whether the kernel could move the bytes of this transfer.
    fn by_cma(&self, way: Way) -> bool {
        way == Way::SharedMemory && !self.deny_cma
    }

    /// The kernel's transfer of the same bytes.
    fn cma(&self, cores: Cores) -> Result<Box<dyn Measure>, Error> {
        let (size, buffers) = (to_usize(self.size), self.inflight as usize);
        let op = if self.op == Op::Push { Op::Push } else { Op::Pull };
        Ok(match self.caches {
            Caches::Hot => {
                let remote = Remote::start(cores, size * buffers)?;
                Box::new(cma::Transfer::hot(op, size, buffers, &remote))
            }
            Caches::Cold => {
                let remote = Remote::start(cores, memory::COLD_BYTES)?;
                Box::new(cma::Transfer::cold(op, size, &remote, &Arena::cold()))
            }
        })
    }

    /// What the transfer is held against.
    fn limit(&self, cores: Cores, way: Way) -> Result<Box<dyn Measure>, Error> {
        let (size, buffers) = (to_usize(self.size), self.inflight as usize);
        let op = if self.op == Op::Push { Op::Push } else { Op::Pull };
        Ok(match (way, self.memory, self.caches) {
            (Way::Fabric(provider), ..) => Box::new(Pingpong::bandwidth(cores, provider, size)),
            (Way::Tcp, ..) => Box::new(tcp_stream::Stream::start(cores, op, size)?),
            (_, Memory::Heap, _) if self.by_cma(way) => self.cma(cores)?,
            (_, _, Caches::Hot) => Box::new(memcpy::Copy::hot(size, buffers)),
            (_, _, Caches::Cold) => {
                Box::new(memcpy::Copy::cold(size, &Arena::cold(), &Arena::cold()))
            }
        })
    }

    fn calls(&self, cores: Cores, target: &Rc<Target>) -> Result<Turns, Error> {
        let (url, inflight, wait) = (self.url.clone(), self.inflight, self.wait);
        let size = to_usize(self.size);
        let shape = call::Shape { url, size, inflight, wait, peers: 1 };
        let word = call::Shape { size: WORD, ..shape.clone() };
        let word = call::Caller::connect(word, target)?;
        let pulled = pulled::Caller::connect(shape, self.memory, target)?;
        let way = word.via().way();
        let by_cma = self.memory == Memory::Heap && self.by_cma(way);
        let mut turns = Turns::default();
        let word = turns.add(word);
        let pulled = turns.add(pulled);
        if !by_cma {
            turns.line(move |taken| taken.beside(pulled, word));
            turns.line(move |taken| taken.figure(word));
            if self.memory == Memory::Eager && way == Way::SharedMemory {
                let bare = turns.add(handover::Pair::start(cores, size, inflight)?);
                turns.line(move |taken| taken.figure(bare));
                turns.ratio_line(TO_HANDOVER, pulled, bare);
            }
            return Ok(turns);
        }
        let buffers = inflight as usize;
        let remote = Remote::start(cores, size * buffers)?;
        let bare = cma::Transfer::hot(Op::Pull, size, buffers, &remote);
        let bare = turns.add(bare.counted(inflight.into()));
        turns.line(move |taken| {
            let subject = Subject { figure: "cma_and_call".into(), ..taken.subject(pulled) };
            let values = taken.values(bare).iter().zip(taken.values(word));
            // With one in flight a call is a time, with more it is a rate.
            let limit = derived(
                subject,
                values.map(|(bare, word)| match inflight {
                    1 => 1e6 / bare + word,
                    _ => 1.0 / (1.0 / bare + 1.0 / word),
                }),
            );
            taken.figure(pulled).beside(&limit)
        });
        turns.line(move |taken| taken.figure(word));
        turns.line(move |taken| taken.figure(bare));
        Ok(turns)
    }
}

/// Calls with the bytes in their descriptor, beside such bytes bare.
pub(crate) const TO_HANDOVER: &str = "call_with_pull_to_handover";

/// The largest transfer: cold memory holds two.
const MAX_SIZE: u64 = (memory::COLD_BYTES / 2) as u64;
/// Below this, every buffer registered for itself would be too many.
const COLD_PIECES_FROM: u64 = 64 << 10;
