//! What the contexts of one engine have in common: their numbers, and the peers that are good for all of them.
//!
//! A peer that the whole engine has looked up names an entry of a table ([`Contexts::lookup`]). Each context has a column of it,
//! the handles by which its own transport knows the targets, behind a lock of its own in a cache line of its own: threads that
//! call by different contexts write to nothing in common.
//!
//! An entry stands for one incarnation of a target: once the transport of any context has given its address another handle, the
//! next lookup makes a new entry of it, and peers of the old one are gone for every context. Entries are freed when they are
//! forgotten, and those whose target has left all contexts when the table has doubled since it was looked through last.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_core::table::{Key, Table};
use hg_na::{Address, Error};

use super::{Port, Shared};
use crate::{Peer, inside::innermost, lock::Mutex, thread_number};

/// Ports and whole engines that this process ever had.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A handle that no transport ever gives: what is called by it is gone.
const NOBODY: hg_na::Peer = hg_na::Peer::new(u32::MAX, 0);

/// Entries that are looked through at a time, under the lock of a context's state.
const AT_A_TIME: usize = 64;

pub(crate) struct Contexts {
    /// Number of the first context's port; the others' follow, and behind them the whole engine's.
    first: u64,
    lookups: Mutex<Lookups>,
    /// One of each context; none where there is one context only.
    columns: Box<[Column]>,
}

/// How one context knows the targets, by the place of the entry.
#[derive(Default)]
#[repr(align(128))] // Two cache lines: processors fetch them in pairs.
struct Column(Mutex<Vec<Known>>);

#[derive(Clone, Copy)]
struct Known {
    key: Key,
    na: hg_na::Peer,
}

#[derive(Default)]
struct Lookups {
    /// An entry for each address that was looked up; its key is the whole engine's handle of the peer there.
    entries: Table<Address>,
    by_address: HashMap<Address, Key>,
    /// With so many all are looked through.
    full: usize,
}

impl Contexts {
    pub(crate) fn new(count: usize) -> Self {
        let columns = if count > 1 { count } else { 0 };
        // Relaxed: only that they are others each time matters.
        let first = NUMBERS.fetch_add(count as u64 + 1, Ordering::Relaxed);
        let columns = (0..columns).map(|_| Column::default()).collect();
        Self { first, lookups: Mutex::default(), columns }
    }

    /// Number of a context's port.
    pub(crate) fn number_of(&self, index: u8) -> u64 {
        self.first + u64::from(index)
    }

    /// Number of the whole engine, where it has several contexts.
    fn whole(&self) -> u64 {
        self.first + self.columns.len() as u64
    }

    /// Whether this peer is good for all contexts of this engine.
    pub(crate) fn is_common(&self, peer: &Peer) -> bool {
        !self.columns.is_empty() && peer.port == self.whole()
    }

    /// Which context has this number.
    pub(crate) fn index_of(&self, port: u64) -> Option<usize> {
        let index = usize::try_from(port.checked_sub(self.first)?).ok()?;
        (index < self.columns.len()).then_some(index)
    }

    /// The context that calls of this thread take: in a handler the handler's.
    pub(crate) fn of_thread(&self) -> usize {
        self.index_of(innermost())
            .unwrap_or_else(|| thread_number::of_this_one() as usize % self.columns.len())
    }

    /// How a context knows a peer that is good for all; [`NOBODY`] once it is gone, and in a forked child.
    fn known_to(&self, port: &Port, peer: &Peer) -> hg_na::Peer {
        let column = self.columns[usize::from(port.index)].0.enter(|| port.is_forked());
        let known = column.and_then(|it| it.get(peer.na.index() as usize).copied());
        let known = known.filter(|known| known.key == key_of(peer));
        known.map_or(NOBODY, |known| known.na)
    }

    /// Looks an address up in all contexts.
    ///
    /// # Errors
    /// Those of [`hg_na::Context::lookup`].
    pub(crate) fn lookup(&self, ports: &[Arc<Port>], address: Address) -> Result<Peer, Error> {
        let addresses = ports.iter().map(|port| port.address_for(&address));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let [first, ..] = ports else { return Err(Error::UnknownPeer) };
        let mut lookups = self.lookups.enter(|| first.is_forked()).ok_or(Error::Forked)?;
        let found = ports.iter().zip(addresses).map(|(port, it)| port.lookup_here(it));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        if let Some(&key) = lookups.by_address.get(&address) {
            let peer = self.peer_of(key);
            let is_known =
                |(port, na): (&Arc<Port>, &hg_na::Peer)| self.known_to(port, &peer) == *na;
            if ports.iter().zip(&found).all(is_known) {
                return Ok(peer);
            }
            lookups.remove(key); // Its target has another incarnation.
        } else {
            self.look_through(&mut lookups, ports);
        }
        let key = lookups.entries.insert(address.clone());
        lookups.by_address.insert(address, key);
        for ((port, column), na) in ports.iter().zip(&self.columns).zip(found) {
            let mut column = column.0.enter(|| port.is_forked()).ok_or(Error::Forked)?;
            let known = Known { key, na };
            match column.get_mut(key.index()) {
                Some(place) => *place = known,
                None => column.push(known),
            }
        }
        Ok(self.peer_of(key))
    }

