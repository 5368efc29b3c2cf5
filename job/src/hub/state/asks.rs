//! Who has not made a call; before all have joined, who has not. A question goes to every side that may know of somebody, but the one that it came from; when all
//! have answered, so does this hub. A side that does not answer leaves it open: the asking rank has a bound.

use std::collections::{BTreeMap, BTreeSet};

use super::{Child, Effect, Hub, Member, Side};
use crate::frame::{Down, Up};

/// A channel and the number of a call.
type Call = (String, u64);

/// Questions that are open, by who asked.
pub(super) type Asks = BTreeMap<(Side, Call), Ask>;

/// A question whose answer is not whole.
#[derive(Debug)]
pub(super) struct Ask {
    waiting: BTreeSet<Side>,
    ranks: Vec<u32>,
}

/// Questions at a time; further ones get no answer.
const ASKS_MAX: usize = 1024;

impl Hub {
    pub(super) fn ask(&mut self, by: Side, channel: String, number: u64) {
        let call = (channel, number);
        if self.asks.len() >= ASKS_MAX || self.asks.contains_key(&(by, call.clone())) {
            return;
        }
        let mut ask = Ask { waiting: BTreeSet::new(), ranks: Vec::new() };
        let of_channel = self.channels.get(&call.0);
        if number == of_channel.map_or(0, |channel| channel.ended) {
            let open = of_channel.and_then(|channel| channel.open.as_ref());
            let has_called = |place: usize| open.is_some_and(|open| open.values[place].is_some());
            let is_wholly_here = |child: &Child| matches!(child.state, Member::Here(_));
            for (place, child) in self.children.iter().enumerate() {
                let side = Side::Child(place);
                let is_done = if self.is_whole { has_called(place) } else { is_wholly_here(child) };
                match child.is_hub() && child.state != Member::Awaited {
                    _ if is_done => {}
                    false => ask.ranks.push(child.ranks.start),
                    true if side != by => drop(ask.waiting.insert(side)),
                    true => {}
                }
            }
            if self.has_above() && by != Side::Above {
                ask.waiting.insert(Side::Above);
            }
        }
        for side in &ask.waiting {
            let (channel, number) = call.clone();
            self.effects.push_back(match side {
                Side::Above => Effect::Up(Up::Who { channel, number }),
                Side::Child(place) => {
                    Effect::One(self.children[*place].ranks.start, Down::Who { channel, number })
                }
            });
        }
        self.asks.insert((by, call), ask);
        self.answer();
    }

    /// A side has said whom it knows of.
    pub(super) fn answered(&mut self, side: Side, call: Call, ranks: &[u32]) {
        for (_, ask) in self.asks.iter_mut().filter(|((_, about), _)| *about == call) {
            if ask.waiting.remove(&side) {
                ask.ranks.extend_from_slice(ranks);
            }
        }
        self.answer();
    }

    /// Tells what is known whole.
    fn answer(&mut self) {
        while let Some(key) =
            self.asks.iter().find(|(_, ask)| ask.waiting.is_empty()).map(|(key, _)| key.clone())
        {
            let Some(Ask { mut ranks, .. }) = self.asks.remove(&key) else { return };
            ranks.sort_unstable();
            ranks.dedup();
            let (by, (channel, number)) = key;
            self.effects.push_back(match by {
                Side::Above => Effect::Up(Up::Missing { channel, number, ranks }),
                Side::Child(place) => {
                    let rank = self.children[place].ranks.start;
                    Effect::One(rank, Down::Missing { channel, number, ranks })
                }
            });
        }
    }
}
