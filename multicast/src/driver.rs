//! The thread that drives all groups of a process: gives their machines what happens, and does what they say.

mod acquaintance;
mod blocks;
mod member;
mod reforming;
mod seeing;
#[cfg(test)]
mod tests;
mod watching;

use std::{
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use hg::{Peer, bulk::Usage};
use rustc_hash::FxHashMap;

use self::{
    acquaintance::Acquaintances, blocks::Pull, member::Member, seeing::Seeing, watching::Watch,
};
use crate::{
    id::GroupId,
    inbox::{Closing, Inbox, Input, Opening, Sending},
    machine::{Action, Event, INLINE_MAX, Message},
    wire::{Place, Source, watch},
};

/// How long nothing is looked at where nothing happens.
const IDLE: Duration = Duration::from_secs(3600);
/// How long while something waits for memory: nobody tells when a transfer that was given up has ended.
const HELD_UP: Duration = Duration::from_millis(1);

/// What may take so long and no longer.
#[derive(Clone, Copy)]
enum Limit {
    Join,
    Reform,
}

/// The thread's state.
pub(crate) struct Driver<'e> {
    engine: &'e hg::Engine,
    inbox: &'e Arc<Inbox>,
    members: FxHashMap<GroupId, Member>,
    acquaintances: Acquaintances,
    pulls: Vec<Pull<'e>>,
    /// Memory of objects where pulls that were given up, or have failed, may touch something still: nothing else comes there as long.
    given_up: Vec<Usage>,
    /// The blocks that wait for it.
    held_up: Vec<(GroupId, (u64, u64))>,
    views: Vec<Seeing<'e>>,
    watches: Vec<Watch>,
    /// Those who watch this process, and live or have died since the last one came; told by dropping them.
    watchers: Vec<hg::Answer<watch>>,
    /// Which object of which group a disk has.
    disks: FxHashMap<u64, (GroupId, u64)>,
    /// When somebody has waited too long, and what for.
    deadlines: BTreeMap<(Instant, u64), (GroupId, Limit)>,
    count: u64,
    /// Groups that have more members here than this process has cores.
    crowded: usize,
    cores: usize,
    /// Groups that were told something in this round: what they say goes together.
    touched: Vec<GroupId>,
}

impl<'e> Driver<'e> {
    fn new(engine: &'e hg::Engine, inbox: &'e Arc<Inbox>) -> Self {
        Self {
            engine,
            inbox,
            members: FxHashMap::default(),
            acquaintances: Acquaintances::default(),
            pulls: Vec::new(),
            given_up: Vec::new(),
            held_up: Vec::new(),
            views: Vec::new(),
            watches: Vec::new(),
            watchers: Vec::new(),
            disks: FxHashMap::default(),
            deadlines: BTreeMap::new(),
            count: 0,
            crowded: 0,
            cores: thread::available_parallelism().map_or(1, usize::from),
            touched: Vec::new(),
        }
    }

    /// Until it is told to end.
    pub(crate) fn run(engine: &'e hg::Engine, inbox: &'e Arc<Inbox>) {
        Inbox::become_driver();
        let mut driver = Self::new(engine, inbox);
        let waker = Waker::from(Arc::clone(inbox));
        loop {
            let inputs = inbox.take();
            let mut has_moved = !inputs.is_empty();
            let ends = inputs.iter().any(|input| matches!(input, Input::End));
            inputs.into_iter().for_each(|input| driver.handle(input));
            if ends {
                driver.end();
                return;
            }
            for id in std::mem::take(&mut driver.touched) {
                driver.act(id);
            }
            driver.fetch_held_up();
            driver.expire();
            let mut context = Context::from_waker(&waker);
            has_moved |= driver.poll_pulls(&mut context);
            has_moved |= driver.poll_views(&mut context);
            // The last: a call that nothing has polled wakes nobody, and what is found here may make more of them before the next round.
            has_moved |= driver.poll_watches(&mut context);
            if !has_moved && driver.touched.is_empty() {
                driver.forget_watchers();
                let next = driver.deadlines.first_key_value().map(|it| it.0.0);
                let wait = next.map_or(IDLE, |it| it.saturating_duration_since(Instant::now()));
                driver.wait(wait.min(if driver.held_up.is_empty() { IDLE } else { HELD_UP }));
            }
        }
    }

