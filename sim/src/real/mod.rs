//! Stories with real processes, over real transports, in real time.
//!
//! ```text
//! cargo run -p sim -- --real sm --seeds 1000 [--from N]     # or tcp
//! cargo run -p sim -- --real tcp --seed N                   # one story again; its order is the machine's
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `actor` | a process of a story: this program again, told what to do line by line |
//! | `machine` | what its callers and handlers stand on: clock, threads, timers |
//! | `counted` | a transport that counts registered memory |
//! | `troupe` | the processes, as their parent sees them |
//! | `director` | has the events happen, and waits for the end |
//! | `verdict` | what is known of each call, and whether it is as it should be |
//!
//! The story is drawn as for the simulation, and changed a little ([`Story::for_machine`]). Each process draws it again by
//! its seed and makes its own calls; the parent stops, continues, kills, and starts anew. What happens is told to the parent at
//! once, through a pipe, so that a killed process has told it.
//!
//! Judged are the checks `value`, `outcome`, `late`, `stuck`, `probe`, `twice`, `left` and `lost` of [`crate::judge`], with bounds that are
//! watchdogs: the machine may be busy.

use std::{path::Path, str::FromStr, sync::Arc};

use hg_na::Plugin;

use crate::story::Story;

mod actor;
mod counted;
mod director;
mod machine;
mod troupe;
mod verdict;

pub use self::actor::{FLAG, play};

/// By what the processes of a story reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory.
    Sm,
    /// Sockets.
    Tcp,
}

impl Transport {
    fn plugin(self) -> Arc<dyn Plugin> {
        match self {
            Self::Sm => Arc::new(hg_na_sm::SmPlugin),
            Self::Tcp => Arc::new(hg_na_tcp::TcpPlugin),
        }
    }

    /// As it is written on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm => "sm",
            Self::Tcp => "tcp",
        }
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Sm, Self::Tcp];
        let found = all.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text}: not a transport; there are sm and tcp"))
    }
}

/// Runs the story of a seed; `program` is this one, which plays the processes. Says why it has failed, if it has: the name of the
/// check, a colon, and what happened.
///
/// # Errors
/// What was broken.
pub fn run(seed: u64, transport: Transport, program: &Path) -> Result<(), String> {
    director::run(&Story::for_machine(seed), transport, program)
}

/// A failure, with the command that tries the same story again.
#[must_use]
pub fn describe(seed: u64, transport: Transport, failure: &str) -> String {
    let name = transport.name();
    format!(
        "seed {seed} over {name}: {failure}\nagain: cargo run -p sim -- --real {name} --seed {seed}"
    )
}

/// The machine's clock, the same for all processes, in nanoseconds.
fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    let now = nix::time::clock_gettime(clock).expect("the clock is there");
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec()) * 1_000_000_000 + part(now.tv_nsec())
}
