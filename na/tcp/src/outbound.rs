//! What is on its way into a connection's socket: frames in order, and one piece of a transfer.
//!
//! Short messages are copied behind each other, so that many leave in one system call; long ones are
//! sent from where they lie. A message is *sent* when the socket has all of it: then it arrives even
//! if this side closes. Between two frames at most one piece of registered memory is sent at a time,
//! and only when no frame waits: messages never wait for more than one piece.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    os::fd::BorrowedFd,
    sync::Arc,
};

use hg_na::{Completion, Error, GoneReason, Message, OpId, Peer, QUIET, Reached, Token};
use hg_na_link::sending::{Sending, ended, given_back};

use crate::frame::{HEADER, Header};
use hg_na_parts::regions::Entry;

/// Messages up to this length are copied.
pub(crate) const COPY_MAX: usize = 8192;
/// Bytes behind each other that make a chunk full.
const CHUNK: usize = 64 << 10;
/// Chunks of one system call.
const VECTORS: usize = 32;

/// A message that the socket does not have yet.
#[derive(Debug)]
struct Leaving {
    /// Bytes of the stream up to its first and its last.
    start: u64,
    end: u64,
    peer: Peer,
    is_control: bool,
    /// `None`: its operation has ended already.
    op: Option<(OpId, Token)>,
    /// To be sent from, or to be given back.
    message: Message,
}

#[derive(Debug)]
enum Chunk {
    Bytes(Vec<u8>),
    /// The message with this number among those that left.
    Long(u64),
}

/// Where a piece's bytes come from.
#[derive(Debug)]
pub(crate) enum Source {
    Memory {
        entry: Arc<Entry>,
        offset: u64,
    },
    /// A copy of the body from `start` on: its memory was wanted back.
    Bytes {
        bytes: Vec<u8>,
        start: usize,
    },
    /// The memory was unregistered in the middle: the frame's length is kept, nothing more.
    Zeros,
}

/// A piece of a put of this side's, or of a get that it serves.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) header: Header,
    pub(crate) peer: Peer,
    pub(crate) source: Source,
    pub(crate) is_last: bool,
    /// Bytes of header and body that the socket has.
    pub(crate) gone: usize,
}

impl Piece {
    fn left(&self) -> usize {
        HEADER + self.header.body() - self.gone
    }

    /// Header bytes that are gone, and body bytes that are gone.
    fn places(&self) -> (usize, usize) {
        (self.gone.min(HEADER), self.gone.saturating_sub(HEADER))
    }

    /// Writes what is left straight from memory; `None` when there is none (any more).
    fn write_memory(&mut self, socket: BorrowedFd<'_>) -> Option<io::Result<usize>> {
        let Source::Memory { entry, offset } = &self.source else { return None };
        let (head, body) = self.places();
        let range = (*offset + body as u64, (self.header.body() - body) as u64);
        let encoded = self.header.encode();
        let before = &encoded[head..];
        match entry.with(|memory| hg_na_memory::write_vectored(socket, before, memory, range)) {
            Some(Ok(written)) => Some(written),
            // Unregistered, or cut outside of its memory, which `Entry::check` has ruled out.
            Some(Err(_)) | None => {
                self.source = Source::Zeros;
                None
            }
        }
    }

    /// Appends the next `max` bytes, at most.
    fn copy(&mut self, max: usize, into: &mut Vec<u8>) {
        let (head, at) = self.places();
        let len = self.left().min(max);
        let of_head = len.min(HEADER - head);
        into.extend_from_slice(&self.header.encode()[head..head + of_head]);
        let place = into.len();
        into.resize(place + len - of_head, 0);
        let body = &mut into[place..];
        match &self.source {
            Source::Memory { entry, offset } => {
                let offset = *offset + at as u64;
                let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, body));
                if !matches!(copied, Some(Ok(()))) {
                    self.source = Source::Zeros;
                }
            }
            Source::Bytes { bytes, start } => {
                body.copy_from_slice(&bytes[at - start..at - start + body.len()]);
            }
            Source::Zeros => {}
        }
    }
}

/// The sending half of a connection.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were taken.
    front: usize,
    spare: Vec<u8>,
    leaving: VecDeque<Leaving>,
    /// How many have left `leaving` so far.
    left: u64,
    /// Bytes of frames ever queued, and given to the socket.
    queued: u64,
    written: u64,
    /// Bytes of frames that the socket was given, or whoever seals them for it: what they belong to may have left.
    taken: u64,
    /// Bytes of messages that the socket does not have yet.
    messages: u64,
    controls: usize,
    pub(crate) piece: Option<Piece>,
}

