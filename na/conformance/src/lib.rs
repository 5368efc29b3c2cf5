//! The conformance suite that every Hydrargyrum transport plugin passes.
//!
//! # For authors of transports
//! Put one line into `tests/conformance.rs` of your plugin:
//!
//! ```text
//! hg_na_conformance::suite!(MyPlugin::default(), "mine://");
//! ```
//!
//! It makes one `#[test]` of each test. Every test opens domains of its own through
//! [`hg_na::Plugin::open`], so they run side by side. The URL must open a domain that listens at an
//! address of its own choice, as often as it is opened.
//!
//! | option, after the URL | meaning |
//! |---|---|
//! | `named = "mine://x-{}"` | how a domain with a chosen name is opened; `{}` stands for the name. Without it the name follows the URL |
//! | `frozen = maker` | makes memory of given bytes that peers can view and nobody can write, `fn(&[u8]) -> Result<Memory, Error>`; the default is an `Arc<[u8]>` |
//! | `shareable = maker` | the same, that its owner can still write |
//! | `in_process_only` | the plugin connects contexts of one process only: the tests that kill a second process are left out |
//!
//! The suite asks the plugin's [`hg_na::Caps`] what to expect. A plugin without one-sided operations
//! must refuse to register memory, one that cannot sleep must never promise a wake-up.
//!
//! Each test is also a function ([`TESTS`], [`PROCESS_TESTS`]) that answers in words what was broken.
//! Whatever a test does, the observed contexts check at every completion: nothing completes twice or
//! unasked, tokens and buffers come back as posted, a refused operation is unchanged, nothing follows
//! `Gone`, a hang-up comes before it and after all of a peer's operations, and `progress` says whether it found
//! something.
//!
//! What the suite cannot do for a transport that it does not know: write rubbish to the wire
//! (sentence 12). It forges descriptors; frames and shared memory are fuzzed by the plugin itself.
//!
//! A process that forks: [`is_inert`] asks everything of a child's copies.
//!
//! # Wrappers
//! [`Faulty`] injects seeded faults, [`Traced`] records what happens; both take any plugin and are
//! plugins. [`layer`] is what they are made of, for wrappers of your own. [`Mem`] is the reference,
//! for contexts of one process.
//!
//! # Threads
//! A [`Suite`] runs each test in a thread of its own, so that a call that blocks ends the test.
//!
//! # Cleanup
//! Each test closes what it opened; second processes are killed when their test ends.

#![forbid(unsafe_code)]

mod child;
mod faulty;
mod forked;
pub mod layer;
mod list;
mod mem;
mod node;
mod outcome;
mod patience;
mod random;
mod suite;
mod tests;
mod traced;
mod world;

pub use child::child_main;
pub use faulty::{Faults, Faulty};
pub use forked::is_inert;
pub use list::{PROCESS_TESTS, TESTS};
pub use mem::Mem;
pub use outcome::Outcome;
pub use patience::Patience;
pub use suite::{Maker, Suite, Test};
pub use traced::{Event, RECORDS_MAX, Record, Traced};

/// Runs one test by name, and panics with what was broken: the body of each `#[test]`.
///
/// # Panics
/// When the plugin does not pass.
pub fn judge(suite: &Suite, name: &str) {
    let test = TESTS.iter().chain(PROCESS_TESTS).find(|test| test.name == name);
    let test = test.expect("the macro and the list are made of the same names");
    if let Err(sentence) = suite.run(*test) {
        panic!("{sentence}");
    }
}

/// The body of the `#[test]` that is also the second process.
///
/// # Panics
/// When the plugin does not pass.
pub fn judge_child(suite: &Suite) {
    if let Err(sentence) = child_main(suite) {
        panic!("{sentence}");
    }
}
