//! The reference transport, of which single connections can be cut: as a network does that comes back, or a middlebox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use hg_na::{Address, Completion, Context, Error, GoneReason, Peer};
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};

/// One connection of a context is to be cut: the how-manieth of those that are known, and as what this side sees it.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) nth: usize,
    pub(crate) reason: GoneReason,
}

/// What is to be cut next, by the address of a context; and which ends have lost a connection with one another.
#[derive(Debug, Default)]
struct State {
    cuts: HashMap<Address, Cut>,
    parted: Vec<(Address, Far)>,
}

/// Who is at the other side of a connection: the one that was looked up, or what a greeting has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Far {
    At(Address),
    End(u32),
}

/// Cuts connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scissors(Arc<Mutex<State>>);

impl Scissors {
    pub(crate) fn plugin(&self, mem: &Mem) -> Layered {
        Layered::new(mem.clone(), self.clone())
    }

    /// In the next round of the context at this address, if it has any connection then.
    pub(crate) fn cut(&self, at: &Address, cut: Cut) {
        self.state(|state| state.cuts.insert(at.clone(), cut));
    }

    /// Whom the contexts at these addresses have lost a connection with since this was asked.
    pub(crate) fn parted(&self) -> Vec<(Address, Far)> {
        self.state(|state| std::mem::take(&mut state.parted))
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Layers for Scissors {
    fn layer(&self, address: &Address) -> Box<dyn Layer> {
        let (scissors, at) = (self.clone(), address.clone());
        Box::new(CutLayer { scissors, at, far: Vec::new(), lost: HashMap::new() })
    }
}

#[derive(Debug)]
struct CutLayer {
    scissors: Scissors,
    at: Address,
    far: Vec<(Peer, Far)>,
    lost: HashMap<Peer, GoneReason>,
}

impl CutLayer {
    fn meet(&mut self, peer: Peer, far: Far) {
        if !self.far.iter().any(|(known, _)| *known == peer) {
            self.far.push((peer, far));
        }
    }

    fn cut(&mut self, inner: &mut dyn Context) {
        let Some(Cut { nth, reason }) = self.scissors.state(|state| state.cuts.remove(&self.at))
        else {
            return;
        };
        let mut up = self.far.clone();
        up.retain(|(peer, _)| inner.is_connected(*peer) && !self.lost.contains_key(peer));
        if up.is_empty() {
            return;
        }
        let (peer, far) = up.swap_remove(nth % up.len());
        inner.forget(peer);
        self.lost.insert(peer, reason);
        self.scissors.state(|state| state.parted.push((self.at.clone(), far)));
    }
}

impl Layer for CutLayer {
    fn lookup(&mut self, inner: &mut dyn Context, address: &Address) -> Result<Peer, Error> {
        let peer = inner.lookup(address)?;
        self.meet(peer, Far::At(address.clone()));
        Ok(peer)
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        self.cut(inner);
        let first = done.len();
        let moved = inner.progress(now, done)?;
        for completion in &mut done[first..] {
            match completion {
                Completion::Unexpected { from, message } => {
                    if let [1, .., a, b, c, d, _, _, _, _] = *message.as_slice() {
                        self.meet(*from, Far::End(u32::from_le_bytes([a, b, c, d])));
                    }
                }
                Completion::Gone { peer, reason } => {
                    self.far.retain(|(known, _)| known != peer);
                    if let Some(why) = self.lost.remove(peer) {
                        *reason = why;
                    }
                }
                _ => {}
            }
        }
        Ok(moved)
    }
}
