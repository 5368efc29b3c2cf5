//! Objects that are seen where they lie: frozen memory of a process of this node, mapped as a whole with the first block that is offered.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use hg::bulk::{Frozen, RemoteRange, View};

use super::Driver;
use crate::{id::GroupId, machine::Event, wire::Place};

/// A view that was asked for.
pub(super) struct Seeing<'e> {
    pub(super) group: GroupId,
    object: u64,
    view: Pin<Box<View<'e>>>,
}

impl Driver<'_> {
    /// Asks whoever has offered this block for all of the object, once.
    pub(super) fn see(&mut self, id: GroupId, (object, block): (u64, u64)) {
        if self.views.iter().any(|it| it.group == id && it.object == object) {
            return;
        }
        match self.whole(id, (object, block)) {
            Some((peer, whole)) => {
                let view = Box::pin(self.engine.view(&peer, whole));
                self.views.push(Seeing { group: id, object, view });
            }
            None => self.seen(id, object, None),
        }
    }

    /// The whole object in the memory of a process of this node that has offered a block of it.
    fn whole(&self, id: GroupId, (object, block): (u64, u64)) -> Option<(hg::Peer, RemoteRange)> {
        let member = self.members.get(&id)?;
        let coming = member.coming.get(&(object, block))?;
        let local = member.locals.get(&object)?;
        let Place::At { memory, offset } = &coming.source.place else { return None };
        if !member.is_near(coming.from) {
            return None;
        }
        let first = offset.checked_sub(local.extent(block).offset)?;
        let whole = memory.range(first..first.checked_add(local.header.size)?).ok()?;
        let peer = self.engine.lookup(&member.addresses[coming.from as usize]).ok()?;
        Some((peer, whole))
    }

    pub(super) fn poll_views(&mut self, context: &mut Context<'_>) -> bool {
        let mut ended = Vec::new();
        self.views.retain_mut(|it| match it.view.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                // What cannot be seen, or may still change, is copied: whether that can be will show.
                let frozen = outcome.ok().and_then(|bytes| Frozen::try_from(bytes).ok());
                ended.push((it.group, it.object, frozen));
                false
            }
        });
        let has_moved = !ended.is_empty();
        for (id, object, frozen) in ended {
            self.seen(id, object, frozen);
            self.act(id);
        }
        has_moved
    }

    /// All of an object is seen, or is to be copied: its blocks can come.
    fn seen(&mut self, id: GroupId, object: u64, frozen: Option<Frozen>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(local) = member.locals.get_mut(&object) else { return };
        if let Err(why) = local.see(self.engine, frozen) {
            member.machine.handle(Event::Own { why });
            return;
        }
        let mut blocks: Vec<_> =
            member.coming.keys().filter(|it| it.0 == object).copied().collect();
        blocks.sort_unstable();
        for block in blocks {
            self.fetch(id, block);
        }
    }
}
