//! One TCP connection: socket, phases, and up to two links over it.
//!
//! ```text
//! dialled:   Connecting -writable-> Greeting -Welcome-> Open -end of stream, error-> gone
//! accepted:                         Greeting -Hello---> Open
//! ```
//! With a key, the two messages of the key exchange come first in `Greeting`, and everything after them
//! is sealed.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use hg_na::{Completion, Peer};
pub(crate) use hg_na_link::Key as WireKey;
use hg_na_memory::NotInherited;
use hg_na_parts::{
    WaitSet,
    bounds::probes,
    key::{Exchange, Seal},
};
use nix::{libc::MSG_NOSIGNAL, sys::epoll::EpollFlags};
use socket2::{Socket, TcpKeepalive};

use crate::{
    address::Target,
    frame::{Header, Kind, LinkId, OWN_BYTES_MAX, PIECE_MAX},
    greeting::{Greeting, Incarnation, Nonce},
    inbound::Inbound,
    kernel::{answers, repeat_within},
    outbound::{Outbound, Piece},
    part::Part,
};

/// Bytes that one flush writes before others have their turn.
const FLUSH_MAX: usize = 1 << 20;
/// Bytes of a piece where the socket takes little and is to: what a message waits for at most, with those that the kernel has not sent.
const PIECE_MIN: usize = 16 << 10;
/// Sealed bytes of one system call, about.
const SEALED_MAX: usize = 128 << 10;
/// Plaintext of a record: it and its ciphertext lie in the first cache together, and little is copied where a read cuts it in two.
const RECORD: usize = 16 << 10;
#[cfg(feature = "tcp-key")]
const _: () = assert!(RECORD <= hg_na_parts::key::RECORD_MAX);

/// What the kernel is to tell of a socket, once for each time: what comes, and its end.
pub(crate) const ARRIVALS: EpollFlags =
    EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP).union(EpollFlags::EPOLLET);
/// Space for what leaves, too.
pub(crate) const SPACE: EpollFlags = ARRIVALS.union(EpollFlags::EPOLLOUT);

/// Which end this is; also the side of the links that it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Dialler = 0,
    Acceptor = 1,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Greeting,
    Open,
}

/// A link's place on its connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slot {
    pub(crate) peer: Option<Peer>,
    /// Of the present link, or the last one.
    pub(crate) epoch: u16,
}

/// What a flush came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing waits.
    Idle,
    /// The socket is full; the kernel tells when it is not.
    Blocked,
    /// There is more: it is another's turn.
    More,
    /// The socket is broken: what it still holds is to be read.
    Broken,
}

/// How far one connection is to get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FlushTo {
    /// It has got there.
    #[default]
    Done,
    /// So many bytes of frames are to be given to the socket.
    Frames(u64),
    /// So many bytes of the socket's are to be acknowledged.
    Bytes(u64),
}

/// Memory for what is sealed and sent. A context has one such, which a connection keeps while sealed bytes of it wait for its socket.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// The keys of a sealed connection, and what the socket has not taken yet.
#[derive(Debug)]
pub(crate) struct Sealing {
    pub(crate) seal: Seal,
    buffers: Buffers,
    at: usize,
    /// Bytes of frames among what is sealed.
    unsettled: usize,
}

