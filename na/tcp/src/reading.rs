//! From a socket to frames: one system call at a time.

use std::{
    io::{self, IoSliceMut, Read},
    os::fd::AsFd as _,
    time::Instant,
};

use hg_na::GoneReason;

use crate::{
    context::TcpContext,
    frame::Header,
    inbound::{Gap, Item},
    transfers::{arrived, expects_data, lost_sink, sink},
    wire::{Phase, Wire},
};
use hg_na_parts::{limits::unreachable, regions::SEGMENTS_MAX};

/// What is read behind a gap, or where data is on its way: a transfer of 4 KiB with its frames.
const TAIL: usize = 4096 + 256;

/// How many bytes were asked for; how many came, in all and into the common buffer.
type Came = (usize, io::Result<(usize, usize)>);

/// Why a connection is not read on.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It is lost.
    Lost(GoneReason),
    /// A last word waits in it; then it is closed.
    Parted,
    /// It belongs to another context now; it was taken over.
    Moved(crate::greeting::Hello),
}

/// The peer has broken the protocol.
pub(crate) fn misbehaved(why: &'static str) -> Fate {
    Fate::Lost(GoneReason::Misbehaved(why.into()))
}

impl TcpContext {
    /// Reads a connection once, and puts it back; answers how many bytes came.
    pub(crate) fn read_wire(&mut self, mut wire: Box<Wire>, now: Instant) -> usize {
        if !wire.may_read() {
            (wire.is_stopped, wire.is_readable) = (true, true);
            self.wires.put(wire.key, wire);
            return 0;
        }
        let (mut scratch, was_open) =
            (std::mem::take(&mut self.scratch), wire.phase == Phase::Open);
        let read = self.read_once(&mut wire, &mut scratch, now);
        self.scratch = scratch;
        let (bytes, is_drained) = match read {
            Ok(read) => read,
            Err(fate) => {
                self.dispose(wire, fate);
                return 0;
            }
        };
        wire.is_readable = !is_drained || wire.is_ending;
        if bytes > 0 {
            self.hot = Some(wire.key);
            wire.received += bytes as u64;
            self.count_part(&mut wire, now);
        }
        if wire.is_readable {
            self.list(&mut wire);
        }
        if (!wire.outbound.is_empty() || wire.has_pieces) && !wire.is_blocked {
            self.soil(&mut wire);
        }
        let (key, is_new) = (wire.key, !was_open && wire.phase == Phase::Open);
        self.wires.put(key, wire);
        if is_new && !self.awaiting.is_empty() {
            self.look_for_awaited(key);
        }
        bytes
    }

