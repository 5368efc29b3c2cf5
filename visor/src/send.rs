//! Frames out: messages and transfers, as windows, credits and the daemon allow.

use hg_na::{Error, GoneReason, Peer, QUIET, Reached};
use hg_na_link::{Lane, Piece};

use crate::{
    context::VisorContext,
    settings::{LIMITS, TRANSFERS_MAX},
    way::{Link, Sort, is_open},
    wire::{HEADER_LEN, Header, Kind},
};

/// Frames that one peer is sent before the next has its turn.
const TURN: usize = 32;

/// What sending one frame came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Left,
    /// Nothing to send, or no window.
    Idle,
    /// The daemon takes nothing now.
    Blocked,
}

impl VisorContext {
    /// Gives everybody on the list a turn; says whether a frame has left.
    pub(crate) fn send_all(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.busy.len() {
            if self.session.is_blocked() {
                break;
            }
            let Some(peer) = self.busy.pop_front() else { break };
            if let Some(link) = self.links.find(peer) {
                link.way.is_busy = false;
            }
            moved |= self.send_link(peer);
        }
        moved
    }

    /// One peer's turn; says whether a frame has left.
    pub(crate) fn send_link(&mut self, peer: Peer) -> bool {
        let mut moved = false;
        for _ in 0..TURN {
            match self.step(peer) {
                Step::Left => moved = true,
                Step::Idle => {
                    self.tell_room(peer);
                    return moved;
                }
                Step::Blocked => break,
            }
        }
        self.tell_room(peer);
        self.mark_busy(peer);
        moved
    }

    /// Lists a peer with something to send.
    pub(crate) fn mark_busy(&mut self, peer: Peer) {
        if let Some(link) = self.links.find(peer)
            && is_open(link)
            && !link.way.is_busy
        {
            link.way.is_busy = true;
            self.busy.push_back(peer);
        }
    }

    /// Tells once that queues which were full have room; that ends a sleep.
    pub(crate) fn tell_room(&mut self, peer: Peer) {
        if let Some(link) = self.links.find(peer)
            && link.tell_room(&LIMITS, 0, &mut self.finished)
        {
            self.wake();
        }
    }

    /// The most important frame that can leave.
    fn step(&mut self, peer: Peer) -> Step {
        let Some(link) = self.links.find(peer).filter(|link| is_open(link)) else {
            return Step::Idle;
        };
        if let Some(word) = link.way.returned() {
            return self.plain(peer, (Sort::Credit, word), &[], |link| link.way.has_returned());
        }
        if let Some((serial, verdict)) = link.owner.next_word() {
            let body = verdict.encode();
            return self.plain(peer, (Sort::End, serial), &body, |link| link.owner.said());
        }
        if let Some(serial) = link.way.cancels.front().copied() {
            let told = |link: &mut Link| {
                link.way.cancels.pop_front();
            };
            return self.plain(peer, (Sort::Cancel, serial), &[], told);
        }
        let message = Lane::ALL.into_iter().find(|lane| {
            let len = link.queues.front(*lane).map(|it| u32::try_from(it.message.len()));
            let are_enough = |len| *lane != Lane::Unexpected || link.way.unexpected.are_enough(len);
            matches!(len, Some(Ok(len)) if are_enough(len))
        });
        // Messages alone are ahead for ever: what would be sent instead is asked for first.
        let is_transfers_turn = link.way.is_transfers_turn()
            && (link.owner.is_waiting()
                || link.initiator.is_streaming()
                || link.initiator.next(TRANSFERS_MAX).is_some());
        match message {
            Some(lane) if !is_transfers_turn => self.message_out(peer, lane),
            _ => match (self.transfer_out(peer), message) {
                (Step::Idle, Some(lane)) => self.message_out(peer, lane),
                (step, _) => step,
            },
        }
    }

    /// A short frame; `sent` follows when it has left.
    fn plain(
        &mut self,
        peer: Peer,
        (sort, word): (Sort, u64),
        body: &[u8],
        sent: impl FnOnce(&mut Link),
    ) -> Step {
        let fill = |into: &mut [u8]| {
            into.copy_from_slice(body);
            true
        };
        let step = self.hand(peer, (sort, word), (body.len(), false), fill);
        if step == Step::Left
            && let Some(link) = self.links.find(peer)
        {
            sent(link);
        }
        step
    }