impl Sealing {
    /// Sealed bytes that the socket does not have yet.
    fn left(&self) -> usize {
        self.buffers.sealed.len() - self.at
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) key: WireKey,
    // Before the stream, so that it is dropped first.
    pub(crate) kept: NotInherited,
    pub(crate) stream: Socket,
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    pub(crate) remote: Option<SocketAddr>,
    /// Dialled: whom, and whether a connection of its own is wanted. Accepted: who it claims to be.
    pub(crate) target: Option<Target>,
    pub(crate) insists: bool,
    /// Addresses of the target that were not tried yet.
    pub(crate) others: Vec<SocketAddr>,
    pub(crate) incarnation: Incarnation,
    /// What its two ends, and nobody else, call this connection; once its Hello was made or has come.
    pub(crate) nonce: Option<Nonce>,
    /// Of one that is dialled: a connection that its target had made has ended meanwhile.
    pub(crate) ended: Option<Nonce>,
    pub(crate) slots: [Slot; 2],
    pub(crate) exchange: Option<Exchange>,
    pub(crate) sealing: Option<Box<Sealing>>,
    /// What has come of a greeting.
    pub(crate) greeting: Vec<u8>,
    pub(crate) inbound: Inbound,
    /// Bytes that were read since it is open, and what of them is counted: a message in part.
    pub(crate) received: u64,
    pub(crate) part: Option<Part>,
    pub(crate) outbound: Outbound,
    pub(crate) deadline: Option<Instant>,
    /// The kernel told of bytes that were not read yet; of an end.
    pub(crate) is_readable: bool,
    pub(crate) is_ending: bool,
    /// In the context's list of wires to be read, to be flushed.
    pub(crate) is_listed: bool,
    pub(crate) is_dirty: bool,
    /// It is not read because its peer does not read ([`Wire::may_read`]).
    pub(crate) is_stopped: bool,
    /// The last write found the socket full; the kernel is asked to tell of space.
    pub(crate) is_blocked: bool,
    pub(crate) wants_space: bool,
    /// Why the socket takes nothing more.
    pub(crate) broken_by: Option<io::ErrorKind>,
    /// Something was written that is perhaps not acknowledged; how many looks found the peer silent.
    pub(crate) is_watched: bool,
    pub(crate) doubts: u8,
    /// It was accepted by this context then, and has not said who it is.
    pub(crate) stranger_since: Option<Instant>,
    /// The peer has said goodbye.
    pub(crate) is_closed: bool,
    /// This side closed its last link, and waits for the other end to close the connection.
    pub(crate) is_retiring: bool,
    /// A get is to be served that was asked for since the last flush.
    pub(crate) has_pieces: bool,
    /// Bytes of the next piece: the least where the socket has just taken no more, and twice as many with each that it takes at once.
    pub(crate) piece_len: usize,
    piece_min: usize,
    /// The socket took no more since the last piece ended.
    was_cut: bool,
    /// Whose turn it is to send a piece.
    pub(crate) turn: usize,
    /// Bytes that the socket was given, and how far the flush under way goes.
    pub(crate) sent: u64,
    pub(crate) flush_to: FlushTo,
    /// System calls that wrote, for tests and figures.
    pub(crate) writes: u64,
}

impl Wire {
    /// A connection that is being made, or was accepted.
    pub(crate) fn new(key: WireKey, stream: Socket, role: Role) -> Self {
        let phase = if role == Role::Dialler { Phase::Connecting } else { Phase::Greeting };
        Self {
            key,
            kept: NotInherited::new(stream.as_fd()),
            stream,
            role,
            phase,
            nonce: None,
            ended: None,
            remote: None,
            target: None,
            insists: false,
            others: Vec::new(),
            incarnation: [0; 16],
            slots: [Slot::default(); 2],
            exchange: None,
            sealing: None,
            greeting: Vec::new(),
            inbound: Inbound::new(),
            received: 0,
            part: None,
            outbound: Outbound::default(),
            deadline: None,
            is_readable: false,
            is_ending: false,
            is_listed: false,
            is_dirty: false,
            is_stopped: false,
            is_blocked: false,
            wants_space: role == Role::Dialler,
            broken_by: None,
            is_watched: false,
            doubts: 0,
            stranger_since: None,
            is_closed: false,
            is_retiring: false,
            has_pieces: false,
            piece_len: PIECE_MAX,
            piece_min: PIECE_MAX,
            was_cut: false,
            turn: 0,
            sent: 0,
            flush_to: FlushTo::default(),
            writes: 0,
        }
    }