    /// One system call; answers how many bytes came, and whether those were all.
    fn read_once(
        &mut self,
        wire: &mut Wire,
        scratch: &mut [u8],
        now: Instant,
    ) -> Result<(usize, bool), Fate> {
        let (asked, read) = self.read_some(wire, scratch)?;
        match read {
            Ok((0, _)) => Err(Fate::Lost(ending_of(wire))),
            Ok((len, behind)) => {
                if behind > 0 {
                    self.feed(wire, &scratch[..behind], now)?;
                }
                Ok((len, len < asked))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Nothing more will come once the write half has failed.
                if wire.is_broken() { Err(Fate::Lost(ending_of(wire))) } else { Ok((0, true)) }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok((0, false)),
            Err(error) => Err(Fate::Lost(lost_by(wire, &error))),
        }
    }

    /// Reads to where the bytes belong.
    fn read_some(&mut self, wire: &mut Wire, scratch: &mut [u8]) -> Result<Came, Fate> {
        if wire.phase == Phase::Open && wire.sealing.is_none() {
            match wire.inbound.gap() {
                Gap::Nowhere => {}
                Gap::Body(rest) => {
                    let (missing, tail) = (rest.len(), &mut scratch[..TAIL]);
                    let asked = missing + tail.len();
                    let mut slices = [IoSliceMut::new(rest), IoSliceMut::new(tail)];
                    let read = (&wire.stream).read_vectored(&mut slices);
                    let Ok(len) = read else { return Ok((asked, read.map(|len| (len, 0)))) };
                    if let Some(item) = wire.inbound.filled(len.min(missing)) {
                        self.item(wire, item)?;
                    }
                    return Ok((asked, Ok((len, len.saturating_sub(missing)))));
                }
                Gap::Data(header, left) => {
                    let read = self.read_data(wire, header, left, &mut scratch[..TAIL])?;
                    if let Some((asked, read)) = read {
                        return Ok((asked, read));
                    }
                }
            }
        }
        let asked = if self.expects_data(wire) { TAIL } else { scratch.len() };
        let read = (&wire.stream).read(&mut scratch[..asked]);
        Ok((asked, read.map(|len| (len, len))))
    }

    /// Reads the data of a transfer to its place; `None` when it has none.
    fn read_data(
        &mut self,
        wire: &mut Wire,
        header: Header,
        left: usize,
        tail: &mut [u8],
    ) -> Result<Option<Came>, Fate> {
        let Some(peer) = wire.peer_of(header.link) else { return Ok(None) };
        let Some(link) = self.links.find(peer) else { return Ok(None) };
        let place = sink(link, header, left).map_err(misbehaved)?;
        let Some((entry, offset)) = place else { return Ok(None) };
        let fd = wire.stream.as_fd();
        let range = (offset, left as u64);
        let side = usize::from(header.link.side);
        let read = entry.with(|memory| {
            // One call takes so many vectors: with as many segments there is none left for the tail.
            let has_tail = memory.segments().len() < SEGMENTS_MAX;
            let tail = if has_tail { tail } else { &mut [] };
            let asked = left + tail.len();
            hg_na_memory::read_vectored(fd, memory, range, tail).map(|read| (asked, read))
        });
        let Some(Ok((asked, read))) = read else {
            lost_sink(link, header, wire, side);
            return Ok(None);
        };
        if let Ok(len) = read {
            wire.inbound.passed(len.min(left));
            arrived(link, header, len.min(left), wire, side);
        }
        Ok(Some((asked, read.map(|len| (len, len.saturating_sub(left))))))
    }

    /// Whether data of transfers is on its way: then little is read at a time, so that most of it can be
    /// read to its place.
    fn expects_data(&mut self, wire: &Wire) -> bool {
        let mut peers = wire.slots.iter().filter_map(|slot| slot.peer);
        wire.sealing.is_none()
            && peers.any(|peer| self.links.find(peer).is_some_and(|link| expects_data(link)))
    }

    /// Bytes as they came from the socket.
    pub(crate) fn feed(&mut self, wire: &mut Wire, input: &[u8], now: Instant) -> Result<(), Fate> {
        let mut input = input;
        while wire.sealing.is_none() {
            if wire.phase == Phase::Open {
                return self.feed_frames(wire, input);
            }
            if !self.feed_greeting(wire, &mut input, now)? {
                return Ok(());
            }
        }
        loop {
            let Some(mut sealing) = wire.sealing.take() else { return Ok(()) };
            let mut plain = std::mem::take(&mut self.opened);
            let opened = sealing.seal.open(&mut input, &mut plain);
            wire.sealing = Some(sealing);
            let fed = match opened {
                Ok(true) => self.feed_plain(wire, &plain, now),
                Ok(false) => {
                    self.opened = plain;
                    return Ok(());
                }
                Err(why) => Err(misbehaved(why)),
            };
            self.opened = plain;
            fed?;
        }
    }

    /// What came out of a record.
    fn feed_plain(&mut self, wire: &mut Wire, plain: &[u8], now: Instant) -> Result<(), Fate> {
        let mut plain = plain;
        while wire.phase != Phase::Open {
            if !self.feed_greeting(wire, &mut plain, now)? {
                return Ok(());
            }
        }
        self.feed_frames(wire, plain)
    }

    fn feed_frames(&mut self, wire: &mut Wire, input: &[u8]) -> Result<(), Fate> {
        let mut input = input;
        while let Some(item) = wire.inbound.next(&mut input).map_err(misbehaved)? {
            self.item(wire, item)?;
        }
        Ok(())
    }

    fn item(&mut self, wire: &mut Wire, item: Item<'_>) -> Result<(), Fate> {
        match item {
            Item::Frame(header, message) => self.frame(wire, header, message),
            Item::Data(header, bytes) => self.data(wire, header, bytes),
        }
    }

    /// The end of a connection that is out of its table.
    pub(crate) fn dispose(&mut self, mut wire: Box<Wire>, fate: Fate) {
        match fate {
            Fate::Lost(why) => {
                if let GoneReason::Misbehaved(why) = &why {
                    tracing::warn!(peer = ?wire.remote, "a peer that breaks the protocol is disconnected: {why}");
                } else if wire.phase != Phase::Open {
                    tracing::debug!(peer = ?wire.remote, "a greeting came to nothing: {why}");
                }
                self.lose(wire, &why);
            }
            Fate::Parted => {
                self.part(&mut wire);
                self.lose(wire, &GoneReason::Closed);
            }
            Fate::Moved(hello) => self.hand_over(wire, hello),
        }
    }
}

/// The stream has ended.
fn ending_of(wire: &Wire) -> GoneReason {
    if wire.is_closed || wire.is_retiring {
        GoneReason::Closed
    } else if let Some(kind) = wire.broken_by.filter(|kind| is_silence(*kind)) {
        lost_by(wire, &kind.into())
    } else if wire.phase == Phase::Open {
        GoneReason::Exited
    } else {
        GoneReason::Unreachable("the connection was closed before the greeting".into())
    }
}

fn lost_by(wire: &Wire, error: &io::Error) -> GoneReason {
    match error.kind() {
        _ if wire.is_closed => GoneReason::Closed,
        kind if is_silence(kind) => GoneReason::TimedOut,
        _ if wire.phase == Phase::Open => GoneReason::Exited,
        _ => unreachable("connect", error),
    }
}

/// What the kernel says when it has heard nothing for too long.
fn is_silence(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}
