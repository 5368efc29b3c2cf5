//! The conformance suite over cards, of which it needs one at least: `tests/verbs-vm` runs it over soft-RoCE in a virtual machine.
//!
//! `HG_VERBS_DEVICES` names the cards that domains are opened on in turn, so that what passes between two crosses a cable: `rxe0,rxe1`.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "device/faults.rs"]
mod faults;
#[path = "device/kills.rs"]
mod kills;
#[path = "device/ports.rs"]
mod ports;
#[path = "device/side.rs"]
mod side;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_conformance::{Patience, Suite};
use hg_na_verbs::VerbsPlugin;

/// Names the cards.
const DEVICES: &str = "HG_VERBS_DEVICES";
/// Ports below those that the kernel gives out by itself.
const PORTS: std::ops::Range<usize> = 10_000..32_000;

/// The plugin over each card in turn, with names for cards and ports: `verbs://conformance-12-3`.
#[derive(Debug, Clone, Copy)]
struct Alternating;

impl Plugin for Alternating {
    fn schemes(&self) -> &[&str] {
        &["verbs"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let devices = std::env::var(DEVICES).unwrap_or_default();
        let devices: Vec<&str> = devices.split(',').collect();
        let number = |hash: usize, byte: u8| hash.wrapping_mul(31).wrapping_add(usize::from(byte));
        let url = match url.rest() {
            // Relaxed: only the number counts.
            "" => {
                let turn = OPENED.fetch_add(1, Ordering::Relaxed) + std::process::id() as usize;
                format!("verbs://{}", devices[turn % devices.len()])
            }
            name => {
                let hash = name.bytes().fold(7, number);
                let device = devices[hash % devices.len()];
                format!("verbs://{device}@0.0.0.0:{}", PORTS.start + hash % PORTS.len())
            }
        };
        VerbsPlugin::default().open(&Address::new(&url)?, options)
    }
}

/// Emulated processors of a busy machine are slow.
fn suite() -> Suite {
    let time = Duration::from_secs(180);
    Suite::new(Alternating, "verbs://")
        .named("verbs://{}")
        .report(watchdog::report)
        .patience(Patience { time, idle_rounds: u64::MAX, sleep: time })
        .blocked_after(2 * time)
}

hg_na_conformance::suite!(@suite suite(), processes);
