//! Who is whom: a peer speaks for an address once it has said a number that was told to that address alone. Two processes do this once, for
//! all groups that they share, before the first word; and again when the watch that begins then has ended.
//!
//! ```text
//!   X has something to tell Y                                           Y is in that group
//!   Meet{number of X, challenge}    --- by the address of Y --------->
//!                                   <-- by the address of X ----------  Prove{challenge, nonce}
//!   Proof{nonce}                    --- by the address of Y --------->  whoever says this is X
//!   what X has to tell              --- the same way, behind it ----->
//! ```
//! What X has to tell waits at X. The challenge keeps others from saying `Prove` in the name of Y, since X would speak too early then. Y may not
//! be in the group yet, and knows nothing of it: whatever it says to X once it is makes X ask again.

use hg::{Address, Peer};
use rustc_hash::FxHashMap;

use super::Driver;
use crate::{
    id::GroupId,
    inbox::Inbox,
    machine::{Event, Message},
    wire::{Meeting, Source, meet, tell},
};

/// What is known of the processes at some addresses.
#[derive(Default)]
pub(super) struct Acquaintances(FxHashMap<Address, Acquaintance>);

#[derive(Default)]
struct Acquaintance {
    /// Groups here in which it is.
    groups: usize,
    telling: Telling,
    /// What was told to that address alone.
    nonce: Option<u128>,
    /// Who has said it.
    speaker: Option<Peer>,
}

#[derive(Default)]
enum Telling {
    #[default]
    Unmet,
    /// It was asked to meet by this member of that group; what it is to be told then.
    Asked {
        group: GroupId,
        from: u32,
        challenge: u128,
        waiting: Vec<Words>,
    },
    Met,
}

/// What a member of a group is told by another one.
pub(super) type Words = (GroupId, u32, Message<Source>);

impl Acquaintance {
    /// What was asked is not waited for any more.
    fn end(&self, inbox: &Inbox) {
        let challenge = match self.telling {
            Telling::Asked { challenge, .. } => Some(challenge),
            Telling::Unmet | Telling::Met => None,
        };
        challenge.into_iter().chain(self.nonce).for_each(|it| inbox.expect_no_more(it));
    }
}

impl Acquaintances {
    /// One more group has these members.
    pub(super) fn add(&mut self, members: &[Address]) {
        for member in members {
            self.0.entry(member.clone()).or_default().groups += 1;
        }
    }

    /// One less. They stay known: a group that follows may have begun at the other end already, and last words may wait.
    pub(super) fn remove(&mut self, members: &[Address], inbox: &Inbox) {
        for member in members {
            if let Some(it) = self.0.get_mut(member) {
                it.groups = it.groups.saturating_sub(1);
            }
        }
        if self.0.len() > KNOWN_MAX {
            let forgotten = self.0.extract_if(|_, it| it.groups == 0);
            forgotten.for_each(|it| it.1.end(inbox));
        }
    }

    /// It is not watched any more, and has to be met again; `has_ended`: or the connection has, and whoever comes next may be somebody else. Who
    /// has spoken for it still does, on what is left of its connections.
    pub(super) fn forget(&mut self, address: &Address, has_ended: bool, inbox: &Inbox) {
        let Some(it) = self.0.get_mut(address) else { return };
        if has_ended {
            it.end(inbox);
            it.nonce = None;
        }
        if has_ended || matches!(it.telling, Telling::Met) {
            it.telling = Telling::Unmet;
        }
    }

    /// What waits until whoever is there was met.
    #[cfg(test)]
    pub(super) fn waiting(&self, address: &Address) -> &[Words] {
        match self.0.get(address).map(|it| &it.telling) {
            Some(Telling::Asked { waiting, .. }) => waiting,
            Some(Telling::Unmet | Telling::Met) | None => &[],
        }
    }

    /// Whether this peer speaks for the process at this address.
    pub(super) fn is_speaker(&self, address: &Address, peer: Peer) -> bool {
        self.0.get(address).is_some_and(|it| it.speaker == Some(peer))
    }
}

