//! What is on its way into a connection's socket: frames in order, and one piece of a transfer.
//!
//! Short messages are copied behind each other, so that many leave in one system call; long ones are
//! sent from where they lie. A message is *sent* when the socket has all of it: then it arrives even
//! if this side closes. Between two frames at most one piece of registered memory is sent at a time,
//! and only when no frame waits: messages never wait for more than one piece.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
};

use hg_na::{Completion, Error, GoneReason, Message, OpId, Peer, QUIET, Reached, Token};
use hg_na_link::{
    VERDICT_LEN, Verdict,
    sending::{Sending, ended, given_back},
};
use hg_na_parts::regions::Entry;
use nix::libc::MSG_NOSIGNAL;
use socket2::Socket;

use crate::frame::{HEADER, Header, Kind};

/// Messages up to this length are copied.
pub(crate) const COPY_MAX: usize = 8192;
/// Bytes behind each other that make a chunk full.
const CHUNK: usize = 64 << 10;
/// Chunks of one system call.
const VECTORS: usize = 32;
/// Bytes of the word that ends a get.
const WORD: usize = HEADER + VERDICT_LEN;

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

/// A piece of a put of this side's, or of a get that it serves. What waited before it leaves with it, and so does the word that
/// ends a get: one system call, and one segment where they are short.
#[derive(Debug)]
pub(crate) struct Piece {
    header: Header,
    peer: Peer,
    source: Source,
    is_last: bool,
    /// Frames that leave before it, and its header.
    before: Vec<u8>,
    /// Bytes of all that the socket has.
    gone: usize,
}

impl Piece {
    pub(crate) fn new(header: Header, peer: Peer, source: Source, is_last: bool) -> Self {
        Self { header, peer, source, is_last, before: Vec::new(), gone: 0 }
    }

    /// What follows the last byte of a get.
    fn word(&self) -> Option<[u8; WORD]> {
        if self.header.kind != Kind::GetData || !self.is_last {
            return None;
        }
        let is_stale = matches!(self.source, Source::Zeros);
        let verdict = if is_stale { Verdict::Stale } else { Verdict::Ok };
        let len = u32::try_from(VERDICT_LEN).expect("12");
        let mut word = [0; WORD];
        word[..HEADER].copy_from_slice(&Header { kind: Kind::End, len, ..self.header }.encode());
        word[HEADER..].copy_from_slice(&verdict.encode());
        Some(word)
    }

    fn left(&self) -> usize {
        let word = self.word().map_or(0, |word| word.len());
        self.before.len() + self.header.body() + word - self.gone
    }

    /// Bytes that are gone: before the body, of it, and behind it.
    fn places(&self) -> (usize, usize, usize) {
        let (before, body) = (self.before.len(), self.header.body());
        let behind = self.gone.saturating_sub(before + body);
        (self.gone.min(before), self.gone.saturating_sub(before).min(body), behind)
    }

    /// Bytes of frames that are gone.
    fn frames_gone(&self) -> usize {
        self.gone.min(self.before.len() - HEADER)
    }

