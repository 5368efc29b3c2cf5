//! Ends of channels that one thread steps in turn, over any transport.

use std::{sync::Arc, time::Instant};

use hg_channel::{Batch, Directory, Error, Event, Limits, Near, Port, next_record};
use hg_na::{Address, Domain, Error as NaError, OpenOptions, Plugin};

/// Ends of separate domains, as if each were a process of its own, or a thread of one, stepped in turn by one thread.
pub(crate) struct World {
    pub(crate) ports: Vec<Option<Port<u64>>>,
    /// Per end: (sender, tag, length) of what was consumed.
    pub(crate) consumed: Vec<Vec<(u32, u32, usize)>>,
    pub(crate) told: Vec<Vec<u64>>,
    pub(crate) gone: Vec<Vec<(u32, Vec<u64>)>>,
    /// Blocks that wait to be consumed.
    pub(crate) waiting: Vec<Vec<hg_channel::Kept>>,
    pub(crate) is_lazy: bool,
    pub(crate) addresses: Vec<Address>,
}

pub(crate) const TOKEN: [u8; 16] = [9; 16];

impl World {
    pub(crate) fn new(plugin: &dyn Plugin, url: &str, ends: u32, limits: Limits) -> Self {
        Self::of(plugin, url, ends, limits, |end| Near::new(end, 1), true)
    }

    /// The same on hosts of their own: their windows grow, whatever the transport shares.
    pub(crate) fn apart(plugin: &dyn Plugin, url: &str, ends: u32, limits: Limits) -> Self {
        Self::of(plugin, url, ends, limits, |end| Near::new(end, 1), false)
    }

    /// The same as threads of one process.
    pub(crate) fn near(plugin: &dyn Plugin, url: &str, ends: u32, limits: Limits) -> Self {
        let near = Near::new(0, ends);
        Self::of(plugin, url, ends, limits, |_| Arc::clone(&near), true)
    }

    fn of(
        plugin: &dyn Plugin,
        url: &str,
        ends: u32,
        limits: Limits,
        near: impl Fn(u32) -> Arc<Near>,
        may_view: bool,
    ) -> Self {
        let domains: Vec<Arc<dyn Domain>> = (0..ends)
            .map(|_| plugin.open(&Address::new(url).unwrap(), &OpenOptions::listening()).unwrap())
            .collect();
        let contexts: Vec<_> = domains.iter().map(|domain| domain.context(0).unwrap()).collect();
        let addresses: Vec<_> = contexts.iter().map(|it| it.address().clone()).collect();
        let directory = Arc::new(Directory::new(TOKEN, addresses.clone()));
        let ports = contexts.into_iter().zip(&domains).zip(0..).map(|((context, domain), end)| {
            let port = Port::new(end, context, Arc::clone(&directory), near(end), limits);
            let mut caps = domain.caps().clone();
            caps.views &= may_view;
            Some(port.over(&caps))
        });
        Self::with(ports.collect(), addresses)
    }

    /// Of these ends, among others that are elsewhere.
    pub(crate) fn with(ports: Vec<Option<Port<u64>>>, addresses: Vec<Address>) -> Self {
        let count = ports.len();
        Self {
            ports,
            consumed: vec![Vec::new(); count],
            told: vec![Vec::new(); count],
            gone: vec![Vec::new(); count],
            waiting: (0..count).map(|_| Vec::new()).collect(),
            is_lazy: false,
            addresses,
        }
    }

    pub(crate) fn port(&mut self, end: u32) -> &mut Port<u64> {
        self.ports[end as usize].as_mut().unwrap()
    }

    pub(crate) fn write(&mut self, from: u32, to: u32, tag: u32, len: usize) -> Result<(), Error> {
        self.port(from).record(to, tag, len, 1 << 20).map(|room| room.fill(7))
    }

    pub(crate) fn round(&mut self) {
        for at in 0..self.ports.len() {
            self.step(at, Instant::now());
        }
    }

    /// What one end does once; whether anything moved.
    pub(crate) fn step(&mut self, at: usize, now: Instant) -> bool {
        let Some(port) = self.ports[at].as_mut() else { return false };
        let mut batch = Batch::default();
        let moved = port.advance(now, &mut batch).unwrap();
        while let Some(event) = port.next(&mut batch) {
            match event {
                Event::Block(block) => self.waiting[at].push(block.keep()),
                Event::Gone { end, notices, .. } => self.gone[at].push((end, notices)),
                other => panic!("{other:?}"),
            }
        }
        if !self.is_lazy {
            for mut block in self.waiting[at].drain(..) {
                let block = block.arrived();
                let mut bytes = block.bytes();
                while let Some(record) = next_record(&mut bytes).unwrap() {
                    self.consumed[at].push((block.from(), record.tag, record.bytes.len()));
                }
                port.consumed(block);
            }
        }
        port.acknowledge();
        port.flush_all();
        while let Some(notice) = port.due() {
            self.told[at].push(notice);
        }
        moved
    }

    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        watchdog::until(what, || {
            self.round();
            holds(self)
        });
    }
}

/// Whether this machine has the transport.
#[expect(clippy::print_stdout, reason = "a skip is said aloud")]
pub(crate) fn is_there(plugin: &dyn Plugin, url: &str, test: &str) -> bool {
    let url = Address::new(url).unwrap();
    match plugin.open(&url, &OpenOptions::listening()) {
        Err(NaError::Missing { .. }) => {
            println!("SKIPPED: {test}: libfabric offers no {} here", url.scheme());
            false
        }
        opened => {
            drop(opened.unwrap());
            true
        }
    }
}
