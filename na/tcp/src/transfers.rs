//! Puts and gets over a connection: what this side posts and what it serves ([`hg_na_link::initiator`],
//! [`hg_na_link::owner`]) as frames.
//!
//! ```text
//! initiator                                   owner
//!  Put, PutData, PutData ...  ------------->   checks, then writes each piece where it belongs
//!       completes             <-------------   End, once all bytes are in place (or a verdict, early)
//!  Get                        ------------->   checks, queues
//!       into place            <-------------   GetData, GetData ..., End
//!  Cancel                     ------------->   forgets it; End, unless that was said already
//! ```
//! Data goes from memory to socket and from socket to memory, in pieces between which messages pass.

use std::sync::Arc;

use hg_na::{Completion, Peer};
use hg_na_link::{Access, Verdict};
use hg_na_parts::regions::{Entry, Regions};

use crate::{
    frame::{Header, Kind, TRANSFERS_MAX},
    link::{Link, Links},
    outbound::{Piece, Source},
    wire::Wire,
};

/// Whether data is coming, so that it pays to read frame by frame.
pub(crate) fn expects_data(link: &Link) -> bool {
    link.owner.has_puts() || link.initiator.has_open()
}

/// A put or get of this side's was given up.
pub(crate) fn cancelled(peer: Peer, serial: u64, is_told: bool, (wire, side): (&mut Wire, usize)) {
    // Its memory goes back, so what is on its way from there is copied: also the last piece.
    wire.outbound.detach(peer, Some(serial));
    if is_told {
        wire.send(Kind::Cancel, side, serial, &[]);
    }
}

/// The owner's last word.
pub(crate) fn ended(
    link: &mut Link,
    (serial, body): (u64, &[u8]),
    (wire, side): (&mut Wire, usize),
    done: &mut Vec<Completion>,
) -> Result<(), &'static str> {
    let verdict = Verdict::decode(body).ok_or("a verdict that makes no sense")?;
    let ended = link.initiator.ended(serial, verdict)?;
    if ended.completion.is_some() {
        wire.outbound.detach(link.peer, Some(serial));
    }
    if ended.is_cut {
        wire.send(Kind::Cancel, side, serial, &[]);
    }
    done.extend(ended.completion);
    Ok(())
}

/// The peer announces a put, or asks for a get.
pub(crate) fn asked(
    link: &mut Link,
    regions: &Regions,
    (header, body): (Header, &[u8]),
    (wire, side): (&mut Wire, usize),
) -> Result<(), &'static str> {
    let access = Access::decode(body).ok_or("a transfer that makes no sense")?;
    let named = (header.kind == Kind::Put, header.word);
    link.owner.asked(regions, named, access, (0, TRANSFERS_MAX))?;
    say(link, wire, side);
    wire.has_pieces |= link.owner.is_waiting();
    Ok(())
}

/// The peer has lost interest.
pub(crate) fn withdrawn(link: &mut Link, serial: u64, wire: &mut Wire, side: usize) {
    link.owner.withdrawn(serial);
    say(link, wire, side);
}

/// Where the next `len` bytes of a transfer belong; `None`: nowhere, they are passed over.
pub(crate) fn sink(
    link: &Link,
    header: Header,
    len: usize,
) -> Result<Option<(Arc<Entry>, u64)>, &'static str> {
    match header.kind {
        Kind::PutData => link.owner.sink(header.word, len as u64),
        _ => link.initiator.sink(header.word, len as u64),
    }
}

/// `len` bytes have come; `sink` has allowed them.
pub(crate) fn arrived(link: &mut Link, header: Header, len: usize, wire: &mut Wire, side: usize) {
    if header.kind == Kind::PutData {
        link.owner.arrived(header.word, len as u64);
        say(link, wire, side);
    } else {
        link.initiator.arrived(header.word, len as u64);
    }
}

/// The memory of a put was unregistered: the rest of it is passed over.
pub(crate) fn lost_sink(link: &mut Link, header: Header, wire: &mut Wire, side: usize) {
    link.owner.lost_sink(header.word);
    say(link, wire, side);
}

/// What this side has to say as an owner.
fn say(link: &mut Link, wire: &mut Wire, side: usize) {
    while let Some((serial, verdict)) = link.owner.next_word() {
        wire.send(Kind::End, side, serial, &verdict.encode());
        link.owner.said();
    }
}

/// The next piece that a connection may send: this side's puts and the gets that it serves, of both
/// links, in turn.
pub(crate) fn next_piece(links: &mut Links, wire: &mut Wire) -> Option<Piece> {
    const TURNS: usize = 4;
    for _ in 0..TURNS {
        let (side, is_put) = (wire.turn / 2, wire.turn.is_multiple_of(2));
        wire.turn = (wire.turn + 1) % TURNS;
        let Some(link) = wire.slots[side].peer.and_then(|peer| links.find(peer)) else { continue };
        let (kind, next) = if is_put {
            let next = link.initiator.next_piece(wire.piece_len as u64);
            link.initiator.sent(next.as_ref().map_or(0, |it| it.len));
            (Kind::PutData, next)
        } else {
            let next = link.owner.next_piece(wire.piece_len as u64);
            link.owner.sent(next.as_ref().map_or(0, |it| it.len));
            // Memory that was unregistered meanwhile.
            say(link, wire, side);
            (Kind::GetData, next)
        };
        if let Some(hg_na_link::Piece { serial, entry, offset, len, is_last }) = next {
            let len = u32::try_from(len).expect("PIECE_MAX fits");
            let header = Header { len, kind, link: wire.link_id(side), word: serial };
            let source = Source::Memory { entry, offset };
            return Some(Piece::new(header, link.peer, source, is_last));
        }
    }
    None
}
