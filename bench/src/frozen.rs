//! `hg-perf frozen`: calls with frozen memory among their arguments, beside the 8-byte call.
//!
//! | figure             | what it is                                                                            |
//! |--------------------|---------------------------------------------------------------------------------------|
//! | `call`             | 8 bytes there and 8 bytes back                                                        |
//! | `call_with_frozen` | the same with memory of `bulk::alloc`, frozen: the handler looks at its ends. Inside a node at the bytes where they lie, over a network at a copy |

use std::rc::Rc;

use hg::bulk::Frozen;

use crate::error::Error;
use crate::measure::{Measure, Memory, Subject, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD, check};
use crate::product::target::Target;
use crate::product::{Via, call_once, ends, ends_of, origin};
use crate::report;
use crate::turns::Turns;

/// `hg-perf frozen`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// Bytes of frozen memory.
    #[arg(long, value_delimiter = ',', default_value = "4096,1048576,16777216")]
    sizes: Vec<usize>,
    /// Calls of one repetition.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let (url, wait) = (&arguments.url, arguments.wait);
    let target = Rc::new(Target::start(url, wait, cores)?);
    let shape = |size| Shape { url: url.clone(), size, inflight: 1, wait, peers: 1 };
    let mut turns = Turns::default();
    let plain = turns.add(Caller::connect(shape(WORD), &target)?);
    turns.line(move |taken| taken.figure(plain));
    for &size in &arguments.sizes {
        let lender = Lender::connect(shape(size), arguments.calls, &target)?;
        let lender = turns.add(lender);
        turns.line(move |taken| taken.beside(lender, plain));
    }
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// An origin whose memory is seen.
struct Lender {
    shape: Shape,
    calls: u32,
    target: Rc<Target>,
    engine: hg::Engine,
    peer: hg::Peer,
    via: Via,
    memory: Frozen,
}

impl Lender {
    fn connect(shape: Shape, calls: u32, target: &Rc<Target>) -> Result<Self, Error> {
        let engine = origin(&shape.url, shape.wait)?;
        let peer = engine.lookup(target.address())?;
        target.running(|| call_once(&engine, &peer, 1))?;
        let via = Via::of(&engine, &peer, &shape.url);
        let mut memory = hg::bulk::alloc(shape.size)?;
        memory.fill(FILL);
        let memory = memory.freeze()?;
        Ok(Self { shape, calls, target: Rc::clone(target), engine, peer, via, memory })
    }

    fn calls(&self, count: u32) -> Result<(), Error> {
        let expected = ends_of(&self.memory);
        (0..count).try_for_each(|_| {
            let call = self.engine.call(ends, &self.peer, (self.memory.clone(),));
            check(expected, call.wait()?)
        })
    }
}

impl Measure for Lender {
    fn subject(&self) -> Subject {
        let memory = Some(Memory::Shared);
        let figure = "call_with_frozen".into();
        Subject { figure, via: self.via.key(), memory, ..self.shape.subject() }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let warm_up = self.calls.div_ceil(5);
        let seconds = self.target.timed(|| self.calls(warm_up), || self.calls(self.calls))?;
        Ok(self.shape.figure(u64::from(self.calls), seconds))
    }
}

/// What is in the memory.
const FILL: u8 = 7;
