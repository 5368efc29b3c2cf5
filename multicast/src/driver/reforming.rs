//! A group that goes on without the dead.

use std::sync::Arc;

use super::{Driver, Limit, member::Member};
use crate::{
    error::{Error, Failure},
    id::GroupId,
    inbox::{OnReformed, Opening, Reformed},
    machine::Event,
};

impl Driver<'_> {
    /// The user wants to go on.
    pub(super) fn reform(&mut self, id: GroupId, completer: OnReformed) {
        let Some(member) = self.members.get_mut(&id) else {
            completer(Err(Error::Closed));
            return;
        };
        if !matches!(member.shared.lock().ended, Some(Err(_))) {
            completer(Err(Error::NotFailed));
            self.give(id, Event::Own { why: "it has left the group".to_owned() });
            self.remove(id);
            return;
        }
        let within = member.options.join_within;
        member.reforming = Some(completer);
        match GroupId::random() {
            Ok(new) => self.give(id, Event::Reform { id: new.0 }),
            Err(error) => {
                self.refuse_to_reform(id, error);
                return;
            }
        }
        self.set_deadline(id, within, Limit::Reform);
        self.go_on(id);
    }

    /// The others go on as this group.
    pub(super) fn reformed(&mut self, id: GroupId, new: GroupId, members: Vec<u32>) {
        if let Some(member) = self.members.get_mut(&id) {
            member.reformed = Some((new, members));
        }
        self.go_on(id);
    }

    pub(super) fn reform_is_late(&mut self, id: GroupId) {
        let Some(member) = self.members.get(&id) else { return };
        let (own, failure) = (member.own, member.shared.lock().ended.clone());
        if let (Some(Err(failure)), true) = (failure, member.reforming.is_some()) {
            // It was waited for all the same: who leads may have heard of another fault.
            let others = match failure.member == own {
                true => "those that go on do so without it",
                false => "whoever leads the survivors does not go on",
            };
            let why = format!("{}; and {others}", failure.why);
            self.refuse_to_reform(id, Failure { why, ..failure }.into());
        }
    }

    fn refuse_to_reform(&mut self, id: GroupId, error: Error) {
        let completer = self.members.get_mut(&id).and_then(|it| it.reforming.take());
        self.remove(id);
        if let Some(completer) = completer {
            completer(Err(error));
        }
    }

    /// Goes on once the user wants to, and the others are known.
    fn go_on(&mut self, id: GroupId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.reforming.is_none() || member.reformed.is_none() {
            return;
        }
        let (Some(completer), Some((new, survivors))) =
            (member.reforming.take(), member.reformed.take())
        else {
            return;
        };
        let own = survivors.iter().position(|it| *it == member.own);
        let own = own.and_then(|it| u32::try_from(it).ok());
        let Some(own) = own.filter(|_| survivors.len() > 1) else {
            let why = "nobody is left to form a group with";
            member.reforming = Some(completer);
            self.refuse_to_reform(id, Error::Members(why.to_owned()));
            return;
        };
        // Who leads has said the id, and may say that of another group.
        if !self.inbox.add(new) {
            if let Some(member) = self.members.get_mut(&id) {
                member.reforming = Some(completer);
            }
            self.refuse_to_reform(id, Error::SameId);
            return;
        }
        let Some(old) = self.members.remove(&id) else { return };
        self.crowded -= usize::from(old.near() > self.cores);
        let before = Arc::clone(&old.addresses);
        let of = |it: &u32| old.addresses[*it as usize].clone();
        let (shared, within) = (old.shared, old.options.join_within);
        shared.change(|state| state.ended = None);
        let opening = Opening {
            id: new,
            own,
            members: survivors.iter().map(of).collect(),
            nodes: survivors.iter().map(|it| old.nodes[*it as usize]).collect(),
            options: old.options,
            incoming: old.incoming,
            shared,
        };
        let members = opening.members.clone();
        let mut member = Member::carrying(opening, old.machine.carry());
        member.locals = old.locals;
        member.renew(self.engine);
        let resent = member.send_again();
        self.disks.values_mut().filter(|it| it.0 == id).for_each(|it| it.0 = new);
        self.inbox.follow(id, new);
        self.remove(id);
        self.insert(new, member);
        self.acquaintances.remove(&before, &self.watchers, self.inbox);
        let within = if own == 0 { within } else { within.saturating_add(within / 2) };
        self.set_deadline(new, within, Limit::Join);
        self.act(new);
        completer(Ok(Reformed { id: new, own, members, resent }));
    }
}
