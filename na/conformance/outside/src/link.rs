//! One connection: frames in and out, credits, and the matching of expected messages.
//!
//! # Frame (little-endian)
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 1 | lane: 0 control, 1 expected, 2 unexpected; 3 gives a credit back |
//! | 1 | 8 | tag; of a credit its lane |
//! | 9 | 4 | length of the message |
//!
//! Each lane has [`CREDITS`] of its own and a message costs one, so that whatever arrives has its
//! place, and the stream can always be read to its end: no lane waits for another.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{ErrorKind, Read as _, Write as _},
    sync::Arc,
};

use hg_na::{
    Completion, Done, Error, Failure, GoneReason, Message, OpId, Peer, Reached, Returned, Tag,
    Token,
};
use socket2::Socket;

pub(crate) const CONTROL: usize = 0;
pub(crate) const EXPECTED: usize = 1;
pub(crate) const UNEXPECTED: usize = 2;
const CREDIT: usize = 3;

/// Messages of one lane that the other side holds.
pub(crate) const CREDITS: usize = 64;
/// Longest message of each lane, in bytes.
pub(crate) const LONGEST: [usize; 3] = [48, 4096, 4096];
const HEADER: usize = 13;

pub(crate) struct Sending {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) tag: Tag,
    pub(crate) message: Message,
}

#[derive(Default)]
pub(crate) struct Link {
    pub(crate) socket: Option<Socket>,
    /// Whether an operation asks for the connection.
    pub(crate) wanted: bool,
    /// Why the connection ended; what had arrived is still handed out.
    pub(crate) ended: Option<GoneReason>,
    /// Wait for credits.
    pub(crate) waiting: [VecDeque<Sending>; 3],
    spent: [usize; 3],
    /// Bytes for the socket, and the messages among them: each with the bytes up to its end.
    out: VecDeque<u8>,
    leaving: VecDeque<(usize, Sending)>,
    input: Vec<u8>,
    requests: VecDeque<Message>,
    pub(crate) receives: BTreeMap<Tag, (OpId, Token)>,
    /// Of each lane, how few may wait before room is told; `None`: nothing was refused since.
    pub(crate) refused: [Option<usize>; 3],
    /// Its unexpected messages stay here although they are taken of others.
    pub(crate) is_shut: bool,
    /// `HungUp` was told.
    has_hung_up: bool,
}

pub(crate) fn finished(
    id: OpId,
    token: Token,
    error: Option<(Error, Reached)>,
    back: Returned,
) -> Completion {
    let result = error.map_or(Ok(()), |(error, reached)| Err(Box::new(Failure { error, reached })));
    Completion::Done(Done { id, token, result, returned: back })
}

impl Link {
    /// Moves everything that can move; says whether anything did.
    pub(crate) fn progress(
        &mut self,
        own: Peer,
        admission: bool,
        done: &mut Vec<Completion>,
    ) -> bool {
        let mut moved = self.read();
        while let Some((lane, tag, message)) = self.next_frame() {
            self.arrived(own, lane, tag, message, done);
        }
        while admission
            && !self.is_shut
            && let Some(message) = self.requests.pop_front()
        {
            self.give_back(UNEXPECTED);
            done.push(Completion::Unexpected { from: own, message });
        }
        for lane in [CONTROL, EXPECTED, UNEXPECTED] {
            self.spend(lane);
        }
        moved |= self.write(done);
        moved | self.tell_room(own, done)
    }

    /// Tells room once for all lanes that have some again.
    fn tell_room(&mut self, own: Peer, done: &mut Vec<Completion>) -> bool {
        let mut has_room = false;
        for (refused, waiting) in self.refused.iter_mut().zip(&self.waiting) {
            let told = refused.take_if(|few| waiting.len() <= *few);
            has_room |= told.is_some() && self.ended.is_none();
        }
        if has_room {
            done.push(Completion::Room { peer: own });
        }
        has_room
    }