    /// Writes what is left straight from memory; `None` when there is none (any more).
    fn write_memory(&mut self, socket: BorrowedFd<'_>) -> Option<io::Result<usize>> {
        let Source::Memory { entry, offset } = &self.source else { return None };
        let (head, body, _) = self.places();
        // Once all of it is gone, so is what the word says of it.
        if body == self.header.body() {
            return None;
        }
        let range = (*offset + body as u64, (self.header.body() - body) as u64);
        let word = self.word();
        let ends = (&self.before[head..], word.as_ref().map_or(&[][..], |word| &word[..]));
        match entry.with(|memory| hg_na_memory::write_vectored(socket, ends, memory, range)) {
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
        let mut room = self.left().min(max);
        let (head, at, behind) = self.places();
        let before = room.min(self.before.len() - head);
        into.extend_from_slice(&self.before[head..head + before]);
        room -= before;
        let len = room.min(self.header.body() - at);
        if len > 0 {
            self.copy_body(at, len, into);
        }
        if let Some(word) = self.word() {
            into.extend_from_slice(&word[behind..behind + room - len]);
        }
    }

    fn copy_body(&mut self, at: usize, len: usize, into: &mut Vec<u8>) {
        let place = into.len();
        into.resize(place + len, 0);
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
    piece: Option<Piece>,
}

impl Outbound {
    /// Whether something waits for the socket.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.piece.is_none()
    }

    /// Whether a piece is on its way.
    pub(crate) fn has_piece(&self) -> bool {
        self.piece.is_some()
    }

    /// Whether a piece can be begun: what waits is nothing, or, where it may leave with the piece, short.
    pub(crate) fn takes_piece(&self, with_frames: bool) -> bool {
        let is_short = |chunk: &Chunk| matches!(chunk, Chunk::Bytes(it) if it.len() <= COPY_MAX);
        self.piece.is_none()
            && (self.chunks.is_empty()
                || with_frames && self.chunks.len() == 1 && is_short(&self.chunks[0]))
    }

    /// Begins a piece, behind the frames that wait, which [leave with it](Outbound::takes_piece).
    pub(crate) fn begin_piece(&mut self, mut piece: Piece) {
        piece.before.reserve_exact(HEADER);
        if let Some(Chunk::Bytes(mut bytes)) = self.chunks.pop_front() {
            piece.before.extend_from_slice(&bytes[self.front..]);
            bytes.clear();
            (self.front, self.spare) = (0, bytes);
        }
        piece.before.extend_from_slice(&piece.header.encode());
        self.piece = Some(piece);
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
        let (start, len) = (self.queued, message.len());
        if len <= COPY_MAX {
            self.frame(header, message.as_slice());
        } else {
            self.frame(header, &[]);
            self.chunks.push_back(Chunk::Long(self.left + self.leaving.len() as u64));
            self.queued += len as u64;
        }
        self.leaves((start, header.kind), peer, (id, token), message);
    }

    /// Queues a copy of a message of [`COPY_MAX`] bytes at most.
    #[inline]
    pub(crate) fn copy(&mut self, header: Header, peer: Peer, op: (OpId, Token), bytes: &[u8]) {
        let start = self.queued;
        self.frame(header, bytes);
        self.leaves((start, header.kind), peer, op, Message::inline(0));
    }

    /// A message was queued, from `start` on.
    #[inline]
    fn leaves(
        &mut self,
        (start, kind): (u64, Kind),
        peer: Peer,
        op: (OpId, Token),
        message: Message,
    ) {
        let (end, is_control) = (self.queued, kind == Kind::Control);
        self.controls += usize::from(is_control);
        self.messages += end - start;
        let op = Some(op);
        self.leaving.push_back(Leaving { start, end, peer, is_control, op, message });
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
    pub(crate) fn write_frames(&mut self, socket: &Socket) -> io::Result<usize> {
        // Not `writev(2)`, which raises SIGPIPE in processes that have not turned it off.
        let written = if self.chunks.len() == 1 {
            socket.send_with_flags(self.rest(0), MSG_NOSIGNAL)?
        } else {
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let count = self.chunks.len().min(VECTORS);
            for (place, slice) in slices[..count].iter_mut().enumerate() {
                *slice = IoSlice::new(self.rest(place));
            }
            socket.send_vectored_with_flags(&slices[..count], MSG_NOSIGNAL)?
        };
        self.consume(written);
        Ok(written)
    }

    /// Copies up to `max` bytes out, of frames or of the piece that is under way, to be sealed. How many, and how many of them are
    /// frames'.
    pub(crate) fn gather(&mut self, max: usize, into: &mut Vec<u8>) -> (usize, usize) {
        let start = into.len();
        if let Some(piece) = &mut self.piece {
            piece.copy(max, into);
            let len = into.len() - start;
            return (len, self.piece_gone(len));
        }
        while !self.chunks.is_empty() && into.len() - start < max {
            let rest = self.rest(0);
            let len = rest.len().min(max - (into.len() - start));
            into.extend_from_slice(&rest[..len]);
            self.consume(len);
        }
        let len = into.len() - start;
        (len, len)
    }

    /// So many bytes of the piece were taken; gives how many of them are frames'.
    fn piece_gone(&mut self, len: usize) -> usize {
        let Some(piece) = &mut self.piece else { return 0 };
        let before = piece.frames_gone();
        piece.gone += len;
        let frames = piece.frames_gone() - before;
        self.taken += frames as u64;
        frames
    }

    /// One system call with the rest of the piece. How many bytes the socket took, and how many of them are frames'.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write_piece(&mut self, socket: &Socket) -> io::Result<(usize, usize)> {
        let Some(piece) = &mut self.piece else { return Ok((0, 0)) };
        let written = match piece.write_memory(socket.as_fd()) {
            Some(written) => written?,
            None => {
                let mut rest = Vec::new();
                piece.copy(piece.left(), &mut rest);
                socket.send_with_flags(&rest, MSG_NOSIGNAL)?
            }
        };
        Ok((written, self.piece_gone(written)))
    }

    /// Lets go of the piece, when the socket has all of it.
    pub(crate) fn finish_piece(&mut self) -> bool {
        self.piece.take_if(|piece| piece.left() == 0).is_some()
    }

    /// Copies the rest of the piece under way out of memory that its owner wants back: of this transfer of the peer's, or of any.
    pub(crate) fn detach(&mut self, peer: Peer, serial: Option<u64>) {
        let Some(piece) = &mut self.piece else { return };
        let (_, start, _) = piece.places();
        let Source::Memory { entry, offset } = &piece.source else { return };
        let is_gone = start == piece.header.body();
        let is_it = piece.peer == peer && serial.is_none_or(|serial| serial == piece.header.word);
        if is_gone || !is_it {
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

    /// Ends the messages of one peer. `goes_on`: the connection does, and they may still be sent.
    pub(crate) fn end(
        &mut self,
        (peer, why): (Peer, &GoneReason),
        goes_on: bool,
        done: &mut Vec<Completion>,
    ) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.peer == peer) {
            let Some((id, token)) = leaving.op.take() else { continue };
            let bytes = if goes_on { leaving.message.as_slice() } else { &[] };
            let copy = Message::copied(bytes);
            let message = std::mem::replace(&mut leaving.message, copy);
            let is_inside = !goes_on && leaving.start >= self.taken;
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
    use crate::frame::LinkId;

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
        let (first, _) = outbound.gather(HEADER + 100, &mut plain);
        let mut done = Vec::new();
        outbound.settle(first, &mut done);
        outbound.gather(2 * HEADER + 100 + 1, &mut plain);
        outbound.end((peer, &GoneReason::Exited), false, &mut done);
        let expected = [None, Some(Reached::Unknown), Some(Reached::Unknown), Some(Reached::Never)];
        assert_eq!(reached(&done), (1..).zip(expected).collect::<Vec<_>>());
    }

    fn header(kind: Kind, word: u64, len: usize) -> Header {
        let link = LinkId { side: 0, epoch: 0 };
        Header { kind, len: u32::try_from(len).unwrap(), link, word }
    }

    #[test]
    fn what_waits_leaves_before_a_piece_and_a_gets_last_word_behind_it_however_they_are_cut() {
        let peer = Peer::new(1, 0);
        for (is_stale, cut) in
            [1, 3, 7, 40, 1000].iter().flat_map(|cut| [(false, *cut), (true, *cut)])
        {
            let mut outbound = Outbound::default();
            outbound.frame(header(Kind::Unexpected, 1, 5), b"first");
            assert!(outbound.takes_piece(true) && !outbound.takes_piece(false));
            let bytes = vec![7; 100];
            let source = if is_stale { Source::Zeros } else { Source::Bytes { bytes, start: 0 } };
            outbound.begin_piece(Piece::new(header(Kind::GetData, 9, 100), peer, source, true));
            outbound.frame(header(Kind::Unexpected, 2, 4), b"last");
            let (mut stream, mut done) = (Vec::new(), Vec::new());
            while let (1.., frames) = outbound.gather(cut, &mut stream) {
                outbound.settle(frames, &mut done);
                outbound.finish_piece();
            }
            let (queued, written) = outbound.progress();
            assert_eq!(
                (written, outbound.taken),
                (queued, queued),
                "what went with a piece counts"
            );
            let verdict = if is_stale { Verdict::Stale } else { Verdict::Ok }.encode();
            let body = [if is_stale { 0 } else { 7 }; 100];
            let parts: [&[u8]; 8] = [
                &header(Kind::Unexpected, 1, 5).encode(),
                b"first",
                &header(Kind::GetData, 9, 100).encode(),
                &body,
                &header(Kind::End, 9, VERDICT_LEN).encode(),
                &verdict,
                &header(Kind::Unexpected, 2, 4).encode(),
                b"last",
            ];
            assert_eq!(stream, parts.concat(), "cut by {cut}");
        }
    }
}
