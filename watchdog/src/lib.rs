//! Ends a test that hangs, and says why it may: the stacks of its process and of all that it has started, and what
//! the engines of each are doing.
//!
//! | who | uses |
//! |---|---|
//! | a test whose calls may block | [`Watchdog::start`], for as long as it runs |
//! | one that looks again and again | [`until`], or [`in_time!`] in a loop of its own |
//! | one that waits for another thread | [`hear`] |
//! | one that runs a program to its end | [`ended`] |
//! | one of what the kernel counts for a whole process | [`alone`] |
//! | a process that a test starts | [`answer`], where it has engines |
//!
//! Whichever fires, [`fire`] writes the report to standard error and ends the process and all below it. A test that could go on would
//! wait for the same thing in its destructors.

mod alone;
mod ended;
mod processes;

use std::{
    fmt::Write as _,
    io::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

pub use alone::alone;
pub use ended::ended;
#[cfg(feature = "engines")]
pub use processes::answer;
pub use processes::below;

/// How long a test may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Watches over a test until it is dropped.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "dropping it is what it is for")] Sender<()>);

impl Watchdog {
    /// Fires unless it is dropped in time.
    #[must_use]
    pub fn start() -> Self {
        Self::within(LIMIT)
    }

    /// The same after another time.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                fire(&format!("{test} takes longer than {limit:?}"));
            }
        });
        Self(sender)
    }
}

/// Looks until something is so.
///
/// # Panics
/// It does not: it [fires](fire) when what is looked for does not come.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        in_time!(start, "{what}");
        thread::yield_now();
    }
}

/// What another thread tells.
///
/// # Panics
/// The other thread has ended.
#[track_caller]
pub fn hear<T>(receiver: &Receiver<T>) -> T {
    match receiver.recv_timeout(LIMIT) {
        Ok(told) => told,
        Err(RecvTimeoutError::Timeout) => {
            fire(&format!("{}: nobody tells anything", std::panic::Location::caller()))
        }
        Err(RecvTimeoutError::Disconnected) => panic!("whoever should tell has ended"),
    }
}

/// In a loop that ends when something has come: fires when that takes longer than [`LIMIT`] from an `Instant` on. What
/// follows says how things stand, as in `format!`.
#[macro_export]
macro_rules! in_time {
    ($start:expr) => {
        $crate::in_time!($start, "it does not come")
    };
    ($start:expr, $($state:tt)+) => {
        if $start.elapsed() > $crate::LIMIT {
            $crate::fire(&format!("{}:{}: {}", file!(), line!(), format_args!($($state)+)));
        }
    };
}

/// Says what every process and every engine is doing, and ends them.
pub fn fire(why: &str) -> ! {
    // The second one to fire waits for its end.
    static FIRST: Mutex<()> = Mutex::new(());
    let _first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    FIRES.store(true, Ordering::Relaxed); // Nothing is published by it.
    say(&format!("{why}: aborting\n"));
    say(&report());
    end()
}

/// Ends this process and all that it has started.
fn end() -> ! {
    processes::kill_all();
    std::process::abort();
}

/// For whoever reads what a child says: shows it once [`fire`] has begun, when nobody else will.
pub fn relay(line: &str) {
    // Nothing is published by it.
    if FIRES.load(Ordering::Relaxed) {
        say(&format!("{line}\n"));
    }
}

static FIRES: AtomicBool = AtomicBool::new(false);

/// What this process and those that it has started are doing. The engines of the others are told by them, on their
/// standard error.
#[must_use]
pub fn report() -> String {
    processes::ask_all();
    #[cfg(feature = "engines")]
    let mut text = processes::engines();
    #[cfg(not(feature = "engines"))]
    let mut text = String::new();
    let begin = Instant::now();
    for process in std::iter::once(std::process::id()).chain(below(std::process::id())) {
        let left = processes::STACKS.saturating_sub(begin.elapsed());
        // Writing to a string does not fail.
        let _ = writeln!(text, "stacks of {}:", processes::name(process));
        text += &processes::stacks(process, left);
    }
    text
}

fn say(text: &str) {
    // There may be nobody to tell.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