    fn peer_of(&self, key: Key) -> Peer {
        Peer { na: hg_na::Peer::new(key.place(), key.number()), port: self.whole() }
    }

    /// The address that a peer was looked up by, while that is known.
    pub(crate) fn address_of(&self, port: &Port, peer: &Peer) -> Option<Address> {
        self.lookups.enter(|| port.is_forked())?.entries.get(key_of(peer)).cloned()
    }

    /// Closes each context's connection to a peer.
    pub(crate) fn forget(&self, ports: &[Arc<Port>], peer: &Peer) {
        let Some(mut lookups) = ports.first().and_then(|it| self.lookups.enter(|| it.is_forked()))
        else {
            return;
        };
        if lookups.entries.get(key_of(peer)).is_none() {
            return;
        }
        ports.iter().for_each(|port| port.forget_here(self.known_to(port, peer)));
        lookups.remove(key_of(peer));
    }

    /// Where the table is full, frees the entries whose target has left all contexts.
    fn look_through(&self, lookups: &mut Lookups, ports: &[Arc<Port>]) {
        if lookups.entries.len() < lookups.full {
            return;
        }
        let mut lives = Vec::new();
        for (port, column) in ports.iter().zip(&self.columns) {
            let Some(column) = column.0.enter(|| port.is_forked()).map(|it| it.clone()) else {
                return;
            };
            lives.resize(column.len(), false);
            for (lives, known) in lives.chunks_mut(AT_A_TIME).zip(column.chunks(AT_A_TIME)) {
                let Some(state) = port.enter_state() else { return };
                for (lives, known) in lives.iter_mut().zip(known) {
                    *lives |= state.protocol.addresses.contains_key(&known.na);
                }
            }
        }
        let left = lookups.entries.iter().map(|(key, _)| key).filter(|key| !lives[key.index()]);
        for key in left.collect::<Vec<_>>() {
            lookups.remove(key);
        }
        lookups.full = AT_A_TIME.max(2 * lookups.entries.len());
    }
}

impl Port {
    /// A peer as this context knows it; `None` for one that is not good for it.
    pub(crate) fn know(&self, peer: &Peer) -> Option<Peer> {
        if peer.port == self.id {
            return Some(*peer);
        }
        let contexts = &self.shared.contexts;
        contexts.is_common(peer).then(|| Peer { na: contexts.known_to(self, peer), port: self.id })
    }

    /// The address of the context that this one calls behind an address: of several, the one whose place is the same, or
    /// comes up when they are counted again and again.
    fn address_for(&self, address: &Address) -> Result<Address, Error> {
        let (_, count) = address.contexts()?;
        self.shared.address_at(address, usize::from(self.index) % count)
    }

    /// Looks up the context of an engine that this one calls.
    pub(crate) fn lookup(&self, address: &Address) -> Result<Peer, Error> {
        let na = self.lookup_here(self.address_for(address)?)?;
        Ok(Peer { na, port: self.id })
    }

    fn lookup_here(&self, address: Address) -> Result<hg_na::Peer, Error> {
        let mut state = self.enter_state().ok_or(Error::Forked)?;
        let na = state.protocol.context()?.lookup(&address)?;
        state.protocol.addresses.insert(na, address);
        Ok(na)
    }

    /// Closes the connection to a peer.
    pub(crate) fn forget_here(&self, na: hg_na::Peer) {
        if let Some(mut state) = self.enter_state()
            && let Ok(context) = state.protocol.context()
        {
            context.forget(na);
            state.protocol.addresses.remove(&na);
        }
        self.notify();
    }
}

impl Shared {
    /// The address of one context of the engine behind an address.
    pub(crate) fn address_at(&self, address: &Address, context: usize) -> Result<Address, Error> {
        let bad = |why| Error::BadAddress { address: address.to_string(), why };
        let (first, count) = address.contexts()?;
        match u8::try_from(context) {
            Ok(0) => Ok(first),
            Ok(id) if context < count => self.domain.address_of(&first, id).ok_or_else(|| {
                bad("the addresses of further contexts do not follow from it".to_owned())
            }),
            _ => Err(bad(format!("it names {count} contexts, and none with the number {context}"))),
        }
    }

    /// The address of an engine with these contexts; that of the first one where the others' do not follow from it.
    pub(crate) fn address_of_all(&self, ports: &[Arc<Port>]) -> Address {
        let first = &ports.first().expect("there is at least one context").address;
        let follows = |port: &Arc<Port>| {
            port.index == 0
                || self.domain.address_of(first, port.index).as_ref() == Some(&port.address)
        };
        let all = ports.len() > 1 && ports.iter().all(follows);
        let address = all.then(|| first.with_contexts(ports.len()).ok()).flatten();
        address.unwrap_or_else(|| first.clone())
    }
}

impl Lookups {
    fn remove(&mut self, key: Key) {
        if let Some(address) = self.entries.remove(key) {
            self.by_address.remove(&address);
        }
    }
}

fn key_of(peer: &Peer) -> Key {
    Key::new(peer.na.index(), peer.na.generation())
}

#[cfg(test)]
mod tests;
