//! Bytes that a port moves by itself, and those that it does not.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::{sync::Arc, time::Instant};

use hg_channel::{Batch, Directory, Error, Event, Limits, Near, Port};
use hg_na::{Address, Memory, OpenOptions, Plugin, Region, Rights};
use hg_na_sm::SmPlugin;
use watchdog::Watchdog;

const LEN: u64 = 100;

struct End {
    port: Port<()>,
    region: Region,
}

/// Two that are connected.
fn ends() -> [End; 2] {
    let url = Address::new("sm://").unwrap();
    let domains = [0, 1].map(|_| SmPlugin.open(&url, &OpenOptions::listening()).unwrap());
    let contexts = domains.each_ref().map(|it| it.context(0).unwrap());
    let addresses = contexts.iter().map(|it| it.address().clone()).collect();
    let directory = Arc::new(Directory::new([9; 16], addresses));
    let mut numbers = 0..;
    let ports = contexts.map(|context| {
        let number = numbers.next().unwrap();
        Port::new(number, context, Arc::clone(&directory), Near::new(number, 1), Limits::default())
    });
    let regions = domains.map(|it| {
        it.register(Memory::from(vec![7; usize::try_from(LEN).unwrap()]), Rights::all()).unwrap()
    });
    let mut regions = regions.into_iter();
    let mut ends = ports.map(|port| End { port, region: regions.next().unwrap() });
    ends[0].port.record(1, 0, 1, 1).unwrap().fill(0);
    ends[0].port.flush(1);
    watchdog::until("they are connected", || {
        ends[0].step();
        ends[1].step().0 > 0
    });
    ends
}

impl End {
    /// How many blocks have come, and how many transfers are over.
    fn step(&mut self) -> (usize, usize) {
        let (mut batch, mut counts) = (Batch::default(), (0, 0));
        self.port.advance(Instant::now(), &mut batch).unwrap();
        while let Some(event) = self.port.next(&mut batch) {
            match event {
                Event::Block(block) => {
                    counts.0 += 1;
                    self.port.consumed(block);
                }
                Event::Moved { result, .. } => {
                    counts.1 += 1;
                    result.unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        counts
    }

    fn put(&mut self, there: &Region) -> Result<(), Error> {
        let remote = there.descriptor().slice(0, LEN).unwrap();
        self.port.put(1, 0, self.region.slice(0, LEN).unwrap(), remote)
    }

    fn fetch(&mut self, there: &Region) -> bool {
        self.port.fetch(1, &there.descriptor(), 0, &mut [0; 10])
    }
}

#[test]
fn more_ends_of_transfers_than_are_taken_are_refused() {
    let _watchdog = Watchdog::start();
    let [mut from, to] = ends();
    let taken = (0..2000).take_while(|_| from.put(&to.region).is_ok()).count();
    assert_eq!(taken, 1024);
    assert!(matches!(from.put(&to.region), Err(Error::Full(1))));
    assert_eq!(from.step().1, 1024);
    from.put(&to.region).unwrap();
    assert_eq!(from.step().1, 1);
}

#[test]
fn who_waits_for_no_memory_leaves_it_to_the_other_side() {
    let _watchdog = Watchdog::start();
    let [mut from, mut to] = ends();
    from.put(&to.region).unwrap();
    assert_eq!(from.step().1, 1, "by itself");
    assert!(from.fetch(&to.region));
    from.port.wait_for_no_memory();
    assert!(!from.fetch(&to.region));
    from.put(&to.region).unwrap();
    let alone: usize = (0..100).map(|_| from.step().1).sum();
    assert_eq!(alone, 0, "the other one makes no progress");
    watchdog::until("it is moved", || {
        to.step();
        from.step().1 > 0
    });
}
