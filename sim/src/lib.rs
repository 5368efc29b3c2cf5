//! A simulation that searches: engines of several processes on a simulated transport, with a virtual clock, from a seed.
//!
//! ```text
//! cargo run --release -p sim -- --seeds 1000000 [--from N]      # many, on all cores; one that fails is made shorter and printed
//! cargo run --release -p sim -- --seed N [--trace]              # one story
//! cargo run --release -p sim -- --seeds 300 --planted lost-wake-up  # with a fault that is to be found: see [`Planted`]
//! cargo run -p sim -- --real sm --seeds 1000 [--from N]         # the same with real processes, over sm or tcp: see `real`
//! ```
//!
//! A [`story::Story`] is drawn from the seed before anything runs: processes and their settings, how the transport behaves, and
//! some 300 events with their times. Then it is run ([`run()`]), and judged by the checks of [`judge`]. One that fails is
//! made shorter ([`shrink()`]) and printed. The same seed gives the same run, to the byte of its trace.
//!
//! # What is real, and what is not
//! hg-core, hg-bulk and hg-engine are the real ones, with all their threads: callers that wait or follow, the background
//! thread, loops of users, handlers of all kinds. A thread is a coroutine here, of which one runs at a time; it is interrupted
//! where it parks, sleeps on the transport or relaxes in a polling loop (`platform`, `world`). In three of eight stories it is
//! interrupted at hg-engine's locks, too, before it takes one and while it has it, and wherever it asks its platform or its transport
//! for something: at one of 4, 32 or 256 such places ([`Interrupts`]). Time is a number, which goes on a little with each turn,
//! and to the next timer when nobody can run.
//!
//! The transport is simulated ([`net`]): credits, queues, delays, admission, dying peers and rights are those of `na`'s
//! contract, with small limits.
//!
//! A foreign event loop has descriptors of the machine, which nobody waits for: it sleeps until the transport or the timer would have
//! written to one of them (that it watches both: `tests/system/calls.rs`).
//!
//! Not simulated: two threads that run at the same instant (orderings of atomics do not matter: loom is for those; between two
//! atomics without one of the places above nobody is interrupted), and whatever the real transports do between the sentences of the contract. Nor
//! forked children: one has its parent's memory and none of its threads, which coroutines that share a heap cannot have.
//!
//! # A killed process
//! Its endpoints are cut off at once: what it had sent arrives, its peers are told, and nothing that it does has an effect
//! any more. Its threads run out: its engine is closed, and no wait of theirs lasts.

#![deny(unsafe_code)]

mod caller;
#[expect(unsafe_code, reason = "a coroutine finds from below what it was started with")]
mod coroutine;
mod drive;
mod ended;
mod events;
mod interrupts;
pub mod judge;
pub mod net;
mod platform;
mod random;
pub mod real;
mod rpcs;
mod run;
mod serve;
mod shrink;
mod simulated;
mod stage;
mod state;
pub mod story;
mod trace;
mod watch;
mod world;

pub use interrupts::Interrupts;
pub use net::{Planted, Simulation};
pub use random::Random;
pub use rpcs::Kind;
pub use run::{Report, run};
pub use shrink::{check_of, shrink};
pub use state::{Checks, Judged};
pub use trace::{Trace, Tracing};
