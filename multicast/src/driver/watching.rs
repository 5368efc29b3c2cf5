//! Who is watched: a process, for all groups here that have to know of its end, by a call that is answered at the end only.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use hg::{Address, CallError, OwnedCall};

use super::{Driver, member::Member};
use crate::{
    id::GroupId,
    machine::Event,
    wire::{Unknown, watch},
};

/// A process that is watched, for all groups that have to know.
pub(super) struct Watch {
    pub(super) address: Address,
    call: OwnedCall<watch>,
    /// The group that it was asked for; and all that are interested, with the member's number there.
    asked_for: GroupId,
    interested: Vec<(GroupId, u32)>,
}

/// How a watch has ended.
pub(super) type Outcome = Result<(), CallError<Unknown>>;

impl Driver<'_> {
    pub(super) fn watch(&mut self, id: GroupId, member: u32) {
        let Some(it) = self.members.get(&id) else { return };
        let (address, own) = (it.addresses[member as usize].clone(), it.own);
        match self.watch_process(&address, (id, own)) {
            Ok(watched) => watched.interested.push((id, member)),
            Err(error) => self.give(id, Event::Gone { member, why: error.to_string() }),
        }
    }

    /// The watch of a process, asked for by this member of that group where there is none. One that has ended, and was not polled since, is none.
    pub(super) fn watch_process(
        &mut self,
        address: &Address,
        (group, own): (GroupId, u32),
    ) -> Result<&mut Watch, hg::Error> {
        while let Some(place) = self.watches.iter().position(|it| it.address == *address) {
            match self.watches[place].call.try_wait() {
                None => return Ok(&mut self.watches[place]),
                Some(outcome) => {
                    let ended = self.watches.remove(place);
                    self.watch_ended(ended, outcome);
                }
            }
        }
        let peer = self.engine.lookup(address)?;
        self.watches.push(Watch {
            address: address.clone(),
            call: self.engine.call_owned(watch, &peer, (group, own)),
            asked_for: group,
            interested: Vec::new(),
        });
        let last = self.watches.len() - 1;
        Ok(&mut self.watches[last])
    }

    /// A group is not interested any more.
    pub(super) fn unwatch(&mut self, id: GroupId) {
        for watched in &mut self.watches {
            watched.interested.retain(|it| it.0 != id);
        }
    }

    pub(super) fn poll_watches(&mut self, context: &mut Context<'_>) -> bool {
        let mut ended = Vec::new();
        let mut place = 0;
        while let Some(it) = self.watches.get_mut(place) {
            match Pin::new(&mut it.call).poll(context) {
                Poll::Pending => place += 1,
                Poll::Ready(outcome) => ended.push((self.watches.remove(place), outcome)),
            }
        }
        let has_moved = !ended.is_empty();
        ended.into_iter().for_each(|(it, outcome)| self.watch_ended(it, outcome));
        has_moved
    }

    pub(super) fn watch_ended(&mut self, ended: Watch, outcome: Outcome) {
        let Watch { address, asked_for, interested, .. } = ended;
        let (is_one, why) = match outcome {
            Ok(()) => (false, "it has ended its multicast".to_owned()),
            Err(CallError::Handler(unknown)) => (true, unknown.to_string()),
            Err(CallError::PeerGone { reason, .. }) => (false, reason.to_string()),
            Err(error) => (false, error.to_string()),
        };
        if is_one {
            self.acquaintances.unmeet(&address);
        } else {
            self.connection_ended(&address, &interested);
        }
        // What roots have called it by may be lost, and nothing else tells of that.
        let is_root = |it: &(&GroupId, &Member)| it.1.own == 0 && !it.1.has_joined;
        let calls = self.members.iter().filter(is_root);
        let calls: Vec<_> =
            calls.filter_map(|(id, it)| Some((*id, it.place_of(&address)?))).collect();
        calls.into_iter().for_each(|(id, member)| self.give(id, Event::NotCalled { member }));
        for (id, member) in interested {
            if is_one && id != asked_for {
                self.watch(id, member); // Of this one nothing was said.
            } else if is_one {
                self.give(id, Event::Unknown { member, why: why.clone() });
            } else {
                self.give(id, Event::Gone { member, why: why.clone() });
            }
        }
    }

    /// Those that have ended are watchers no more, and give back their places among the requests in service.
    pub(super) fn forget_watchers(&mut self) {
        let is_there = |request: &hg::Request| !request.is_cancelled();
        self.watchers.retain(|it| it.request().is_some_and(is_there));
    }
}
