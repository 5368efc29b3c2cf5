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
//! What X has to tell waits at X, also when a connection ends meanwhile: then X asks again, with another challenge. X watches Y before it says
//! the proof. So what is lost with a connection on which something was said, that watch's end tells: to whoever has to know of Y's end, and
//! to a root that has called. A number stays good until a later one is said: it may be on its way, or be said on two connections, while Y notices
//! the end of an earlier one. The challenge keeps others from saying `Prove` in the name of Y, since X would speak too early then. Y may not
//! be in the group yet, and knows nothing of it: whatever it says to X once it is makes X ask again.

use hg::{Address, Peer};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Driver;
use crate::{
    id::GroupId,
    inbox::Inbox,
    machine::{Event, Message},
    wire::{Meeting, Source, meet, tell, watch},
};

/// What is known of the processes at some addresses.
#[derive(Default)]
pub(super) struct Acquaintances(FxHashMap<Address, Acquaintance>);

#[derive(Default)]
struct Acquaintance {
    /// Groups here in which it is.
    groups: usize,
    telling: Telling,
    /// What was told to that address alone: who says it speaks for the address. The one that was said last, and the one that was not said yet.
    said: Option<u128>,
    told: Option<u128>,
    /// Who has said the first of them, on connections that were made one after the other: what is left on an earlier one counts.
    speakers: Vec<Peer>,
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
        let all = challenge.into_iter().chain(self.said).chain(self.told);
        all.for_each(|it| inbox.expect_no_more(it));
    }

    /// This peer has said that number: says whether it was told to this address.
    fn is_proven(&mut self, nonce: u128, peer: Peer, inbox: &Inbox) -> bool {
        if self.told == Some(nonce) {
            let before = std::mem::replace(&mut self.said, self.told.take());
            before.into_iter().for_each(|it| inbox.expect_no_more(it));
            self.speakers.clear();
        }
        let is_good = self.said == Some(nonce);
        if is_good && !self.speakers.contains(&peer) {
            let is_full = self.speakers.len() == SPEAKERS_MAX;
            self.speakers.drain(..usize::from(is_full));
            self.speakers.push(peer);
        }
        is_good
    }
}

impl Acquaintances {
    /// One more group has these members.
    pub(super) fn add(&mut self, members: &[Address]) {
        for member in members {
            self.0.entry(member.clone()).or_default().groups += 1;
        }
    }

    /// One less. They stay known: a group that follows may have begun at the other end already, and last words may wait. Of many, those are
    /// forgotten that do not watch this process: whoever does has met it, and does not ask to be met again.
    pub(super) fn remove(
        &mut self,
        members: &[Address],
        watchers: &[hg::Answer<watch>],
        inbox: &Inbox,
    ) {
        for member in members {
            if let Some(it) = self.0.get_mut(member) {
                it.groups = it.groups.saturating_sub(1);
            }
        }
        if self.0.len() > KNOWN_MAX {
            let requests = watchers.iter().filter_map(|it| it.request());
            let watchers: FxHashSet<_> = requests.map(hg::Request::origin).collect();
            let is_done = |it: &Acquaintance| {
                it.groups == 0 && !it.speakers.iter().any(|it| watchers.contains(it))
            };
            let forgotten = self.0.extract_if(|_, it| is_done(it));
            forgotten.for_each(|it| it.1.end(inbox));
        }
    }