impl Driver<'_> {
    /// Tells a member something, once it knows who speaks.
    pub(super) fn tell(&mut self, id: GroupId, to: u32, message: Message<Source>) {
        let Some(member) = self.members.get(&id) else { return };
        let (address, words) = (member.addresses[to as usize].clone(), (id, member.own, message));
        let Some(known) = self.acquaintances.0.get_mut(&address) else { return };
        match &mut known.telling {
            Telling::Met => self.say(&address, words),
            Telling::Asked { group, from, waiting, .. } => {
                let is_another = *group != id;
                (*group, *from) = (id, words.1);
                waiting.push(words);
                if is_another {
                    self.ask(&address); // There it may know of this group only.
                }
            }
            Telling::Unmet => {
                let Ok(challenge) = draw() else { return };
                self.inbox.expect(challenge);
                let from = words.1;
                known.telling = Telling::Asked { group: id, from, challenge, waiting: vec![words] };
                self.ask(&address);
            }
        }
    }

    fn say(&mut self, address: &Address, words: Words) {
        let id = words.0;
        let told = match self.engine.lookup(address) {
            Ok(peer) => self.engine.notify(tell, &peer, words).accepted(),
            Err(error) => Err(hg::Failure::NotMade(error)),
        };
        let (Err(error), Some(member)) = (told, self.members.get_mut(&id)) else { return };
        // Nobody says it again: for this group that one is lost.
        let gone = member.addresses.iter().position(|it| it == address);
        if let Some(gone) = gone.and_then(|it| u32::try_from(it).ok()) {
            member.machine.handle(Event::Gone { member: gone, why: error.to_string() });
            self.touch(id);
        }
    }

    fn meet(&self, address: &Address, group: GroupId, meeting: Meeting) {
        let told = match self.engine.lookup(address) {
            Ok(peer) => self.engine.notify(meet, &peer, (group, meeting)).accepted(),
            Err(error) => Err(hg::Failure::NotMade(error)),
        };
        if let Err(error) = told {
            // Who has not begun to listen will ask itself, and who is not reached is watched.
            tracing::debug!(%address, %error, "a member was not met");
        }
    }

    /// Asks again in a group that it is in, where that is not done.
    pub(super) fn ask_in(&mut self, id: GroupId, own: u32, address: &Address) {
        let Some(known) = self.acquaintances.0.get_mut(address) else { return };
        if let Telling::Asked { group, from, .. } = &mut known.telling {
            (*group, *from) = (id, own);
            self.ask(address);
        }
    }

    /// Asks, where that is not done.
    fn ask(&self, address: &Address) {
        let Some(known) = self.acquaintances.0.get(address) else { return };
        let Telling::Asked { group, from, challenge, .. } = known.telling else { return };
        self.meet(address, group, Meeting::Meet { from, challenge });
    }

    /// Somebody has said this; what it says about who it is is a claim.
    pub(super) fn met(&mut self, group: GroupId, origin: Peer, meeting: Meeting) {
        match meeting {
            Meeting::Meet { from, challenge } => self.prove(group, from, challenge),
            Meeting::Prove { challenge, nonce } => self.say_all(group, challenge, nonce),
            Meeting::Proof { nonce } => {
                let mut all = self.acquaintances.0.values_mut();
                if let Some(it) = all.find(|it| it.nonce == Some(nonce)) {
                    it.nonce = None;
                    it.speaker = Some(origin);
                    self.inbox.expect_no_more(nonce);
                }
            }
        }
    }

    fn prove(&mut self, group: GroupId, from: u32, challenge: u128) {
        let Some(member) = self.members.get(&group).filter(|it| it.own != from) else { return };
        let Some(address) = member.addresses.get(from as usize).cloned() else { return };
        let Some(known) = self.acquaintances.0.get_mut(&address) else { return };
        let Ok(drawn) = draw() else { return };
        let nonce = *known.nonce.get_or_insert(drawn);
        let own = member.own;
        self.inbox.expect(nonce);
        self.meet(&address, group, Meeting::Prove { challenge, nonce });
        self.ask_in(group, own, &address); // It had not begun this one when it was asked, perhaps, nor the one that it was asked in.
    }

    fn say_all(&mut self, group: GroupId, asked: u128, nonce: u128) {
        let is_it = |(_, known): &(&Address, &mut Acquaintance)| matches!(known.telling, Telling::Asked { challenge, .. } if challenge == asked);
        let Some((address, known)) = self.acquaintances.0.iter_mut().find(is_it) else { return };
        let Telling::Asked { from, waiting, .. } =
            std::mem::replace(&mut known.telling, Telling::Met)
        else {
            return;
        };
        let address = address.clone();
        self.inbox.expect_no_more(asked);
        self.meet(&address, group, Meeting::Proof { nonce });
        for words in waiting {
            self.say(&address, words);
        }
        // Its end says that it has to be met again.
        if self.watch_process(&address, (group, from)).is_err() {
            self.acquaintances.forget(&address, true, self.inbox);
        }
    }
}

fn draw() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

/// Processes that are remembered without a group.
const KNOWN_MAX: usize = 10_000;
