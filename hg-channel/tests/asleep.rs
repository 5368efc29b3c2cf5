//! Ends that sleep whenever nothing happens, each in a thread of its own, of which one dies after so many steps: whatever the others
//! wait for has to wake them, or a deadline of their transport.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "a part of it is needed here")]
mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hg_channel::{Batch, Directory, Event, Limits, Near, Port, When};
use hg_na::{Address, OpenOptions, Plugin, Waiter};
use watchdog::Watchdog;

const ENDS: u32 = 3;
const VICTIM: u32 = 1;

/// What the threads share.
struct Shared {
    waiters: Vec<Arc<dyn Waiter>>,
    /// Survivors that have heard of each of their records.
    served: AtomicU32,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.served.load(Ordering::Acquire) == ENDS - 1
    }
}

struct End<'a> {
    port: Port<u32>,
    shared: &'a Shared,
    /// Steps until it dies.
    left: u32,
    /// Who are to be told, and who were.
    written: Vec<u32>,
    heard: Vec<u32>,
}

impl End<'_> {
    /// Runs until all have been served; `false`: it has died before.
    fn run(mut self) -> bool {
        self.lives().is_some()
    }

    fn lives(&mut self) -> Option<()> {
        self.write_all()?;
        let (mut batch, mut is_served) = (Batch::default(), self.port.end() == VICTIM);
        while !self.shared.is_over() {
            let moved = self.round(&mut batch)?;
            self.heard.sort_unstable();
            self.written.sort_unstable();
            if !is_served && self.heard == self.written {
                is_served = true;
                self.shared.served.fetch_add(1, Ordering::AcqRel);
                self.shared.waiters.iter().for_each(|waiter| waiter.wake());
            }
            if !moved {
                self.port.sleep(None).unwrap();
            }
        }
        assert!(is_served);
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    fn write_all(&mut self) -> Option<()> {
        let me = self.port.end();
        let others = (0..ENDS).filter(|to| *to != me);
        for (number, to) in others.flat_map(|to| (0..3).map(move |number| (number, to))) {
            let notice = 10 * to + number;
            if let Ok(room) = self.port.record(to, number, 100, 1 << 20) {
                room.fill(7);
                let when = if number % 2 == 0 { When::Consumed } else { When::Sent };
                self.port.tell(to, when, notice);
                self.written.push(notice);
            }
            self.step()?;
        }
        Some(())
    }

    fn round(&mut self, batch: &mut Batch) -> Option<bool> {
        let mut moved = self.port.advance(Instant::now(), batch).unwrap();
        while let Some(event) = self.port.next(batch) {
            match event {
                Event::Block(block) => self.port.consumed(block),
                Event::Gone { notices, .. } => self.heard.extend(notices),
                other => panic!("{other:?}"),
            }
            self.step()?;
        }
        self.port.acknowledge();
        self.step()?;
        moved |= self.port.flush_all();
        while let Some(notice) = self.port.due() {
            self.heard.push(notice);
        }
        self.step()?;
        Some(moved)
    }
}

/// Says whether the end has died before all was over.
fn one_dies_after(plugin: &dyn Plugin, url: &str, left: u32) -> bool {
    let _watchdog = Watchdog::start();
    let options = OpenOptions::listening();
    let domain = |_| plugin.open(&Address::new(url).unwrap(), &options).unwrap();
    let contexts: Vec<_> = (0..ENDS).map(|end| domain(end).context(0).unwrap()).collect();
    let addresses = contexts.iter().map(|it| it.address().clone()).collect();
    let waiters = contexts.iter().map(|it| it.waiter()).collect();
    let shared = Shared { waiters, served: AtomicU32::new(0) };
    let directory = Arc::new(Directory::new([9; 16], addresses));
    let limits = Limits::default().block(128).window(512).idle(Duration::from_secs(100_000));
    thread::scope(|scope| {
        let threads = contexts.into_iter().zip(0..).map(|(context, end)| {
            let port = Port::new(end, context, Arc::clone(&directory), Near::new(end, 1), limits);
            let left = if end == VICTIM { left } else { u32::MAX };
            let (written, heard) = (Vec::new(), Vec::new());
            let end = End { port, shared: &shared, left, written, heard };
            scope.spawn(move || end.run())
        });
        let threads: Vec<_> = threads.collect();
        let lived: Vec<bool> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert!(lived[0] && lived[2]);
        !lived[1]
    })
}

fn ends_that_sleep(plugin: &dyn Plugin, url: &str, most: u32) {
    let died = (0..most).take_while(|left| one_dies_after(plugin, url, *left)).count();
    assert!(died > 6, "it has died while it wrote, at least: {died}");
}

#[test]
fn over_sm_ends_that_sleep_hear_of_a_death_after_any_step() {
    ends_that_sleep(&hg_na_sm::SmPlugin, "sm://", u32::MAX);
}

#[test]
fn over_tcp_ends_that_sleep_hear_of_a_death_after_any_step() {
    ends_that_sleep(&hg_na_tcp::TcpPlugin, "tcp://127.0.0.1", u32::MAX);
}

#[test]
fn over_ofi_ends_that_sleep_hear_of_a_death_after_any_step() {
    let url = "ofi+tcp://127.0.0.1";
    if world::is_there(
        &hg_na_ofi::OfiPlugin,
        url,
        "over_ofi_ends_that_sleep_hear_of_a_death_after_any_step",
    ) {
        ends_that_sleep(&hg_na_ofi::OfiPlugin, url, u32::MAX);
    }
}
