//! Blocks that come: pulled, verified, put where they belong.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hg::{
    Address,
    bulk::{Range, RemoteRange, Transfer, TransferError, Usage},
};

use super::{Driver, member::Coming};
use crate::{
    checksum::Sum,
    disk::{Done, Room, Slot},
    id::GroupId,
    machine::Event,
    store::{HOT, Store, is_right},
    wire::{Place, Source},
};

/// The end of a block, in bytes: while it comes the words that make the next one come pass it.
const END: u64 = 128 << 10;

/// A block on its way, or a part of it.
pub(super) struct Pull<'e> {
    pub(super) group: GroupId,
    object: u64,
    block: u64,
    /// Where it comes to, if that is not where it belongs.
    pub(super) slot: Option<Room>,
    /// The memory of the object, where it comes straight there.
    pub(super) into: Option<Usage>,
    come: Come,
    /// Bytes that come now.
    len: u64,
    /// Whether the end of the block is left, which comes after it.
    is_all_but_end: bool,
    transfer: Transfer<'e>,
}

/// Whether something that was given up may come to the memory of this object still. Forgets memory where that has ended.
fn is_to_wait(given_up: &mut Vec<Usage>, store: &Store) -> bool {
    given_up.retain(Usage::goes_on);
    let Store::Memory { bulk, .. } = store else { return false };
    given_up.iter().any(|it| it.is_of(bulk))
}

/// What is here of a block that comes piece by piece, and sums up to this: each piece is summed up while it is in the cache.
#[derive(Clone, Default)]
struct Come {
    bytes: u64,
    sum: Sum,
}

/// Begins to get from there to here; `is_cut`: all but the end, and the end.
fn begin<'e>(
    engine: &'e hg::Engine,
    owner: &Address,
    (far, near): (&RemoteRange, &Range),
    is_cut: bool,
) -> Result<Vec<Transfer<'e>>, hg::Error> {
    let peer = engine.lookup(owner)?;
    let len = far.len();
    let end = if is_cut { len - END } else { len };
    let parts = [0..end, end..len].into_iter().take(if is_cut { 2 } else { 1 });
    let parts = parts.map(|part| Ok((far.range(part.clone())?, near.range(part)?)));
    let parts: Vec<_> = parts.collect::<Result<_, hg::Error>>()?;
    Ok(parts.into_iter().map(|(far, near)| engine.pull(&peer, far, near)).collect())
}

