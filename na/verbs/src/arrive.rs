//! Frames in: each is checked, its bytes are copied out, and its place is posted again.

use std::sync::Arc;

use hg_na::{Completion, GoneReason};
use hg_na_link::{ACCESS_LEN, Access, Lane, Verdict};
use hg_na_parts::regions::{Entry, Regions};

use crate::{
    context::VerbsContext,
    moves::ACTIVE_MAX,
    send::list_busy,
    way::{Link, TRANSFERS, Whole},
    wire::{Header, Kind},
};

/// Withheld messages handed out in a round.
const ADMITTED_MAX: usize = 4096;

/// What a frame came to.
enum Came {
    /// Nothing that anybody waits for.
    Nothing,
    Message(Whole),
    /// A transfer of this side's has ended for its owner: what it was lent, and the operation.
    Ended(Option<usize>, Option<Completion>),
}

impl VerbsContext {
    /// Takes a frame of a connection.
    #[inline]
    pub(crate) fn frame_came(&mut self, place: u32, frame: usize, len: usize) {
        let Self { endpoint, links, shared, .. } = self;
        let Some(endpoint) = endpoint else { return };
        let link = links.at(place);
        let came = link.filter(|link| link.way.listens()).map(|link| {
            let (header, content) = Header::decode(endpoint.arrived(frame, len))
                .ok_or("a frame that cannot be read")?;
            link.way.came(&header)?;
            take(link, &shared.regions, &header, content)
        });
        endpoint.was_seen(frame);
        let Some(came) = came else { return };
        self.is_ready(place);
        match came {
            Ok(Came::Nothing) => {}
            Ok(Came::Message(whole)) => self.deliver(place, whole),
            Ok(Came::Ended(lent, completion)) => {
                if let Some(number) = lent {
                    self.endpoint().revoke(number);
                }
                self.finished.extend(completion);
                self.tell_room(place);
            }
            Err(why) => return self.misbehaved(place, why),
        }
        // Credits have come, or are owed, or something is to be served.
        let Self { links, busy, .. } = self;
        let Some(link) = links.at(place) else { return };
        if !link.way.is_busy && (has_work(link) || link.way.owes_credits()) {
            list_busy(&mut link.way, place, busy);
        }
    }

    fn deliver(&mut self, place: u32, (lane, tag, message): Whole) {
        let Self { links, finished, .. } = self;
        let admission = links.admission();
        let Some(link) = links.at(place) else { return };
        if link.deliver((lane, tag), message, admission, finished) {
            link.way.took(lane.place());
        } else {
            let peer = link.peer;
            links.await_admission(peer);
        }
    }

    /// Hands out what waited for admission; says whether there was any.
    pub(crate) fn admit(&mut self) -> bool {
        if !self.links.has_admissible() {
            return false;
        }
        let Self { links, finished, busy, .. } = self;
        links.admit(ADMITTED_MAX, finished, |link, _| {
            link.way.took(Lane::Unexpected.place());
            if link.way.owes_credits() {
                list_busy(&mut link.way, link.peer.index(), busy);
            }
        });
        true
    }

    /// Bad input costs its sender the connection.
    pub(crate) fn misbehaved(&mut self, place: u32, why: &'static str) {
        tracing::warn!(place, why, "a peer broke the protocol");
        self.refuse(place, why);
        self.end_now(place, GoneReason::Misbehaved(why.into()));
    }
}

/// Whether something waits to be sent to a peer, credits aside.
pub(crate) fn has_work(link: &mut Link) -> bool {
    !link.queues.is_empty()
        || !link.way.aborts.is_empty()
        || !link.way.moves.queue.is_empty()
        || link.owner.is_waiting()
        || link.initiator.is_streaming()
        || link.initiator.next(ACTIVE_MAX).is_some()
}

/// Takes a frame of a connection.
///
/// # Errors
/// What the other side has done wrong.
fn take(
    link: &mut Link,
    regions: &Regions,
    header: &Header,
    content: &[u8],
) -> Result<Came, &'static str> {
    let id = header.tag;
    match header.kind {
        Kind::Credit => return Ok(Came::Nothing),
        Kind::Control | Kind::Expected | Kind::Unexpected => {
            let whole = link.way.assemble(header, content)?;
            return Ok(whole.map_or(Came::Nothing, Came::Message));
        }
        _ => link.way.took(TRANSFERS),
    }
    let Link { owner, initiator, way, .. } = link;
    match header.kind {
        Kind::Get | Kind::Put => {
            let cut = "a transfer that is cut short";
            let (access, bytes) = content.split_at_checked(ACCESS_LEN).ok_or(cut)?;
            let (access, is_put) = (Access::decode(access).ok_or(cut)?, header.kind == Kind::Put);
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
            way.moves.asked(regions, (header.kind == Kind::PutLent, id), content, owner)?;
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
fn put_bytes(link: &mut Link, id: u64, bytes: &[u8]) -> Result<(), &'static str> {
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

/// Copies bytes to their place; `false`: it is not registered any more.
fn write((entry, offset): (Arc<Entry>, u64), bytes: &[u8]) -> bool {
    let copied = entry.with(|memory| hg_na_memory::copy_in(memory, offset, bytes));
    matches!(copied, Some(Ok(())))
}