impl Outbound {
    /// Whether something waits for the socket.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.piece.is_none()
    }

    /// Whether frames wait, besides a piece.
    pub(crate) fn has_frames(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// Bytes of the protocol's own frames that the socket does not have yet. Of a message that it has in part they are
    /// missing: up to the longest message too few.
    pub(crate) fn own_bytes(&self) -> u64 {
        (self.queued - self.written).saturating_sub(self.messages)
    }

    /// Bytes of frames ever queued, and given to the socket.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.queued, self.written)
    }

    /// Control messages that the socket does not have yet.
    pub(crate) fn controls(&self) -> usize {
        self.controls
    }

    /// Queues a frame of the protocol's own.
    pub(crate) fn frame(&mut self, header: Header, body: &[u8]) {
        let chunk = self.tail(HEADER + body.len());
        chunk.extend_from_slice(&header.encode());
        chunk.extend_from_slice(body);
        self.queued += (HEADER + body.len()) as u64;
    }

    /// Queues raw bytes: a greeting.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.tail(bytes.len()).extend_from_slice(bytes);
        self.queued += bytes.len() as u64;
    }

    /// Queues a message.
    #[inline]
    pub(crate) fn message(&mut self, header: Header, peer: Peer, sending: Sending) {
        let Sending { id, token, message, .. } = sending;
        let is_control = header.kind == crate::frame::Kind::Control;
        let (start, len) = (self.queued, message.len());
        if len <= COPY_MAX {
            self.frame(header, message.as_slice());
        } else {
            self.frame(header, &[]);
            self.chunks.push_back(Chunk::Long(self.left + self.leaving.len() as u64));
            self.queued += len as u64;
        }
        self.controls += usize::from(is_control);
        let op = Some((id, token));
        let end = self.queued;
        self.messages += end - start;
        self.leaving.push_back(Leaving { start, end, peer, is_control, op, message });
    }

    /// Queues a copy of a message of [`COPY_MAX`] bytes at most, which is no control message.
    #[inline]
    pub(crate) fn copy(&mut self, header: Header, peer: Peer, op: (OpId, Token), bytes: &[u8]) {
        let start = self.queued;
        self.frame(header, bytes);
        let (end, message) = (self.queued, Message::inline(0));
        self.messages += end - start;
        self.leaving.push_back(Leaving {
            start,
            end,
            peer,
            is_control: false,
            op: Some(op),
            message,
        });
    }

    fn tail(&mut self, len: usize) -> &mut Vec<u8> {
        let fits = |chunk: &Chunk| matches!(chunk, Chunk::Bytes(it) if it.len() + len <= CHUNK);
        if !self.chunks.back().is_some_and(fits) {
            self.chunks.push_back(Chunk::Bytes(std::mem::take(&mut self.spare)));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Bytes(bytes)) => bytes,
            _ => unreachable!("pushed above"),
        }
    }

    /// Bytes of a chunk that are still to be taken, the first one's from `front` on.
    fn rest(&self, place: usize) -> &[u8] {
        let skip = if place == 0 { self.front } else { 0 };
        match &self.chunks[place] {
            Chunk::Bytes(bytes) => &bytes[skip..],
            Chunk::Long(number) => {
                let place = usize::try_from(number - self.left).expect("a place in memory");
                &self.leaving[place].message.as_slice()[skip..]
            }
        }
    }

    /// One system call with as many frames as it takes.
    ///
    /// # Errors
    /// What the system says, `WouldBlock` among it.
    pub(crate) fn write_frames(&mut self, socket: &mut impl Write) -> io::Result<usize> {
        let written = if self.chunks.len() == 1 {
            socket.write(self.rest(0))?
        } else {
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let count = self.chunks.len().min(VECTORS);
            for (place, slice) in slices[..count].iter_mut().enumerate() {
                *slice = IoSlice::new(self.rest(place));
            }
            socket.write_vectored(&slices[..count])?
        };
        self.consume(written);
        Ok(written)
    }

    /// Copies up to `max` bytes out, of frames or of the piece that is under way, to be sealed.
    pub(crate) fn gather(&mut self, max: usize, into: &mut Vec<u8>) -> usize {
        let start = into.len();
        if let Some(piece) = &mut self.piece {
            piece.copy(max, into);
            piece.gone += into.len() - start;
            return into.len() - start;
        }
        while !self.chunks.is_empty() && into.len() - start < max {
            let rest = self.rest(0);
            let len = rest.len().min(max - (into.len() - start));
            into.extend_from_slice(&rest[..len]);
            self.consume(len);
        }
        into.len() - start
    }

    /// One system call with the rest of the piece.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write_piece(
        &mut self,
        socket: &mut (impl Write + std::os::fd::AsFd),
    ) -> io::Result<usize> {
        let Some(piece) = &mut self.piece else { return Ok(0) };
        let written = match piece.write_memory(socket.as_fd()) {
            Some(written) => written?,
            None => {
                let mut rest = Vec::new();
                piece.copy(piece.left(), &mut rest);
                socket.write(&rest)?
            }
        };
        piece.gone += written;
        Ok(written)
    }

    /// The piece, when the socket has all of it.
    pub(crate) fn finished_piece(&mut self) -> Option<Piece> {
        self.piece.take_if(|piece| piece.left() == 0)
    }

    /// Copies the rest of the piece under way out of memory that its owner wants back.
    pub(crate) fn detach(&mut self, peer: Peer, serial: u64) {
        let Some(piece) = &mut self.piece else { return };
        let (_, start) = piece.places();
        let Source::Memory { entry, offset } = &piece.source else { return };
        if piece.peer != peer || piece.header.word != serial {
            return;
        }
        let mut bytes = vec![0; piece.header.body() - start];
        let offset = *offset + start as u64;
        let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, &mut bytes));
        piece.source = match copied {
            Some(Ok(())) => Source::Bytes { bytes, start },
            _ => Source::Zeros,
        };
    }

    /// `len` bytes of frames were taken from the front.
    fn consume(&mut self, len: usize) {
        self.taken += len as u64;
        let mut left = len;
        while left > 0 || (!self.chunks.is_empty() && self.rest(0).is_empty()) {
            let here = self.rest(0).len();
            if left < here {
                self.front += left;
                return;
            }
            left -= here;
            self.front = 0;
            if let Some(Chunk::Bytes(mut bytes)) = self.chunks.pop_front() {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }

    /// The socket has `len` more bytes of frames: what has left by them has been sent.
    pub(crate) fn settle(&mut self, len: usize, done: &mut Vec<Completion>) {
        self.written += len as u64;
        while self.leaving.front().is_some_and(|leaving| leaving.end <= self.written) {
            let Some(Leaving { start, end, op, message, is_control, .. }) =
                self.leaving.pop_front()
            else {
                break;
            };
            self.left += 1;
            self.messages -= end - start;
            self.controls -= usize::from(is_control);
            if let Some((id, token)) = op.filter(|(_, token)| token & QUIET == 0) {
                done.push(ended(id, token, None, given_back(message)));
            }
        }
    }

    /// Ends the messages of one peer, though they may still be sent.
    pub(crate) fn abandon(&mut self, peer: Peer, why: &GoneReason, done: &mut Vec<Completion>) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.peer == peer) {
            let Some((id, token)) = leaving.op.take() else { continue };
            let copy = if leaving.message.slot().is_some() {
                Message::copied(leaving.message.as_slice())
            } else {
                Message::from(leaving.message.as_slice().to_vec())
            };
            let message = std::mem::replace(&mut leaving.message, copy);
            let failure = Some((Error::PeerGone(why.clone()), Reached::Unknown));
            done.push(ended(id, token, failure, given_back(message)));
        }
    }

    /// Ends everything: the connection takes nothing more.
    pub(crate) fn fail(&mut self, peer: Peer, why: &GoneReason, done: &mut Vec<Completion>) {
        let taken = self.taken;
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.peer == peer) {
            let Some((id, token)) = leaving.op.take() else { continue };
            let message = std::mem::replace(&mut leaving.message, Message::inline(0));
            let is_inside = leaving.start >= taken;
            let reached = if is_inside { Reached::Never } else { Reached::Unknown };
            let failure = Some((Error::PeerGone(why.clone()), reached));
            done.push(ended(id, token, failure, given_back(message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use hg_na::Done;

    use super::*;
    use crate::frame::{Kind, LinkId};

    fn sending(serial: u64, len: usize) -> Sending {
        let id = OpId { scope: 0, serial };
        Sending::new(id, serial, 0, Message::from(vec![7; len]))
    }

    fn reached(done: &[Completion]) -> Vec<(Token, Option<Reached>)> {
        let of = |it: &Completion| match it {
            Completion::Done(Done { token, result, .. }) => {
                (*token, result.as_ref().err().map(|failure| failure.reached))
            }
            other => panic!("{other:?}"),
        };
        done.iter().map(of).collect()
    }

    #[test]
    fn what_was_taken_to_be_sealed_may_have_reached_its_peer() {
        let (peer, mut outbound) = (Peer::new(1, 0), Outbound::default());
        for (serial, len) in [(1, 100), (2, 100), (3, COPY_MAX + 1), (4, 100)] {
            let link = LinkId { side: 0, epoch: 0 };
            let header =
                Header { kind: Kind::Unexpected, len: u32::try_from(len).unwrap(), link, word: 0 };
            outbound.message(header, peer, sending(serial, len));
        }
        // The first one is with the socket; of the third one a byte is in a record.
        let mut plain = Vec::new();
        let first = outbound.gather(HEADER + 100, &mut plain);
        let mut done = Vec::new();
        outbound.settle(first, &mut done);
        outbound.gather(2 * HEADER + 100 + 1, &mut plain);
        outbound.fail(peer, &GoneReason::Exited, &mut done);
        let expected = [None, Some(Reached::Unknown), Some(Reached::Unknown), Some(Reached::Never)];
        assert_eq!(reached(&done), (1..).zip(expected).collect::<Vec<_>>());
    }
}