impl Driver<'_> {
    /// A block may come.
    pub(super) fn pull(
        &mut self,
        id: GroupId,
        from: u32,
        (object, block): (u64, u64),
        source: Source,
    ) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.begun(from, object, block);
        let Some(local) = member.locals.get_mut(&object) else { return };
        let (extent, checksum) = (local.extent(block), source.checksum);
        let coming = Coming { from, source: source.clone(), transfers: 0 };
        let is_inline = matches!(source.place, Place::Inline(_));
        match (&mut local.store, checksum, source.place) {
            (Store::Disk(disk), Some(checksum), _) => disk.ask(extent, checksum),
            (Store::Disk(disk), None, Place::Inline(bytes)) => {
                disk.write(extent, Slot::Bytes(bytes), None);
            }
            _ => {}
        }
        let is_at_disk = matches!(local.store, Store::Disk(_)) && (is_inline || checksum.is_some());
        member.coming.insert((object, block), coming);
        if !is_at_disk {
            self.fetch(id, (object, block));
        }
    }

    /// Begins to get a block from the memory of who offers it, once nothing else comes to where it belongs.
    pub(super) fn fetch(&mut self, id: GroupId, (object, block): (u64, u64)) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(coming) = member.coming.get(&(object, block)) else { return };
        let Some(local) = member.locals.get_mut(&object) else { return };
        if is_to_wait(&mut self.given_up, &local.store) {
            self.held_up.push((id, (object, block)));
            return;
        }
        let extent = local.extent(block);
        let checksum = coming.source.checksum;
        let is_here = match (&mut local.store, &coming.source.place) {
            (Store::Unseen(_), _) => {
                self.see(id, (object, block));
                return;
            }
            (Store::Frozen { .. }, _) => Some(local.is_right(block, checksum)),
            (store, Place::Inline(bytes)) => Some(
                is_right(bytes, &local.header, block, checksum)
                    && store.write(extent.offset, bytes).is_ok(),
            ),
            (_, Place::At { .. }) => None,
        };
        if let Some(is_here) = is_here {
            self.settle(id, (object, block), is_here);
            return;
        }
        let slot = match &mut local.store {
            Store::Disk(disk) => disk.room_to_come(),
            Store::Bytes(_) | Store::Memory { .. } | Store::Unseen(_) | Store::Frozen { .. } => {
                None
            }
        };
        self.get(id, (object, block), slot, Come::default());
    }

    /// Gets a block, or the next piece of one, to where it belongs or to a slot.
    fn get(&mut self, id: GroupId, (object, block): (u64, u64), slot: Option<Room>, come: Come) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(coming) = member.coming.get_mut(&(object, block)) else { return };
        let Some(local) = member.locals.get_mut(&object) else { return };
        let (from, extent) = (coming.from, local.extent(block));
        let Place::At { memory, offset } = &coming.source.place else { return };
        let left = extent.len - come.bytes;
        let near = match &mut local.store {
            Store::Memory { bulk, .. } => Some((extent.offset, Arc::clone(bulk))),
            Store::Disk(_) => slot.as_ref().map(|it| (it.at, Arc::clone(&it.bulk))),
            Store::Bytes(_) | Store::Unseen(_) | Store::Frozen { .. } => None,
        };
        let is_near = member.nodes[from as usize] == member.nodes[member.own as usize];
        let is_summed = is_near
            && matches!(local.store, Store::Memory { .. })
            && coming.source.checksum.is_some();
        let len = if is_summed { left.min(HOT) } else { left };
        let start = offset.checked_add(come.bytes);
        let far = start.and_then(|start| Some(start..start.checked_add(len)?));
        let Some(Ok(far)) = far.map(|range| memory.range(range)) else {
            let why = "it offers memory that it has not".to_owned();
            self.give(id, Event::Wrong { from, why });
            return;
        };
        let Some((start, bulk)) = near else {
            let why = "it offers memory for what is small".to_owned();
            self.give(id, Event::Wrong { from, why });
            return;
        };
        let start = start + come.bytes;
        let near = bulk.range(start..start + len);
        let owner = &member.addresses[from as usize];
        let is_cut = !is_near && len > 2 * END;
        match near.and_then(|near| begin(self.engine, owner, (&far, &near), is_cut)) {
            Ok(transfers) => {
                coming.transfers = transfers.len();
                for (number, transfer) in transfers.into_iter().enumerate() {
                    let is_all_but_end = number + 1 < coming.transfers;
                    let (come, slot) = (come.clone(), slot.clone());
                    let into = slot.is_none().then(|| bulk.usage());
                    self.pulls.push(Pull {
                        group: id,
                        object,
                        block,
                        slot,
                        into,
                        come,
                        len,
                        is_all_but_end,
                        transfer,
                    });
                }
            }
            Err(error) => self.give(id, Event::Broken { from, why: error.to_string() }),
        }
    }

    /// Tries again to fetch what waits for memory.
    pub(super) fn fetch_held_up(&mut self) {
        for (id, block) in std::mem::take(&mut self.held_up) {
            self.fetch(id, block);
            self.act(id);
        }
    }

    pub(super) fn poll_pulls(&mut self, context: &mut Context<'_>) -> bool {
        let mut ended = Vec::new();
        let mut place = 0;
        while place < self.pulls.len() {
            match Pin::new(&mut self.pulls[place].transfer).poll(context) {
                Poll::Pending => place += 1,
                Poll::Ready(outcome) => ended.push((self.pulls.remove(place), outcome)),
            }
        }
        let has_moved = !ended.is_empty();
        for (pull, outcome) in ended {
            let group = pull.group;
            self.pulled(pull, outcome);
            self.act(group);
        }
        has_moved
    }

    /// Where it has failed its slot is not free: the transport may have that memory still, as that of an object.
    pub(super) fn pulled(&mut self, pull: Pull<'_>, outcome: Result<(), TransferError>) {
        let Pull { group: id, object, block, slot, into, mut come, len, is_all_but_end, .. } = pull;
        if outcome.is_err() {
            self.given_up.extend(into);
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(coming) = member.coming.get_mut(&(object, block)) else { return };
        coming.transfers -= 1;
        let (from, checksum, is_rest_to_come) =
            (coming.from, coming.source.checksum, coming.transfers > 0);
        let Some(local) = member.locals.get_mut(&object) else { return };
        let extent = local.extent(block);
        match (outcome, &local.store, slot) {
            (Err(error), ..) => {
                // What still comes of it does not count.
                member.coming.remove(&(object, block));
                let why = format!("its memory cannot be read: {error}");
                self.give(id, Event::Broken { from, why });
            }
            (Ok(()), ..) if is_rest_to_come => {
                if is_all_but_end {
                    self.give(id, Event::Nearly { object, block });
                }
            }
            (Ok(()), Store::Disk(disk), Some(slot)) => {
                disk.write(extent, Slot::At(slot), checksum);
            }
            (Ok(()), store @ Store::Memory { .. }, _) => {
                let Some(checksum) = checksum else {
                    self.settle(id, (object, block), true);
                    return;
                };
                let summed = store.add_to(&mut come.sum, (extent.offset + come.bytes, len));
                come.bytes += len;
                if summed.is_ok() && come.bytes < extent.len {
                    self.get(id, (object, block), None, come);
                    return;
                }
                let is_right = summed.is_ok() && come.sum.total() == checksum;
                self.settle(id, (object, block), is_right);
            }
            (Ok(()), ..) => {}
        }
    }

    /// A block is where it belongs, or was wrong; whoever calls this acts afterwards.
    fn settle(&mut self, id: GroupId, (object, block): (u64, u64), is_right: bool) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if is_right {
            member.arrived(object, block, false);
            member.machine.handle(Event::Arrived { object, block });
        } else if let Some(Coming { from, .. }) = member.coming.remove(&(object, block)) {
            let why = format!("block {block} of object {object} came with a wrong checksum");
            member.machine.handle(Event::Wrong { from, why });
        }
    }

    /// What became of a job of a disk.
    pub(super) fn disk_done(&mut self, disk: u64, group: u64, done: Done) {
        let Some(&(id, object)) = self.disks.get(&disk) else { return };
        let Some(member) = self.members.get_mut(&id) else { return };
        let local = member.locals.get_mut(&object).filter(|it| it.disk == Some(disk));
        let Some(store) = local.and_then(|it| it.store.disk()) else { return };
        match done {
            // That group has failed: another one may want the same block now, of another member.
            Done::Holds { .. } | Done::Loaded { .. } | Done::Written { .. }
                if store.is_stale(group) => {}
            Done::Holds { block, is_held: true } => {
                member.arrived(object, block, true);
                self.give(id, Event::Arrived { object, block });
            }
            Done::Holds { block, is_held: false } => {
                self.write_or_fetch(id, (object, block));
                self.act(id);
            }
            Done::Written { block, is_right, from } => {
                store.free(&from);
                self.settle(id, (object, block), is_right);
                self.act(id);
            }
            Done::Loaded { block, to, into, checksum } => {
                if let Some(message) = member.loaded((to, object, block), into, checksum) {
                    self.tell(id, to, message);
                }
            }
            Done::Finished => {
                if store.finished() {
                    self.give(id, Event::Finished { object });
                }
            }
            Done::Failed(why) => {
                let why = format!("object {object} cannot be read or written there: {why}");
                self.give(id, Event::Own { why });
            }
        }
    }

    /// A block is not on the disk yet.
    fn write_or_fetch(&mut self, id: GroupId, (object, block): (u64, u64)) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(Coming { source, .. }) = member.coming.get(&(object, block)) else { return };
        let Some(local) = member.locals.get_mut(&object) else { return };
        let extent = local.extent(block);
        match (&source.place, &local.store) {
            (Place::Inline(bytes), Store::Disk(disk)) => {
                disk.write(extent, Slot::Bytes(bytes.clone()), source.checksum);
            }
            _ => self.fetch(id, (object, block)),
        }
    }
}
