//! One round of progress of an endpoint.

use std::collections::VecDeque;

use hg_na::{Completion, Done, Message, OpId, Peer, Returned, Tag};
use hg_na_parts::receives::Receive;

use super::{
    hub::{Event, Net},
    planted::{CONTROLS, KEPT_ANSWERS, Planted},
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
            || self.is_planted(Planted::RoomForNothing) && side.refusals.any()
            || !side.asked.is_empty()
            || LANES.iter().any(|lane| self.can_take(at, side, *lane, now))
            || ends(side, self.endpoints[at].admission, self.is_planted(Planted::HangUpWithheld))
    }

    pub(super) fn is_planted(&self, fault: Planted) -> bool {
        self.rules.planted == Some(fault)
    }

    /// Whether admission is open to all.
    fn admits(&self, at: usize) -> bool {
        let endpoint = &self.endpoints[at];
        let controls = |side: &Side| side.out[Lane::Control as usize].queue.len();
        endpoint.admission
            && !(self.is_planted(Planted::AdmissionBehindControl)
                && endpoint.sides().any(|side| controls(side) >= CONTROLS))
    }

    fn can_flush(&self, side: &Side) -> bool {
        matches!(side.link, Link::Open { .. })
            && (side.out.iter().any(Out::can_send) || side.transfers.iter().any(|it| !it.has_begun))
    }

    fn can_take(&self, at: usize, side: &Side, lane: Lane, now: u64) -> bool {
        let Some((due, ..)) = side.arriving[lane as usize].front() else { return false };
        *due <= now
            && match lane {
                Lane::Control => true,
                Lane::Expected => side.unmatched <= KEPT_ANSWERS,
                Lane::Unexpected => self.admits(at) && side.admission,
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
                let waits = matches!(side.link, Link::Broken { is_told: false, .. })
                    && !self.is_planted(Planted::HangUpWithheld);
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

    /// An answer out of turn, where it comes next of its peer.
    pub(super) fn collect(&mut self, at: usize, from: Peer, tag: Tag) -> Option<Message> {
        let now = self.now();
        let side = self.endpoints[at].side(from)?;
        let is_next = side.arriving[Lane::Control as usize].is_empty()
            && matches!(side.link, Link::Open { .. })
            && side.receives.contains(tag)
            && side.arriving[Lane::Expected as usize].front().is_some_and(|(due, of, message)| {
                *due <= now && *of == tag && message.slot().is_some()
            });
        if !self.rules.short_cuts || !is_next {
            return None;
        }
        let mut done = Vec::new();
        self.take_one(at, from, Lane::Expected, &mut done);
        match done.pop()? {
            Completion::Done(Done { returned: Returned::Message(message), .. }) => Some(message),
            _ => None,
        }
    }

    /// A request out of turn, where it comes next of its peer.
    pub(super) fn take_request(&mut self, at: usize, from: Peer) -> Option<Message> {
        let (now, lane) = (self.now(), Lane::Unexpected);
        let side = self.endpoints[at].side(from)?;
        let is_short = |(_, _, message): &(_, _, Message)| message.slot().is_some();
        let is_next = side.arriving[lane as usize].front().is_some_and(is_short)
            && matches!(side.link, Link::Open { .. });
        let side = self.endpoints[at].slots[from.index() as usize].side.as_deref()?;
        if !self.rules.short_cuts || !is_next || !self.can_take(at, side, lane, now) {
            return None;
        }
        let mut done = Vec::new();
        self.take_one(at, from, lane, &mut done);
        match done.pop()? {
            Completion::Unexpected { message, .. } => Some(message),
            _ => None,
        }
    }

    fn take_one(&mut self, at: usize, peer: Peer, lane: Lane, done: &mut Vec<Completion>) {
        let keeps_answers = self.is_planted(Planted::AnswerStalls);
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
                } else {
                    side.unmatched += u32::from(keeps_answers);
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
        let (depth, is_false) = (self.rules.queue_depth, self.is_planted(Planted::RoomForNothing));
        let endpoint = &mut self.endpoints[at];
        let Some(side) = endpoint.side(peer) else { return };
        let is_false = is_false && side.refusals.any();
        let (has_room, refusals) = side.room(depth);
        side.refusals = refusals;
        if has_room || is_false {
            endpoint.ready.push_back(Completion::Room { peer });
        }
    }

    /// What is due of the end of a connection.
    fn end_of(&mut self, at: usize, peer: Peer) -> bool {
        let is_withheld = self.is_planted(Planted::HangUpWithheld);
        let endpoint = &mut self.endpoints[at];
        let slot = &mut endpoint.slots[peer.index() as usize];
        let Some(side) = slot.side.as_deref_mut() else { return false };
        let Link::Broken { reason, is_told } = &mut side.link else { return false };
        let reason = reason.clone();
        let is_empty = |lane: Lane, side: &Side| side.arriving[lane as usize].is_empty();
        let mut moved = false;
        if !*is_told {
            *is_told = true;
            let waits = is_withheld && !is_empty(Lane::Unexpected, side);
            if waits || !is_empty(Lane::Control, side) || !is_empty(Lane::Expected, side) {
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
fn ends(side: &Side, admission: bool, is_withheld: bool) -> bool {
    let Link::Broken { is_told, .. } = &side.link else { return false };
    let requests: &VecDeque<_> = &side.arriving[Lane::Unexpected as usize];
    !is_told && !is_withheld || requests.is_empty() || (admission && side.admission)
}
