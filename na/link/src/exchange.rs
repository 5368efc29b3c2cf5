//! What is exchanged with one peer in frames: which one leaves next, and what one that has come means.
//!
//! The transport hands frames over and tells of moves ([`Carrier`]); everything else is decided here.
//!
//! | frame | from | content |
//! |---|---|---|
//! | `Control`, `Expected`, `Unexpected` | anybody | a message, or a part of one |
//! | `Get` | initiator | [`Access`] |
//! | `GetData` | owner | bytes in order, until all are there: the last one ends it |
//! | `Put` | initiator | `Access`, first bytes |
//! | `PutData` | initiator | further bytes in order |
//! | `Ended` | owner | [`Verdict`]: of every put, of a get that failed or had no byte, of what was lent |
//! | `Abort` | initiator | nothing: forget this operation |
//! | `GetLent`, `PutLent` | initiator | `Access`, then the [`Grant`] of its own memory |
//! | `Credit` | anybody | nothing: its header counts |
//!
//! The tag of a transfer's frames is the initiator's number of the operation, never used twice. An initiator has at most [`ACTIVE_MAX`]
//! under way with one owner, and an owner serves no more.

use std::{collections::VecDeque, fmt, sync::Arc};

use hg_na::{Completion, Peer, Segment};
use hg_na_memory::Held;
use hg_na_parts::regions::{Entry, Regions};

use crate::{
    frame::{Header, Kind, TRANSFERS},
    grant::{GRANT_LEN, Grant},
    initiator::Piece,
    lanes::{Lanes, Whole},
    link::Link,
    moves::{ACTIVE_MAX, Moves},
    sending::{Lane, Sending},
    transfer::{ACCESS_LEN, Access, Loan, Transfer},
    verdict::Verdict,
};

/// What is under way with one peer, and an `R` that the transport has of its own for it.
#[derive(Debug)]
pub struct Framed<R> {
    /// Credits, and messages in part.
    pub lanes: Lanes,
    /// Own transfers that were given up, and of which the owner is to be told.
    pub aborts: VecDeque<u64>,
    /// Transfers of the peer's over memory that it has lent.
    pub moves: Moves,
    /// Frames that were certainly sent.
    pub frames_sent: u64,
    /// Frames that have arrived.
    pub frames_received: u64,
    /// How it is reached.
    pub own: R,
}

impl<R> Framed<R> {
    /// Nothing is under way.
    pub fn new(own: R) -> Self {
        Self {
            lanes: Lanes::default(),
            aborts: VecDeque::new(),
            moves: Moves::default(),
            frames_sent: 0,
            frames_received: 0,
            own,
        }
    }
}

/// How a transport carries frames, and what memory it can lend and reach.
pub trait Carrier {
    /// What it keeps of each peer.
    type Own;
    /// Why it did not carry something.
    type Fault: Copy + fmt::Display;

    /// Shorter transfers travel in frames: one message costs less than a registration and an answer.
    const LENT_MIN: u64 = 32 << 10;
    /// Longest single move in bytes: one keeps this side's thread so long.
    const MOVE_MAX: u64;

    /// Whether a fault says no more than "not now".
    fn is_again(fault: &Self::Fault) -> bool;

    /// Content that fits in one frame to this peer: more than [`ACCESS_LEN`] and [`GRANT_LEN`] together.
    fn room(&self, to: &Self::Own) -> usize;

