//! One round of progress of an endpoint.

use std::collections::VecDeque;

use hg_na::{Completion, OpId, Peer, Returned};
use hg_na_parts::receives::Receive;

use super::{
    hub::{Event, Net},
    side::{LANES, Lane, Link, Out, Side, finished, length},
};

impl Net {
    /// Moves everything that can move and appends what ended; says whether it found something.
    pub(super) fn progress(&mut self, at: usize, done: &mut Vec<Completion>) -> bool {
        let endpoint = &mut self.endpoints[at];
        endpoint.counts.rounds += 1;
        endpoint.moved_at_once = 0;
        if endpoint.is_cut {
            return false;
        }
        let (before, now) = (done.len(), self.now());
        let mut moved = false;
        for place in 0..self.endpoints[at].slots.len() {
            let slot = &self.endpoints[at].slots[place];
            if !slot.was_touched {
                continue;
            }
            if !slot.side.as_deref().is_some_and(|side| self.has_work_of(at, side, now)) {
                self.endpoints[at].slots[place].was_touched = false;
                continue;
            }
            let peer = Peer::new(u32::try_from(place).unwrap_or(u32::MAX), slot.generation);
            moved |= self.flush(at, peer);
            moved |= self.take_from(at, peer, done);
            self.tell_room(at, peer);
            moved |= self.end_of(at, peer);
        }
        let endpoint = &mut self.endpoints[at];
        done.extend(endpoint.ready.drain(..));
        moved |= done.len() > before;
        endpoint.counts.completions += (done.len() - before) as u64;
        endpoint.counts.idle_rounds += u64::from(!moved);
        moved
    }

    /// Whether a round would find something.
    pub(super) fn has_work(&self, at: usize) -> bool {
        let endpoint = &self.endpoints[at];
        if endpoint.is_cut {
            return false;
        }
        let now = self.now();
        let touched = endpoint.slots.iter().filter(|slot| slot.was_touched);
        let mut sides = touched.filter_map(|slot| slot.side.as_deref());
        !endpoint.ready.is_empty() || sides.any(|side| self.has_work_of(at, side, now))
    }

    fn has_work_of(&self, at: usize, side: &Side, now: u64) -> bool {
        if matches!(side.link, Link::Idle | Link::Connecting) {
            return false;
        }
        self.can_flush(side)
            || side.room(self.rules.queue_depth).0
            || !side.asked.is_empty()
            || LANES.iter().any(|lane| self.can_take(at, side, *lane, now))
            || ends(side, self.endpoints[at].admission)
    }

    fn can_flush(&self, side: &Side) -> bool {
        matches!(side.link, Link::Open { .. })
            && (side.out.iter().any(Out::can_send) || side.transfers.iter().any(|it| !it.has_begun))
    }

    fn can_take(&self, at: usize, side: &Side, lane: Lane, now: u64) -> bool {
        let Some((due, ..)) = side.arriving[lane as usize].front() else { return false };
        *due <= now
            && match lane {
                Lane::Control | Lane::Expected => true,
                Lane::Unexpected => self.endpoints[at].admission && side.admission,
            }
    }

    fn take_from(&mut self, at: usize, peer: Peer, done: &mut Vec<Completion>) -> bool {
        let (now, batch) = (self.now(), self.rules.batch);
        let mut moved = false;
        for lane in LANES {
            for _ in 0..batch {
                let Some(side) = self.endpoints[at].slots[peer.index() as usize].side.as_deref()
                else {
                    return moved;
                };
                // Of one that has hung up the operations end before its last requests are taken.
                let waits = matches!(side.link, Link::Broken { is_told: false, .. });
                if lane == Lane::Unexpected && waits || !self.can_take(at, side, lane, now) {
                    break;
                }
                moved = true;
                self.take_one(at, peer, lane, done);
            }
        }
        if self.endpoints[at].side(peer).is_some_and(|side| !side.asked.is_empty()) {
            let asked = self.endpoints[at].side(peer).map(|side| std::mem::take(&mut side.asked));
            for name in asked.into_iter().flatten() {
                self.serve_ask(name);
            }
            moved = true;
        }
        moved
    }

    fn take_one(&mut self, at: usize, peer: Peer, lane: Lane, done: &mut Vec<Completion>) {
        let Some(side) = self.endpoints[at].side(peer) else { return };
        let Some((_, tag, message)) = side.arriving[lane as usize].pop_front() else { return };
        let taken = side.out[lane as usize].credits.release(length(message.len()));
        match lane {
            Lane::Control => done.push(Completion::Control { from: peer, message }),
            Lane::Unexpected => done.push(Completion::Unexpected { from: peer, message }),
            Lane::Expected => {
                // One without a receive is late.
                if let Some(Receive { serial, token }) = side.receives.take(tag) {
                    let id = OpId { scope: peer.index(), serial };
                    done.push(finished(id, token, Ok(()), Returned::Message(message)));
                }
            }
        }
        if let (Link::Open { endpoint, peer }, Some(amount)) = (&side.link, taken) {
            let (endpoint, peer) = (*endpoint, *peer);
            let due = self.now() + self.delay();
            self.schedule(due, Event::Credit { endpoint, peer, lane, amount });
        }
    }

    /// Tells once that queues which were full have room.
    fn tell_room(&mut self, at: usize, peer: Peer) {
        let depth = self.rules.queue_depth;
        let endpoint = &mut self.endpoints[at];
        let Some(side) = endpoint.side(peer) else { return };
        let (has_room, refusals) = side.room(depth);
        side.refusals = refusals;
        if has_room {
            endpoint.ready.push_back(Completion::Room { peer });
        }
    }

    /// What is due of the end of a connection.
    fn end_of(&mut self, at: usize, peer: Peer) -> bool {
        let endpoint = &mut self.endpoints[at];
        let slot = &mut endpoint.slots[peer.index() as usize];
        let Some(side) = slot.side.as_deref_mut() else { return false };
        let Link::Broken { reason, is_told } = &mut side.link else { return false };
        let reason = reason.clone();
        let is_empty = |lane: Lane, side: &Side| side.arriving[lane as usize].is_empty();
        let mut moved = false;
        if !*is_told {
            *is_told = true;
            if !is_empty(Lane::Control, side) || !is_empty(Lane::Expected, side) {
                if let Link::Broken { is_told, .. } = &mut side.link {
                    *is_told = false;
                }
                return false;
            }
            side.fail_all(peer.index(), &reason, &mut endpoint.ready);
            endpoint.ready.push_back(Completion::HungUp { peer, reason: reason.clone() });
            moved = true;
        }
        if is_empty(Lane::Unexpected, side) {
            let address = side.address.take();
            slot.side = None;
            slot.generation += 1;
            if let Some(address) = address
                && endpoint.lookups.get(&address) == Some(&peer)
            {
                endpoint.lookups.remove(&address);
            }
            endpoint.ready.push_back(Completion::Gone { peer, reason });
            moved = true;
        }
        moved
    }
}

/// Whether a connection has an end to be told.
fn ends(side: &Side, admission: bool) -> bool {
    let Link::Broken { is_told, .. } = &side.link else { return false };
    let requests: &VecDeque<_> = &side.arriving[Lane::Unexpected as usize];
    !is_told || requests.is_empty() || (admission && side.admission)
}