    /// It is not watched any more, and has to be met again. Who has spoken for it still does, on what is left of its connections.
    pub(super) fn unmeet(&mut self, address: &Address) {
        let Some(it) = self.0.get_mut(address) else { return };
        if matches!(it.telling, Telling::Met) {
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

    #[cfg(test)]
    pub(super) fn knows(&self, address: &Address) -> bool {
        self.0.contains_key(address)
    }

    /// The number that the process at this address was told last.
    #[cfg(test)]
    pub(super) fn number_of(&self, address: &Address) -> Option<u128> {
        let it = self.0.get(address)?;
        it.told.or(it.said)
    }

    /// Whether this peer speaks for the process at this address.
    pub(super) fn is_speaker(&self, address: &Address, peer: Peer) -> bool {
        self.0.get(address).is_some_and(|it| it.speakers.contains(&peer))
    }
}

impl Driver<'_> {
    /// Its watch has ended, and the connection with it; whoever comes next may be somebody else. The groups that were told that have lost what
    /// waits, unless they are over: what they say then stands alone.
    pub(super) fn connection_ended(&mut self, address: &Address, told: &[(GroupId, u32)]) {
        self.acquaintances.unmeet(address);
        let Some(known) = self.acquaintances.0.get_mut(address) else { return };
        let Telling::Asked { group, from, challenge, waiting } = &mut known.telling else { return };
        let goes_on = |it: &GroupId| self.members.get(it).is_some_and(|it| !it.machine.is_over());
        waiting.retain(|words| !(goes_on(&words.0) && told.iter().any(|it| it.0 == words.0)));
        let Some(last) = waiting.last() else {
            self.inbox.expect_no_more(*challenge);
            known.telling = Telling::Unmet;
            return;
        };
        (*group, *from) = (last.0, last.1);
        if let Ok(drawn) = draw() {
            self.inbox.expect_no_more(std::mem::replace(challenge, drawn));
            self.inbox.expect(drawn);
        }
        self.ask(address);
    }

    /// Tells a member something, once it knows who speaks.
    pub(super) fn tell(&mut self, id: GroupId, to: u32, message: Message<Source>) {
        let Some(member) = self.members.get(&id) else { return };
        let address = member.addresses[to as usize].clone();
        let words = (id, member.own, message);
        self.say_once_met(&address, words);
    }

    fn say_once_met(&mut self, address: &Address, words: Words) {
        let Some(known) = self.acquaintances.0.get_mut(address) else { return };
        let (id, own) = (words.0, words.1);
        match &mut known.telling {
            Telling::Met => self.say(address, words),
            Telling::Asked { group, from, waiting, .. } => {
                let is_another = *group != id;
                (*group, *from) = (id, own);
                waiting.push(words);
                if is_another {
                    self.ask(address); // There it may know of this group only.
                }
            }
            Telling::Unmet => {
                let Ok(challenge) = draw() else { return };
                self.inbox.expect(challenge);
                let waiting = vec![words];
                known.telling = Telling::Asked { group: id, from: own, challenge, waiting };
                self.ask(address);
            }
        }
    }

    fn say(&mut self, address: &Address, words: Words) {
        let (id, is_call) = (words.0, matches!(words.2, Message::Call));
        let told = match self.engine.lookup(address) {
            Ok(peer) => self.engine.notify(tell, &peer, words).accepted(),
            Err(error) => Err(hg::Failure::NotMade(error)),
        };
        let Err(error) = told else { return };
        self.acquaintances.unmeet(address);
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(place) = member.place_of(address) else { return };
        // Nobody says anything but a call again: for this group that one is lost.
        let gone = Event::Gone { member: place, why: error.to_string() };
        let event = if is_call { Event::NotCalled { member: place } } else { gone };
        member.machine.handle(event);
        self.touch(id);
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
                all.any(|it| it.is_proven(nonce, origin, self.inbox));
            }
        }
    }

    fn prove(&mut self, group: GroupId, from: u32, challenge: u128) {
        let Some(member) = self.members.get(&group).filter(|it| it.own != from) else { return };
        let Some(address) = member.addresses.get(from as usize).cloned() else { return };
        let Some(known) = self.acquaintances.0.get_mut(&address) else { return };
        let Ok(drawn) = draw() else { return };
        let (own, nonce) = (member.own, *known.told.get_or_insert(drawn));
        self.inbox.expect(nonce);
        self.meet(&address, group, Meeting::Prove { challenge, nonce });
        self.ask_in(group, own, &address); // It had not begun this one when it was asked, perhaps, nor the one that it was asked in.
    }

    fn say_all(&mut self, group: GroupId, asked: u128, nonce: u128) {
        let is_asked = |it: &&mut Acquaintance| matches!(it.telling, Telling::Asked { challenge, .. } if challenge == asked);
        let Some((address, known)) = self.acquaintances.0.iter_mut().find(|it| is_asked(&it.1))
        else {
            return;
        };
        let Telling::Asked { from, .. } = known.telling else { return };
        let address = address.clone();
        let from = self.members.get(&group).map_or(from, |it| it.own);
        // Before the first word: its end says what is lost, and that it has to be met again. In the group that was named, for it is in that one.
        if self.watch_process(&address, (group, from)).is_err() {
            return;
        }
        // Unless an earlier watch was found, and has ended.
        let Some(known) = self.acquaintances.0.get_mut(&address).filter(is_asked) else { return };
        let met = std::mem::replace(&mut known.telling, Telling::Met);
        let Telling::Asked { waiting, .. } = met else { return };
        self.inbox.expect_no_more(asked);
        self.meet(&address, group, Meeting::Proof { nonce });
        for words in waiting {
            self.say_once_met(&address, words);
        }
    }
}

fn draw() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

/// Processes that are remembered without a group.
pub(super) const KNOWN_MAX: usize = 10_000;
/// Connections of one process on which something may have come that was not heard yet.
const SPEAKERS_MAX: usize = 4;