    pub(crate) fn connected(socket: Socket) -> Self {
        Self { socket: Some(socket), ..Self::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.socket.is_some() && self.ended.is_none()
    }

    /// Whether the socket has every message up to this one.
    pub(crate) fn has_sent(&self, serial: u64) -> bool {
        let leaving = self.leaving.iter().map(|(_, sending)| sending);
        let waiting = self.waiting.iter().filter_map(VecDeque::front);
        waiting.chain(leaving).all(|sending| sending.id.serial > serial)
    }

    fn end(&mut self, reason: GoneReason) {
        self.socket = None;
        self.ended.get_or_insert(reason);
    }

    /// Closes the connection; what had arrived is nobody's any more.
    pub(crate) fn forget(&mut self) {
        self.input.clear();
        self.requests.clear();
        self.end(GoneReason::Forgotten);
    }

    fn misbehaved(&mut self, why: &str) {
        self.input.clear();
        self.end(GoneReason::Misbehaved(Arc::from(why)));
    }

    fn read(&mut self) -> bool {
        let mut bytes = [0; 16_384];
        let Some(socket) = self.socket.as_mut() else { return false };
        match socket.read(&mut bytes) {
            Ok(0) => self.end(GoneReason::Closed),
            Ok(len) => {
                self.input.extend(&bytes[..len]);
                return true;
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.end(GoneReason::Exited),
        }
        false
    }

    /// Cuts one whole frame off the input; a wrong one ends the connection.
    fn next_frame(&mut self) -> Option<(usize, Tag, Message)> {
        let header: [u8; HEADER] = *self.input.first_chunk()?;
        let [lane, tag_0, tag_1, tag_2, tag_3, tag_4, tag_5, tag_6, tag_7, len @ ..] = header;
        let tag = u64::from_le_bytes([tag_0, tag_1, tag_2, tag_3, tag_4, tag_5, tag_6, tag_7]);
        let (lane, len) = (usize::from(lane), usize::try_from(u32::from_le_bytes(len)).ok()?);
        let longest = if lane == CREDIT { Some(&0) } else { LONGEST.get(lane) };
        if longest.is_none_or(|longest| len > *longest) {
            self.misbehaved("a frame of unknown kind or too long");
            return None;
        }
        let message = Message::copied(self.input.get(HEADER..HEADER + len)?);
        self.input.drain(..HEADER + len);
        Some((lane, tag, message))
    }

    fn arrived(
        &mut self,
        own: Peer,
        lane: usize,
        tag: Tag,
        message: Message,
        done: &mut Vec<Completion>,
    ) {
        match lane {
            CONTROL => {
                self.give_back(CONTROL);
                done.push(Completion::Control { from: own, message });
            }
            UNEXPECTED if self.requests.len() < CREDITS => self.requests.push_back(message),
            EXPECTED => {
                self.give_back(EXPECTED);
                // Without a receive it is late.
                if let Some((id, token)) = self.receives.remove(&tag) {
                    done.push(finished(id, token, None, Returned::Message(message)));
                }
            }
            _ => {
                let spent = usize::try_from(tag).ok().and_then(|lane| self.spent.get_mut(lane));
                match spent.filter(|spent| lane == CREDIT && **spent > 0) {
                    Some(spent) => *spent -= 1,
                    None => self.misbehaved("more messages or credits than there are"),
                }
            }
        }
    }

    fn give_back(&mut self, lane: usize) {
        self.frame(CREDIT, lane as u64, &[]);
    }

    fn frame(&mut self, lane: usize, tag: Tag, bytes: &[u8]) {
        self.out.push_back(u8::try_from(lane).expect("four kinds of frames"));
        self.out.extend(tag.to_le_bytes());
        let len = u32::try_from(bytes.len()).expect("a message is at most 4096 bytes");
        self.out.extend(len.to_le_bytes());
        self.out.extend(bytes);
    }

    fn spend(&mut self, lane: usize) {
        while self.socket.is_some()
            && self.spent[lane] < CREDITS
            && let Some(sending) = self.waiting[lane].pop_front()
        {
            self.spent[lane] += 1;
            self.frame(lane, sending.tag, sending.message.as_slice());
            self.leaving.push_back((self.out.len(), sending));
        }
    }

    /// A message is sent when the socket has all of it: then it arrives even if this side closes.
    fn write(&mut self, done: &mut Vec<Completion>) -> bool {
        let mut moved = false;
        while let Some(socket) = self.socket.as_mut()
            && !self.out.is_empty()
        {
            // An error shows in `read`, after everything that the peer had sent.
            let Ok(len) = socket.write(self.out.as_slices().0) else { break };
            self.out.drain(..len);
            moved |= len > 0;
            for (end, _) in &mut self.leaving {
                *end = end.saturating_sub(len);
            }
            while self.leaving.front().is_some_and(|(end, _)| *end == 0) {
                let Some((_, sent)) = self.leaving.pop_front() else { break };
                done.push(finished(sent.id, sent.token, None, Returned::Message(sent.message)));
            }
        }
        moved
    }

    /// Ends one operation that has not left yet.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        for queue in &mut self.waiting {
            if let Some(place) = queue.iter().position(|sending| sending.id == id) {
                let Sending { token, message, .. } = queue.remove(place)?;
                let error = Some((Error::Cancelled, Reached::Never));
                return Some(finished(id, token, error, Returned::Message(message)));
            }
        }
        let tag = *self.receives.iter().find(|(_, (receive, _))| *receive == id)?.0;
        let (_, token) = self.receives.remove(&tag)?;
        Some(finished(id, token, Some((Error::Cancelled, Reached::Unknown)), Returned::Nothing))
    }

    /// Ends everything; true when nothing is left to hand out, so that the peer is gone.
    pub(crate) fn bury(
        &mut self,
        peer: Peer,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    ) -> bool {
        let gone = |reached| Some((Error::PeerGone(reason.clone()), reached));
        for (_, Sending { id, token, message, .. }) in self.leaving.drain(..) {
            done.push(finished(id, token, gone(Reached::Unknown), Returned::Message(message)));
        }
        for Sending { id, token, message, .. } in
            self.waiting.iter_mut().flat_map(|queue| queue.drain(..))
        {
            done.push(finished(id, token, gone(Reached::Never), Returned::Message(message)));
        }
        for (id, token) in std::mem::take(&mut self.receives).into_values() {
            done.push(finished(id, token, gone(Reached::Unknown), Returned::Nothing));
        }
        if !std::mem::replace(&mut self.has_hung_up, true) {
            done.push(Completion::HungUp { peer, reason: reason.clone() });
        }
        self.requests.is_empty()
    }
}