    /// The other end's address, and the options of the socket. Called once it is connected.
    ///
    /// The kernel probes an idle peer after a third of `bound`, and gives one up at `bound` that does not
    /// answer. While something is on its way it does not: then [`crate::silence`] looks. Of what it cannot send yet it takes
    /// `unsent_max` bytes, and pieces are short while it takes no more.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn connected(&mut self, bound: Duration, unsent_max: Option<u32>) -> io::Result<()> {
        self.remote = self.stream.peer_addr()?.as_socket().map(canonical);
        self.stream.set_tcp_nodelay(true)?;
        let (idle, interval, retries) = probes(bound);
        let probes =
            TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(retries);
        self.stream.set_tcp_keepalive(&probes)?;
        repeat_within(self.stream.as_fd(), pause(bound).max(Duration::from_secs(1)));
        let Some(unsent_max) = unsent_max else { return Ok(()) };
        (self.piece_len, self.piece_min) = (PIECE_MIN, PIECE_MIN);
        self.stream.set_tcp_notsent_lowat(unsent_max)
    }

    /// The same connection in another context: its socket, what that was told by [`Wire::connected`], and its keys. Nothing is
    /// known of it there, and no list has it.
    pub(crate) fn moved(self, key: WireKey) -> Self {
        let Self { kept, stream, role, sealing, remote, piece_len, piece_min, .. } = self;
        let new = Self::new(key, stream, role);
        Self { kept, sealing, remote, piece_len, piece_min, ..new }
    }

    /// The side of the links that this end opens.
    pub(crate) fn own_side(&self) -> usize {
        self.role as usize
    }

    /// The present link of a side.
    pub(crate) fn link_id(&self, side: usize) -> LinkId {
        let side_byte = u8::from(side == 1);
        LinkId { side: side_byte, epoch: self.slots[side].epoch }
    }

    /// The peer of a frame, unless its link was closed meanwhile.
    pub(crate) fn peer_of(&self, link: LinkId) -> Option<Peer> {
        let slot = self.slots[usize::from(link.side)];
        slot.peer.filter(|_| slot.epoch == link.epoch)
    }

    /// Whether links can be opened on it.
    pub(crate) fn is_healthy(&self) -> bool {
        self.phase == Phase::Open
            && !(self.is_retiring || self.is_broken() || self.is_closed || self.is_ending)
    }

    /// Whether the socket takes nothing more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken_by.is_some()
    }

    /// Whether what is read cannot make its output grow without bound: what a peer asks for is answered, and one that
    /// asks and never reads the answers is not heard until it does. One that has ended can add little.
    pub(crate) fn may_read(&self) -> bool {
        self.outbound.own_bytes() <= OWN_BYTES_MAX || self.is_ending
    }

    /// Bytes of memory for what has come in part. What strangers may cost is bounded otherwise.
    pub(crate) fn in_part(&self) -> u64 {
        let sealed = self.sealing.as_ref().map_or(0, |sealing| sealing.seal.partial());
        if self.phase == Phase::Open { (self.inbound.in_part() + sealed) as u64 } else { 0 }
    }

    /// Whether a link is open on it.
    pub(crate) fn is_used(&self) -> bool {
        self.slots.iter().any(|slot| slot.peer.is_some())
    }

    /// Queues a frame without a message.
    pub(crate) fn send(&mut self, kind: Kind, side: usize, word: u64, body: &[u8]) {
        let len = u32::try_from(body.len()).expect("bodies of the protocol are short");
        let link = self.link_id(side);
        self.outbound.frame(Header { len, kind, link, word }, body);
    }

    /// Puts it on the list of those to be flushed.
    #[inline]
    pub(crate) fn soil(&mut self, dirty: &mut Vec<WireKey>) {
        if !self.is_dirty {
            self.is_dirty = true;
            dirty.push(self.key);
        }
    }

    /// Queues a greeting.
    pub(crate) fn greet(&mut self, greeting: &Greeting) {
        self.outbound.raw(&greeting.encode());
    }

    /// From now on everything is sealed.
    pub(crate) fn seal_with(&mut self, seal: Seal) {
        self.sealing =
            Some(Box::new(Sealing { seal, buffers: Buffers::default(), at: 0, unsettled: 0 }));
    }

    /// Writes what waits, then pieces of transfers while there are any. `spare`: the context's.
    pub(crate) fn flush(
        &mut self,
        spare: &mut Buffers,
        next_piece: impl FnMut(&mut Self) -> Option<Piece>,
        done: &mut Vec<Completion>,
    ) -> Flush {
        if let Some(sealing) = self.sealing.as_mut().filter(|sealing| sealing.left() == 0) {
            sealing.buffers = std::mem::take(spare);
        }
        let flushed = self.write_on(next_piece, done);
        if let Some(sealing) = self.sealing.as_mut().filter(|sealing| sealing.left() == 0) {
            *spare = std::mem::take(&mut sealing.buffers);
            spare.sealed.clear();
            sealing.at = 0;
        }
        flushed
    }

    fn write_on(
        &mut self,
        mut next_piece: impl FnMut(&mut Self) -> Option<Piece>,
        done: &mut Vec<Completion>,
    ) -> Flush {
        let mut budget = FLUSH_MAX;
        self.has_pieces = false;
        self.is_blocked = false;
        loop {
            if self.is_broken() {
                return Flush::Broken;
            }
            if self.sealed_left() == 0 && self.outbound.takes_piece(self.sealing.is_none()) {
                if let Some(piece) = next_piece(self) {
                    self.outbound.begin_piece(piece);
                }
                // Looking for one may have queued a verdict.
                if self.outbound.is_empty() {
                    return Flush::Idle;
                }
            }
            if budget == 0 {
                return Flush::More;
            }
            match self.write_once(done) {
                Ok(written) => budget = budget.saturating_sub(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    (self.piece_len, self.was_cut) = (self.piece_min, true);
                    return Flush::Blocked;
                }
                Err(error) => {
                    // What the peer had sent comes first.
                    self.broken_by = Some(error.kind());
                    return Flush::Broken;
                }
            }
            self.end_piece();
        }
    }

    /// One system call.
    fn write_once(&mut self, done: &mut Vec<Completion>) -> io::Result<usize> {
        self.writes += 1;
        let written = if self.sealing.is_some() {
            self.write_sealed(done)?
        } else if self.outbound.has_piece() {
            let (written, frames) = self.outbound.write_piece(&self.stream)?;
            self.outbound.settle(frames, done);
            written
        } else {
            let written = self.outbound.write_frames(&self.stream)?;
            self.outbound.settle(written, done);
            written
        };
        self.sent += written as u64;
        Ok(written)
    }

    fn sealed_left(&self) -> usize {
        self.sealing.as_ref().map_or(0, |sealing| sealing.left())
    }

    fn write_sealed(&mut self, done: &mut Vec<Completion>) -> io::Result<usize> {
        let Some(sealing) = &mut self.sealing else { return Ok(0) };
        let Sealing { seal, buffers: Buffers { plain, sealed }, at, unsettled } = sealing.as_mut();
        if *at == sealed.len() {
            (*at, *unsettled) = (0, 0);
            sealed.clear();
            while sealed.len() < SEALED_MAX {
                plain.clear();
                let (len, frames) = self.outbound.gather(RECORD, plain);
                if len == 0 {
                    break;
                }
                *unsettled += frames;
                seal.seal(plain, sealed).map_err(io::Error::other)?;
            }
        }
        let written = self.stream.send_with_flags(&sealed[*at..], MSG_NOSIGNAL)?;
        *at += written;
        if *at == sealed.len() {
            self.outbound.settle(*unsettled, done);
        }
        Ok(written)
    }

    /// Ends the piece that the socket has; the next one may be longer.
    fn end_piece(&mut self) {
        if self.outbound.finish_piece() && !std::mem::take(&mut self.was_cut) {
            self.piece_len = (2 * self.piece_len).min(PIECE_MAX);
        }
    }

    /// How far the flush still has to get here.
    pub(crate) fn flush_on(&mut self) -> FlushTo {
        if let FlushTo::Frames(to) = self.flush_to
            && self.outbound.progress().1 >= to
        {
            self.flush_to = FlushTo::Bytes(self.sent);
        }
        if let FlushTo::Bytes(to) = self.flush_to {
            // A socket that cannot be asked is broken, and has nothing left to lose.
            let unacknowledged = answers(self.stream.as_fd()).map_or(0, |it| it.unacknowledged);
            if self.sent.saturating_sub(unacknowledged) >= to {
                self.flush_to = FlushTo::Done;
            }
        }
        self.flush_to
    }

    /// Asks the kernel to tell of space, or not to.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn watch_space(&mut self, set: &WaitSet, wanted: bool) -> io::Result<()> {
        if self.wants_space == wanted {
            return Ok(());
        }
        self.wants_space = wanted;
        let what = if wanted { SPACE } else { ARRIVALS };
        set.change(self.stream.as_fd(), self.key.number(), what)
    }
}

/// Time between two looks at a connection with unacknowledged bytes ([`crate::silence`]).
pub(crate) fn pause(bound: Duration) -> Duration {
    bound / 6
}

/// Addresses of one machine compare equal, whichever family of socket they came through.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