    /// Hands a frame over: the header, then `len` bytes that `fill` writes. When it answers `false`, nothing leaves, which is a fault that
    /// is no "not now". `Some`: the frame is on its way, and its end is told by this name.
    ///
    /// # Errors
    /// Nothing has left.
    fn hand(
        &mut self,
        to: (Peer, &mut Self::Own),
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, Self::Fault>;

    /// Keeps a message until the last frame of it, which has this name, has ended. Asked only of a transport that names frames.
    fn keep(&mut self, _frame: usize, _sending: Sending) {
        unreachable!("a transport that names its frames keeps their messages");
    }

    /// Whether a transfer of so many bytes is long enough to be lent: it is from [`Self::LENT_MIN`] on, unless it was set. Others travel in frames.
    fn is_long(&self, len: u64, _is_written: bool) -> bool {
        len >= Self::LENT_MIN
    }

    /// Whether memory can be lent to this peer now, to be written or to be read.
    fn may_lend(&self, to: &Self::Own, is_written: bool) -> bool;

    /// Lends a run of memory to this peer, to be written or to be read: answers its name.
    ///
    /// # Errors
    /// It is not lent.
    fn lend(
        &mut self,
        to: &Self::Own,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, Grant), Self::Fault>;

    /// Ends that.
    fn revoke(&mut self, lent: usize);

    /// Moves own memory to a peer's (`to_peer`), or that to here, for the transfer of this number. Says whether its end is told
    /// ([`Moves::moved`]): else what is said behind it arrives behind it.
    ///
    /// # Errors
    /// Nothing is moved.
    fn move_run(
        &mut self,
        with: (Peer, &mut Self::Own),
        grant: Grant,
        run: (&Held, Segment),
        what: (bool, u64),
    ) -> Result<bool, Self::Fault>;
}

/// What happens to a transfer that cannot be lent and may not travel in frames.
const UNREACHED: &str =
    "memory of a device that is cut into several runs, or that one side's transport does not reach";

/// What sending one frame came to.
#[derive(Debug)]
pub enum Step<F> {
    /// A frame has left, or something else was done.
    Left,
    /// Nothing to send, or no credits.
    Idle,
    /// The transport takes nothing now.
    Stalled,
    /// The way to the peer is broken.
    Broken(F),
}

/// What a frame came to.
#[derive(Debug)]
pub enum Came {
    /// Nothing that anybody waits for.
    Nothing,
    /// A whole message, whose last frame is still to be counted as taken ([`Lanes::took`]).
    Message(Whole),
    /// A transfer of this side's has ended for its owner: what it was lent, and the operation.
    Ended(Option<usize>, Option<Completion>),
}

/// One peer of a context over a carrier.
type To<K, C> = Link<K, Framed<<C as Carrier>::Own>>;

/// Sends the most important frame that can leave.
pub fn step<K, C: Carrier>(
    link: &mut To<K, C>,
    carrier: &mut C,
    done: &mut Vec<Completion>,
) -> Step<C::Fault> {
    for lane in Lane::ALL {
        if link.queues.len(lane) > 0 && link.way.lanes.has_credit(lane.place()) {
            return send_message(link, lane, carrier, done);
        }
    }
    if link.way.lanes.has_credit(TRANSFERS)
        && let Some(step) = send_transfer(link, carrier, done)
    {
        return step;
    }
    if link.way.lanes.owes_credits() {
        return send_plain(link, carrier, (Kind::Credit, 0), &[]);
    }
    Step::Idle
}

fn stopped<C: Carrier>(fault: C::Fault) -> Step<C::Fault> {
    if C::is_again(&fault) { Step::Stalled } else { Step::Broken(fault) }
}

fn hand<K, C: Carrier>(
    link: &mut To<K, C>,
    carrier: &mut C,
    (header, len): (&Header, usize),
    fill: impl FnOnce(&mut [u8]) -> bool,
) -> Result<Option<usize>, C::Fault> {
    let handed = carrier.hand((link.peer, &mut link.way.own), header, len, fill)?;
    link.way.lanes.left(header);
    link.way.frames_sent += u64::from(handed.is_none());
    Ok(handed)
}

fn send_message<K, C: Carrier>(
    link: &mut To<K, C>,
    lane: Lane,
    carrier: &mut C,
    done: &mut Vec<Completion>,
) -> Step<C::Fault> {
    let kind = match lane {
        Lane::Control => Kind::Control,
        Lane::Expected => Kind::Expected,
        Lane::Unexpected => Kind::Unexpected,
    };
    let Some(mut sending) = link.queues.pop(lane) else { return Step::Idle };
    let left = sending.message.len() - sending.left;
    let len = left.min(carrier.room(&link.way.own));
    let more = len < left;
    let header = link.way.lanes.header(kind, sending.tag, more);
    let content = &sending.message.as_slice()[sending.left..sending.left + len];
    let handed = hand(link, carrier, (&header, len), |into| {
        into.copy_from_slice(content);
        true
    });
    match handed {
        Ok(None) if !more => sending.sent(done),
        Ok(Some(frame)) if !more => carrier.keep(frame, sending),
        Ok(_) => {
            sending.left += len;
            link.queues.put_back(lane, sending);
        }
        Err(fault) => {
            link.queues.put_back(lane, sending);
            return stopped::<C>(fault);
        }
    }
    Step::Left
}

/// Sends a frame that says what was taken, whether or not that is owed.
pub fn acknowledge<K, C: Carrier>(link: &mut To<K, C>, carrier: &mut C) -> Step<C::Fault> {
    send_plain(link, carrier, (Kind::Credit, 0), &[])
}

/// A frame of the protocol's own.
fn send_plain<K, C: Carrier>(
    link: &mut To<K, C>,
    carrier: &mut C,
    (kind, tag): (Kind, u64),
    content: &[u8],
) -> Step<C::Fault> {
    let header = link.way.lanes.header(kind, tag, false);
    let handed = hand(link, carrier, (&header, content.len()), |into| {
        into.copy_from_slice(content);
        true
    });
    handed.map_or_else(stopped::<C>, |_| Step::Left)
}

/// The next frame of a transfer, when there is one that may leave.
fn send_transfer<K, C: Carrier>(
    link: &mut To<K, C>,
    carrier: &mut C,
    done: &mut Vec<Completion>,
) -> Option<Step<C::Fault>> {
    if let Some(id) = link.way.aborts.front().copied() {
        let step = send_plain(link, carrier, (Kind::Abort, id), &[]);
        if matches!(step, Step::Left) {
            link.way.aborts.pop_front();
        }
        return Some(step);
    }
    if let Some((id, verdict)) = link.owner.next_word() {
        let step = send_plain(link, carrier, (Kind::Ended, id), &verdict.encode());
        if matches!(step, Step::Left) {
            link.owner.said();
        }
        return Some(step);
    }
    if !link.way.moves.queue.is_empty() {
        return Some(serve_move(link, carrier));
    }
    let room = carrier.room(&link.way.own) as u64;
    if let Some(piece) = link.owner.next_piece(room) {
        return Some(send_piece(link, carrier, Kind::GetData, &piece));
    }
    if let Some(next) = link.initiator.next(ACTIVE_MAX) {
        let must_be_lent = next.must_be_lent();
        let sent = send_lent(link, carrier);
        if sent.is_none() && must_be_lent {
            done.extend(link.initiator.refuse_next(UNREACHED));
            return Some(Step::Left);
        }
        return sent.or_else(|| announce(link, carrier));
    }
    let piece = link.initiator.next_piece(room)?;
    Some(send_piece(link, carrier, Kind::PutData, &piece))
}

/// Bytes of a get that is served, or of an own put.
fn send_piece<K, C: Carrier>(
    link: &mut To<K, C>,
    carrier: &mut C,
    kind: Kind,
    piece: &Piece,
) -> Step<C::Fault> {
    let header = link.way.lanes.header(kind, piece.serial, false);
    let mut is_there = true;
    let room = usize::try_from(piece.len).expect("as long as a frame");
    let handed = hand(link, carrier, (&header, room), |into| {
        is_there = read((&piece.entry, piece.offset), into);
        is_there
    });
    match (handed, kind) {
        (Ok(_), Kind::PutData) => link.initiator.sent(piece.len),
        (Ok(_), _) => link.owner.sent(piece.len),
        // Unregistered meanwhile: the initiator is told instead.
        (Err(_), Kind::GetData) if !is_there => link.owner.lost_source(),
        (Err(fault), _) => return stopped::<C>(fault),
    }
    Step::Left
}

/// Tells the owner of the next own transfer, with the first bytes of a put.
fn announce<K, C: Carrier>(link: &mut To<K, C>, carrier: &mut C) -> Option<Step<C::Fault>> {
    let room = carrier.room(&link.way.own).saturating_sub(ACCESS_LEN) as u64;
    let transfer = link.initiator.next(ACTIVE_MAX)?;
    let (kind, len) = match transfer.is_put {
        true => (Kind::Put, transfer.access.len.min(room)),
        false => (Kind::Get, 0),
    };
    let (access, serial) = (transfer.access.encode(), transfer.id.serial);
    let (entry, offset) = (Arc::clone(&transfer.entry), transfer.slice.offset());
    let header = link.way.lanes.header(kind, serial, false);
    let bytes = ACCESS_LEN + usize::try_from(len).expect("as long as a frame");
    let handed = hand(link, carrier, (&header, bytes), |into| {
        let (front, back) = into.split_at_mut(ACCESS_LEN);
        front.copy_from_slice(&access);
        // In range: the slice lies in its region, which stays registered while the slice is held.
        read((&entry, offset), back)
    });
    if handed.is_ok() {
        link.initiator.announced(len);
    }
    Some(handed.map_or_else(stopped::<C>, |_| Step::Left))
}

/// Lends the memory of the next transfer to its owner. `None`: it travels in frames.
fn send_lent<K, C: Carrier>(link: &mut To<K, C>, carrier: &mut C) -> Option<Step<C::Fault>> {
    let transfer = link.initiator.next(ACTIVE_MAX)?;
    let (is_put, serial) = (transfer.is_put, transfer.id.serial);
    let lent = match transfer.lent {
        Some(lent) => lent,
        None => match lend(transfer, carrier, &link.way.own)? {
            Ok(lent) => lent,
            Err(_) => return Some(Step::Stalled),
        },
    };
    let access = transfer.access.encode();
    let kind = if is_put { Kind::PutLent } else { Kind::GetLent };
    let mut content = [0; ACCESS_LEN + GRANT_LEN];
    content[..ACCESS_LEN].copy_from_slice(&access);
    content[ACCESS_LEN..].copy_from_slice(&lent.grant.encode());
    // What is not taken now stays lent until it is.
    transfer.lent = Some(lent);
    let step = send_plain(link, carrier, (kind, serial), &content);
    if matches!(step, Step::Left) {
        link.initiator.announced(0);
    }
    Some(step)
}

/// Lends the memory of a transfer. `None`: it travels in frames. An error says "not now".
fn lend<C: Carrier>(
    transfer: &mut Transfer,
    carrier: &mut C,
    to: &C::Own,
) -> Option<Result<Loan, C::Fault>> {
    let is_written = !transfer.is_put;
    let is_long = transfer.must_be_lent() || carrier.is_long(transfer.access.len, is_written);
    if !is_long || transfer.in_frames || !carrier.may_lend(to, is_written) {
        return None;
    }
    let times_left = transfer.entry.times_left();
    let memory = transfer.entry.share()?;
    let runs = hg_na_memory::pieces(&memory, transfer.slice.offset(), transfer.access.len);
    let mut runs = runs.ok()?;
    let (Some(run), None) = (runs.next(), runs.next()) else {
        transfer.in_frames = true;
        return None;
    };
    match carrier.lend(to, &memory, run, !transfer.is_put) {
        Ok((name, grant)) => Some(Ok(Loan { name, grant, times_left })),
        Err(fault) if C::is_again(&fault) => Some(Err(fault)),
        Err(fault) => {
            tracing::debug!(%fault, "memory is not lent: it travels in messages");
            transfer.in_frames = true;
            None
        }
    }
}

/// Hands the next move of a peer's transfer over.
fn serve_move<K, C: Carrier>(link: &mut To<K, C>, carrier: &mut C) -> Step<C::Fault> {
    let Link { peer, way, owner, .. } = link;
    let Some(mut it) = way.moves.queue.pop_front() else { return Step::Idle };
    let memory = it.entry.share();
    let run = memory.as_ref().and_then(|memory| {
        let mut runs = hg_na_memory::pieces(memory, it.offset, it.left.min(C::MOVE_MAX));
        runs.as_mut().ok().and_then(Iterator::next)
    });
    let (Some(memory), Some(run)) = (memory, run) else {
        way.moves.end(it.id, Verdict::Stale, owner);
        return Step::Left;
    };
    let (to, what) = ((*peer, &mut way.own), (it.is_get, it.id));
    match carrier.move_run(to, it.grant, (&memory, run), what) {
        Ok(is_awaited) => {
            let len = run.len as u64;
            (it.offset, it.left, it.grant) = (it.offset + len, it.left - len, it.grant.at(len));
            way.moves.handed(&it, is_awaited, owner);
            if it.left > 0 {
                way.moves.queue.push_back(it);
            }
            Step::Left
        }
        Err(fault) if C::is_again(&fault) => {
            way.moves.queue.push_front(it);
            Step::Stalled
        }
        Err(fault) => {
            tracing::debug!(%fault, "lent memory is not reached: it travels in messages");
            way.moves.end(it.id, Verdict::InFrames, owner);
            Step::Left
        }
    }
}

/// Whether something waits to be sent to a peer, or is owed to it, credits aside.
pub fn has_work<K, R>(link: &mut Link<K, Framed<R>>) -> bool {
    !link.queues.is_empty()
        || !link.way.aborts.is_empty()
        || !link.way.moves.queue.is_empty()
        || link.owner.is_waiting()
        || link.initiator.is_streaming()
        || link.initiator.next(ACTIVE_MAX).is_some()
        || link.way.lanes.owes_credits()
}

/// Takes a frame of a peer's.
///
/// # Errors
/// What the other side has done wrong.
#[inline]
pub fn take<K, R>(
    link: &mut Link<K, Framed<R>>,
    regions: &Regions,
    header: &Header,
    content: &[u8],
) -> Result<Came, &'static str> {
    link.way.frames_received += 1;
    link.way.lanes.came(header)?;
    match header.kind {
        Kind::Credit => Ok(Came::Nothing),
        Kind::Control | Kind::Expected | Kind::Unexpected => {
            let whole = link.way.lanes.assemble(header, content)?;
            Ok(whole.map_or(Came::Nothing, Came::Message))
        }
        _ => {
            link.way.lanes.took(TRANSFERS);
            take_transfer(link, regions, (header.kind, header.tag), content)
        }
    }
}