    /// Hands a frame to the daemon, when there is window for it. What `fill` cannot fill is not sent. `is_told`: as of
    /// [`crate::session::Session::send`].
    fn hand(
        &mut self,
        peer: Peer,
        (sort, word): (Sort, u64),
        (len, is_told): (usize, bool),
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Step {
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        if !link.way.has_window(HEADER_LEN + len) {
            return Step::Idle;
        }
        let Some(mut frame) = self.session.message(HEADER_LEN + len) else { return Step::Blocked };
        let header = Header { kind: Kind::Data, lane: sort as u8, id: link.way.id, word };
        let (head, body) = frame.as_mut_slice().split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header.encode());
        if !fill(body) {
            return Step::Idle;
        }
        if !self.session.send(frame, is_told) {
            return Step::Blocked;
        }
        link.way.spend(sort, HEADER_LEN + len);
        Step::Left
    }

    fn message_out(&mut self, peer: Peer, lane: Lane) -> Step {
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        let Some(sending) = link.queues.pop(lane) else { return Step::Idle };
        let len = sending.message.len();
        let is_told = sending.token & QUIET == 0;
        let step = self.hand(peer, (Sort::of_message(lane), sending.tag), (len, is_told), |into| {
            into.copy_from_slice(sending.message.as_slice());
            true
        });
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        if step != Step::Left {
            link.queues.put_back(lane, sending);
            return step;
        }
        if lane == Lane::Unexpected {
            let has_spent = u32::try_from(len).is_ok_and(|len| link.way.unexpected.spend(len));
            debug_assert!(has_spent, "there were enough");
        }
        if is_told {
            self.handed.push_back((peer, Some(sending)));
        }
        step
    }

    /// The oldest message that was handed over has left.
    pub(crate) fn left(&mut self) {
        if let Some((_, Some(sending))) = self.handed.pop_front() {
            sending.sent(&mut self.finished);
        }
    }

    /// Ends a peer, as [`hg_na_link::Links::end`], and before it what was handed over for it, which may arrive.
    pub(crate) fn end(&mut self, peer: Peer, reason: &GoneReason) {
        for (_, handed) in self.handed.iter_mut().filter(|(to, _)| *to == peer) {
            let failure = (Error::PeerGone(reason.clone()), Reached::Unknown);
            self.finished.extend(handed.take().map(|sending| sending.end(Some(failure))));
        }
        self.links.end(peer, reason, &mut self.finished);
    }

    /// The next frame of a transfer.
    fn transfer_out(&mut self, peer: Peer) -> Step {
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        if let Some(transfer) = link.initiator.next(TRANSFERS_MAX) {
            let sort = if transfer.is_put { Sort::Put } else { Sort::Get };
            let (serial, body) = (transfer.id.serial, transfer.access.encode());
            return self.plain(peer, (sort, serial), &body, |link| link.initiator.announced(0));
        }
        link.way.owners_turn ^= true;
        let first = link.way.owners_turn;
        match self.piece_out(peer, first) {
            Step::Idle => self.piece_out(peer, !first),
            step => step,
        }
    }

    /// Bytes of a get that is served, or of an own put.
    fn piece_out(&mut self, peer: Peer, is_owner: bool) -> Step {
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        let (sort, piece) = match is_owner {
            true => (Sort::GetData, link.owner.next_piece(link.way.piece_max())),
            false => (Sort::PutData, link.initiator.next_piece(link.way.piece_max())),
        };
        let Some(Piece { serial, entry, offset, len, .. }) = piece else {
            // Memory that was unregistered meanwhile has left a word.
            let has_word = link.owner.next_word().is_some();
            return if has_word && is_owner { self.step(peer) } else { Step::Idle };
        };
        let bytes = usize::try_from(len).expect("as long as a frame");
        let mut is_there = true;
        let step = self.hand(peer, (sort, serial), (bytes, false), |into| {
            let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, into));
            is_there = matches!(copied, Some(Ok(())));
            is_there
        });
        let Some(link) = self.links.find(peer) else { return Step::Idle };
        match (step, is_owner) {
            (Step::Left, true) => link.owner.sent(len),
            (Step::Left, false) => link.initiator.sent(len),
            (_, true) if !is_there => {
                link.owner.lost_source();
                return self.step(peer);
            }
            _ => {}
        }
        step
    }
}