    /// Until something happens. Where members of a group are more than cores, one that was just told something may stand behind this one.
    fn wait(&self, limit: Duration) {
        if self.crowded > 0 {
            self.engine.progress_with(hg::Wait::Block, limit);
        } else {
            self.engine.progress(limit);
        }
    }

    /// Everybody who waits here is told, and whoever asks for something at this moment.
    fn end(mut self) {
        loop {
            let mut all: Vec<_> = self.members.keys().copied().collect();
            while !all.is_empty() {
                for id in all {
                    let why = "this process has ended its multicast".to_owned();
                    self.give(id, Event::Own { why });
                    self.reform_is_late(id);
                }
                // What ended a group may have formed another one of its survivors.
                let is_left = |it: &(&GroupId, &Member)| !it.1.machine.is_over();
                all = self.members.iter().filter(is_left).map(|it| *it.0).collect();
            }
            let Some(rest) = self.inbox.take_or_end() else { break };
            rest.into_iter().for_each(|input| self.handle(input));
        }
        let _ = self.engine.progress(Duration::ZERO);
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Told { group, from, origin, message } => self.told(group, from, origin, message),
            Input::Met { group, origin, meeting } => self.met(group, origin, meeting),
            Input::Watched(answer) => self.watchers.push(answer),
            Input::Open(opening) => self.open(*opening),
            Input::Send(id, sending) => self.send(id, *sending),
            Input::Joined(id, completer) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.when_joined(completer);
                }
            }
            Input::Close(id, closing) => self.close(id, closing),
            Input::Reform(id, completer) => self.reform(id, completer),
            Input::Received(id, bytes) => self.give(id, Event::Received { bytes }),
            Input::Leave(id) => {
                self.give(id, Event::Own { why: "it has left the group".to_owned() });
                self.remove(id);
            }
            Input::Disk(disk, group, done) => self.disk_done(disk, group, done),
            Input::End => {}
        }
    }

    fn open(&mut self, opening: Opening) {
        let (id, within) = (opening.id, opening.options.join_within);
        let is_root = opening.own == 0;
        self.insert(id, Member::new(opening));
        // The root says who is missing; the others wait longer.
        let within = if is_root { within } else { within.saturating_add(within / 2) };
        self.set_deadline(id, within, Limit::Join);
        self.act(id);
    }

    fn insert(&mut self, id: GroupId, member: Member) {
        self.acquaintances.add(&member.addresses);
        self.crowded += usize::from(member.near() > self.cores);
        self.members.insert(id, member);
    }

    fn set_deadline(&mut self, id: GroupId, within: Duration, limit: Limit) {
        self.count += 1;
        if let Some(at) = Instant::now().checked_add(within) {
            self.deadlines.insert((at, self.count), (id, limit));
        }
    }

    fn expire(&mut self) {
        while let Some(first) = self.deadlines.first_entry() {
            if first.key().0 > Instant::now() {
                return;
            }
            match first.remove() {
                (id, Limit::Join) => self.give(id, Event::Late),
                (id, Limit::Reform) => self.reform_is_late(id),
            }
        }
    }

    fn send(&mut self, id: GroupId, sending: Sending) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let disk = sending.disk;
        if let Some(number) = member.send(sending) {
            if let Some(disk) = disk {
                self.disks.insert(disk, (id, number));
            }
            self.act(id);
        }
    }

    fn close(&mut self, id: GroupId, closing: Closing) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.when_closed(closing) {
            self.remove(id);
        } else {
            self.give(id, Event::Close);
        }
    }

    /// The user has no handle of it any more, and it is over.
    fn remove(&mut self, id: GroupId) {
        self.inbox.remove(id);
        if let Some(member) = self.members.remove(&id) {
            self.crowded -= usize::from(member.near() > self.cores);
            self.acquaintances.remove(&member.addresses, &self.watchers, self.inbox);
        }
        self.forget_moves(id);
        self.disks.retain(|_, it| it.0 != id);
        self.unwatch(id);
    }

    /// What is on its way to a group is not wanted any more.
    fn forget_moves(&mut self, id: GroupId) {
        let given_up = self.pulls.extract_if(.., |it| it.group == id);
        self.given_up.extend(given_up.filter_map(|it| it.into));
        self.held_up.retain(|it| it.0 != id);
        self.views.retain(|it| it.group != id);
    }

    fn told(&mut self, id: GroupId, from: u32, origin: Peer, message: Message<Source>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let address = member.addresses.get(from as usize).filter(|_| from != member.own).cloned();
        let Some(address) = address.filter(|it| self.acquaintances.is_speaker(it, origin)) else {
            let what = "a message of somebody who is not that member is dropped";
            tracing::warn!(from, ?origin, what);
            return;
        };
        let own = member.own;
        self.ask_in(id, own, &address);
        let Some(member) = self.members.get_mut(&id) else { return };
        let event = match message {
            Message::Took { object, block } if !member.machine.is_over() => {
                member.passed_on(from, object, block);
                Event::Message { from, message }
            }
            Message::Offer { source: Source { place: Place::Inline(bytes), .. }, .. }
                if bytes.len() as u64 > INLINE_MAX =>
            {
                let why = "it broke the protocol: a block in an offer is a small one".to_owned();
                Event::Wrong { from, why }
            }
            message => Event::Message { from, message },
        };
        member.machine.handle(event);
        self.touch(id);
    }

    /// What this group says is done at the end of the round.
    fn touch(&mut self, id: GroupId) {
        if !self.touched.contains(&id) {
            self.touched.push(id);
        }
    }

    /// Gives a machine what has happened, and does what it says.
    fn give(&mut self, id: GroupId, event: Event<Source>) {
        if let Some(member) = self.members.get_mut(&id) {
            member.machine.handle(event);
            self.act(id);
        }
    }

    fn act(&mut self, id: GroupId) {
        while let Some(member) = self.members.get_mut(&id) {
            let Some(action) = member.machine.poll_action() else { return };
            self.perform(id, action);
        }
    }

    fn perform(&mut self, id: GroupId, action: Action<Source>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if let Some(disk) = ended(&action).and_then(|object| member.disk_of(object)) {
            self.disks.remove(&disk);
        }
        match action {
            Action::Tell { to, message } => self.tell(id, to, message),
            Action::Watch { member } => self.watch(id, member),
            Action::Offer { to, object, block, header } => {
                let offer = member.offer(to, object, block, header);
                match offer {
                    Ok(Some(message)) => self.tell(id, to, message),
                    Ok(None) => {} // It is loaded first.
                    Err(why) => member.machine.handle(Event::Own { why }),
                }
            }
            Action::Prepare { object } => self.prepare(id, object),
            Action::Pull { from, object, block, source } => {
                self.pull(id, from, (object, block), source);
            }
            Action::Finish { object } => member.finish(object),
            Action::Joined => member.joined(),
            Action::Deliver { object } => member.deliver(object),
            Action::Everywhere { object } => member.everywhere(object),
            Action::Lost { object } => member.lose(object),
            Action::Closed => {
                if member.closed() {
                    self.remove(id);
                }
            }
            Action::Failed { member: by, why } => {
                // What was said of it leaves before its user hears, who may end this process at once.
                self.engine.progress(Duration::ZERO);
                let Some(member) = self.members.get_mut(&id) else { return };
                let is_through = member.failed(by, why);
                self.forget_moves(id);
                if is_through {
                    self.remove(id);
                }
            }
            Action::Reformed { id: new, members } => self.reformed(id, GroupId(new), members),
        }
    }

    fn prepare(&mut self, id: GroupId, object: u64) {
        let disk = self.inbox.next_disk();
        let Some(member) = self.members.get_mut(&id) else { return };
        let event = member.prepare(object, self.engine, disk, self.inbox);
        if member.disk_of(object).is_some() {
            self.disks.insert(disk, (id, object));
        }
        member.machine.handle(event);
    }
}

/// The object of which nothing is done after this.
fn ended(action: &Action<Source>) -> Option<u64> {
    match action {
        Action::Deliver { object } | Action::Everywhere { object } | Action::Lost { object } => {
            Some(*object)
        }
        _ => None,
    }
}