fn take_transfer<K, R>(
    link: &mut Link<K, Framed<R>>,
    regions: &Regions,
    (kind, id): (Kind, u64),
    content: &[u8],
) -> Result<Came, &'static str> {
    let Link { owner, initiator, way, .. } = link;
    match kind {
        Kind::Get | Kind::Put => {
            let cut = "a transfer that is cut short";
            let (access, bytes) = content.split_at_checked(ACCESS_LEN).ok_or(cut)?;
            let (access, is_put) = (Access::decode(access).ok_or(cut)?, kind == Kind::Put);
            owner.asked(regions, (is_put, id), access, (way.moves.len(), ACTIVE_MAX))?;
            match (is_put, bytes) {
                (_, []) => {}
                (false, _) => return Err("a get with bytes"),
                (true, bytes) => put_bytes(link, id, bytes)?,
            }
        }
        Kind::PutData => put_bytes(link, id, content)?,
        Kind::Abort => {
            if !owner.withdrawn(id) {
                way.moves.withdrawn(id, owner);
            }
        }
        Kind::GetLent | Kind::PutLent => {
            way.moves.asked(regions, (kind == Kind::PutLent, id), content, owner)?;
        }
        Kind::GetData => {
            if content.is_empty() {
                return Err("data without a byte");
            }
            if let Some(place) = initiator.sink(id, content.len() as u64)? {
                // It stays registered while the operation holds it.
                write(place, content);
            }
            if initiator.arrived(id, content.len() as u64) {
                return Ok(Came::Ended(None, initiator.finish(id)));
            }
        }
        Kind::Ended => {
            let verdict = Verdict::decode(content).ok_or("a verdict that makes no sense")?;
            let ended = initiator.ended(id, verdict)?;
            if ended.is_cut {
                way.aborts.push_back(id);
            }
            return Ok(Came::Ended(ended.lent, ended.completion));
        }
        Kind::Credit | Kind::Control | Kind::Expected | Kind::Unexpected => {}
    }
    Ok(Came::Nothing)
}

/// Bytes of a put.
fn put_bytes<K, R>(
    link: &mut Link<K, Framed<R>>,
    id: u64,
    bytes: &[u8],
) -> Result<(), &'static str> {
    if bytes.is_empty() {
        return Err("a part of a put without bytes");
    }
    if let Some(place) = link.owner.sink(id, bytes.len() as u64)?
        && !write(place, bytes)
    {
        link.owner.lost_sink(id);
    }
    link.owner.arrived(id, bytes.len() as u64);
    Ok(())
}

/// Copies bytes from their place; `false`: it is not registered any more.
fn read((entry, offset): (&Entry, u64), into: &mut [u8]) -> bool {
    let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, into));
    matches!(copied, Some(Ok(())))
}

/// Copies bytes to their place; `false`: it is not registered any more.
fn write((entry, offset): (Arc<Entry>, u64), bytes: &[u8]) -> bool {
    let copied = entry.with(|memory| hg_na_memory::copy_in(memory, offset, bytes));
    matches!(copied, Some(Ok(())))
}
