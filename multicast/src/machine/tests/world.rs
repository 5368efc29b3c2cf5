//! Processes, their groups, and a network between them, all imitated; and what must hold in every run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    super::{Action, Carried, Config, Event, Header, Machine, Message, OFFERS_MAX},
    story::{Random, Story, content},
};

/// Longest way of a message.
pub(super) const WAY_MAX: u64 = 100;
/// How long after a death a watcher hears of it, at most.
pub(super) const NOTICE_MAX: u64 = 300;
const LATE: u64 = 1_000_000;

#[derive(Debug)]
pub(super) enum Happening {
    Machine {
        group: usize,
        member: u32,
        event: Event<u64>,
    },
    /// A block has come over, or cannot.
    Pulled {
        group: usize,
        member: u32,
        from: u32,
        object: u64,
        block: u64,
        source: u64,
    },
    /// A block is read from the disk, to be offered.
    Loaded {
        group: usize,
        member: u32,
        to: u32,
        object: u64,
        block: u64,
        header: Option<Header>,
    },
    /// The root's user sends, or closes.
    Use {
        group: usize,
    },
    /// A user that was a member there has received so many bytes.
    Received {
        group: usize,
        member: u32,
        bytes: u64,
    },
    /// It has dropped its handle.
    Left {
        group: usize,
        member: u32,
    },
    /// It has nothing left to do.
    Exit {
        group: usize,
        member: u32,
    },
}

/// Groups that follow one another, and what their processes have.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) stores: BTreeMap<(usize, u64), Vec<u64>>,
    pub(super) delivered: BTreeMap<usize, Vec<u64>>,
    pub(super) left: u64,
    pub(super) is_closing: bool,
    pub(super) root_has_changed: bool,
    pub(super) is_deaf: bool,
    /// Bytes that each process has been given, and its user has not received.
    pub(super) unreceived: BTreeMap<usize, u64>,
    /// Those whose users have no handle any more.
    pub(super) left_by: Vec<usize>,
    pub(super) closed_by: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) line: usize,
    pub(super) processes: Vec<usize>,
    /// By number, its bytes; whoever has it whole. Survivors may split, and whoever leads a part begins with the number that others begin with.
    pub(super) sent: BTreeMap<u64, (u64, Vec<usize>)>,
    pub(super) machines: Vec<Option<Machine<u64>>>,
    joined: Vec<bool>,
    /// Whether it has closed, or failed.
    pub(super) ends: Vec<Option<bool>>,
    pub(super) watchers: Vec<(u32, u32)>,
    /// When each member has begun.
    began_at: Vec<u64>,
    /// When the last of its members has died.
    pub(super) died_at: Option<u64>,
    pub(super) is_disturbed: bool,
}

pub(super) struct World {
    pub(super) story: Story,
    pub(super) random: Random,
    pub(super) now: u64,
    count: u64,
    pub(super) queue: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) happenings: BTreeMap<u64, Happening>,
    ways: BTreeMap<(usize, usize), u64>,
    pub(super) is_alive: Vec<bool>,
    /// When the disk of each process has done what it was told; `None`: it has none.
    pub(super) disks: Vec<Option<u64>>,
    still_until: Vec<u64>,
    /// Those that live, and have refused an object, or given a wrong block.
    pub(super) to_blame: Vec<usize>,
    pub(super) has_cut: bool,
    pub(super) lines: Vec<Line>,
    pub(super) groups: Vec<Group>,
    fates: [u64; 5],
    says: bool,
}

impl World {
    pub(super) fn new(story: Story, says: bool) -> Self {
        let (seed, processes) = (story.seed, story.processes);
        let mut world = Self {
            random: Random(seed ^ 0xabcd),
            now: 0,
            count: 0,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            ways: BTreeMap::new(),
            is_alive: vec![true; processes],
            disks: vec![None; processes],
            still_until: vec![0; processes],
            to_blame: vec![],
            has_cut: false,
            lines: vec![],
            groups: vec![],
            fates: [0; 5],
            says,
            story,
        };
        world.choose_disks();
        for (line, members) in world.story.groups.clone().into_iter().enumerate() {
            let is_deaf = line == 0 && world.story.deaf.is_some();
            world.lines.push(Line { left: world.story.objects, is_deaf, ..Line::default() });
            let group = world.form(line, members);
            for member in 0..world.groups[group].processes.len() {
                world.join(group, member, Carried::default());
            }
        }
        world.plan_deaf_close();
        world
    }

    fn form(&mut self, line: usize, processes: Vec<usize>) -> usize {
        let count = processes.len();
        self.groups.push(Group {
            line,
            processes,
            sent: BTreeMap::new(),
            machines: (0..count).map(|_| None).collect(),
            joined: vec![false; count],
            ends: vec![None; count],
            watchers: vec![],
            began_at: vec![0; count],
            died_at: None,
            is_disturbed: false,
        });
        self.groups.len() - 1
    }

    fn join(&mut self, group: usize, place: usize, carried: Carried) {
        let member = u32::try_from(place).unwrap();
        let nodes = self.story.nodes;
        let it = &self.groups[group];
        let config = Config {
            own: member,
            nodes: it.processes.iter().map(|it| u32::try_from(*it).unwrap() % nodes).collect(),
            digest: 7,
            in_flight: self.story.in_flight,
            untaken_max: self.story.untaken_max,
        };
        self.groups[group].machines[place] = Some(Machine::new(config, carried));
        self.groups[group].began_at[place] = self.now;
        let late = if place == 0 { LATE } else { 2 * LATE };
        self.plan(late, Happening::Machine { group, member, event: Event::Late });
        if place == 0 {
            self.later(Happening::Use { group });
        }
        self.act(group, member);
    }

    pub(super) fn plan(&mut self, after: u64, happening: Happening) {
        self.count += 1;
        self.happenings.insert(self.count, happening);
        self.queue.push(Reverse((self.now + after, self.count)));
    }

    pub(super) fn later(&mut self, happening: Happening) {
        let after = self.random.below(WAY_MAX);
        self.plan(after, happening);
    }

    pub(super) fn events_of_run(mut self) -> u64 {
        let mut events = 0;
        while self.step() {
            events += 1;
        }
        events
    }

    /// Groups that closed, failed and were formed again, blocks that needed not come, and events while more than the lane's room was offered.
    pub(super) fn run(mut self) -> [u64; 5] {
        let mut deaths = std::mem::take(&mut self.story.deaths);
        let mut cuts = std::mem::take(&mut self.story.cuts);
        let mut events = 0;
        loop {
            for (_, process) in deaths.extract_if(.., |it| it.0 == events) {
                self.kill(process);
            }
            for (_, between) in cuts.extract_if(.., |it| it.0 == events) {
                self.cut(between);
            }
            if self.random.below(1000) < self.story.stalls {
                let process = self.random.index(self.story.processes);
                let until = self.now + self.random.below(500);
                self.still_until[process] = until.max(self.still_until[process]); // Keeps the order.
            }
            events += 1;
            assert!(events < 1_000_000, "it comes to no end");
            if !self.step() {
                break;
            }
        }
        self.judge();
        self.fates
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((at, number))) = self.queue.pop() else { return false };
        self.now = self.now.max(at);
        let Some(happening) = self.happenings.remove(&number) else { return true };
        let (group, member) = match &happening {
            Happening::Machine { group, member, .. }
            | Happening::Pulled { group, member, .. }
            | Happening::Loaded { group, member, .. }
            | Happening::Received { group, member, .. }
            | Happening::Exit { group, member }
            | Happening::Left { group, member } => (*group, *member),
            Happening::Use { group } => (*group, 0),
        };
        let process = self.groups[group].processes[member as usize];
        if !self.is_alive[process] {
            return true;
        }
        if self.still_until[process] > at {
            self.happenings.insert(number, happening);
            self.queue.push(Reverse((self.still_until[process], number)));
            return true;
        }
        self.happen(happening);
        true
    }

    /// To a process that is alive and goes on.
    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Machine { group, member, event } => self.give(group, member, event),
            Happening::Pulled { group, member, from, object, block, source } => {
                self.pulled((group, member), from, (object, block), source);
            }
            Happening::Loaded { group, member, to, object, block, header } => {
                self.offer((group, member), to, (object, block), header);
            }
            Happening::Use { group } => self.use_root(group),
            Happening::Received { group, member, bytes } => self.received((group, member), bytes),
            Happening::Left { group, member } => self.leave((group, member)),
            Happening::Exit { group, member } => self.exit(group, member),
        }
    }

    pub(super) fn give(&mut self, group: usize, member: u32, event: Event<u64>) {
        if matches!(event, Event::Close) {
            self.close_handle(group, member);
        }
        let Some(machine) = &mut self.groups[group].machines[member as usize] else { return };
        if self.says {
            eprintln!("{}: group {group}, member {member}: {event:?}", self.now);
        }
        machine.handle(event);
        assert!(machine.waiting.len() <= OFFERS_MAX * machine.config.nodes.len());
        self.fates[4] += u64::from(machine.check_room());
        self.act(group, member);
        self.check_memory(group, member);
    }

    fn pulled(
        &mut self,
        (group, member): (usize, u32),
        from: u32,
        (object, block): (u64, u64),
        source: u64,
    ) {
        let it = &self.groups[group];
        let (line, giver) = (it.line, it.processes[from as usize]);
        let is_over = it.machines[from as usize].as_ref().is_none_or(Machine::is_over);
        let event = if !self.is_alive[giver] || is_over {
            Event::Broken { from, why: "its process has ended".to_owned() }
        } else {
            let store =
                self.lines[line].stores.get(&(giver, object)).expect("what was offered is kept");
            let content = store[usize::try_from(block).unwrap()];
            assert_eq!(content, source, "what was offered is there");
            if self.random.below(1000) < self.story.wrongs {
                self.groups[group].is_disturbed = true;
                self.to_blame.push(giver);
                self.give(group, member, Event::Wrong { from, why: "a wrong sum".to_owned() });
                return;
            }
            let own = self.groups[group].processes[member as usize];
            let place = self.lines[line].stores.get_mut(&(own, object));
            // The machine may have failed meanwhile.
            if let Some(place) = place.map(|it| &mut it[usize::try_from(block).unwrap()]) {
                *place = content;
            }
            let written = Event::Arrived { object, block };
            self.after_disk(own, Happening::Machine { group, member, event: written });
            return;
        };
        self.give(group, member, event);
    }

    pub(super) fn act(&mut self, group: usize, member: u32) {
        loop {
            let machine = self.groups[group].machines[member as usize].as_mut();
            let Some(action) = machine.and_then(Machine::poll_action) else { return };
            if self.says {
                eprintln!("{}: group {group}, member {member}: -> {action:?}", self.now);
            }
            self.perform(group, member, action);
        }
    }

    fn perform(&mut self, group: usize, member: u32, action: Action<u64>) {
        let line = self.groups[group].line;
        let process = self.groups[group].processes[member as usize];
        let own = |event| Happening::Machine { group, member, event };
        match action {
            Action::Tell { to, message } => self.tell(group, member, to, message),
            Action::Watch { member: watched } => {
                self.groups[group].watchers.push((member, watched));
                let target = self.groups[group].processes[watched as usize];
                if self.lines[line].left_by.contains(&target) {
                    let why = "it is not in the group".to_owned();
                    self.later(own(Event::Unknown { member: watched, why }));
                } else if self.groups[group].ends[watched as usize] == Some(true)
                    && self.random.below(2) == 0
                {
                    let why = "it has no handle of the group any more".to_owned();
                    self.later(own(Event::Unknown { member: watched, why }));
                } else if !self.is_alive[target] {
                    self.notice(group, member, watched);
                }
            }
            Action::Offer { to, object, block, header } => {
                let loaded = Happening::Loaded { group, member, to, object, block, header };
                self.after_disk(process, loaded);
            }
            Action::Prepare { object } => self.prepare(group, member, object),
            Action::Pull { from, object, block, source } => {
                let store = &self.lines[line].stores[&(process, object)];
                assert_eq!(store[usize::try_from(block).unwrap()], 0, "no block comes twice");
                let after = self.random.below(WAY_MAX);
                if self.random.below(2) == 0 {
                    let before = self.random.below(after + 1);
                    self.plan(before, own(Event::Nearly { object, block }));
                }
                self.plan(after, Happening::Pulled { group, member, from, object, block, source });
            }
            Action::Finish { object } => self.later(own(Event::Finished { object })),
            Action::Joined => self.groups[group].joined[member as usize] = true,
            Action::Deliver { object } => self.deliver(group, member, object),
            Action::Everywhere { object } => {
                let (_, whole) = &self.groups[group].sent[&object];
                let all = self.groups[group].processes.iter().all(|it| whole.contains(it));
                assert!(all, "object {object} is said to be everywhere");
                self.lines[line].stores.remove(&(process, object));
            }
            Action::Lost { object } => drop(self.lines[line].stores.remove(&(process, object))),
            Action::Closed => self.end(group, member, true),
            Action::Failed { member: blamed, why } => {
                let blamed = self.groups[group].processes[blamed as usize];
                let is_late = self.groups[group].is_disturbed && why.contains("in time");
                let is_right = !self.is_alive[blamed] || self.to_blame.contains(&blamed) || is_late;
                assert!(is_right, "{blamed} is blamed: {why}");
                self.end(group, member, false);
            }
            Action::Reformed { id, members } => self.reformed(group, member, id, &members),
        }
        self.note_whole(group, member);
    }

    /// Says that a block is here, unless nobody wants to know it any more.
    fn offer(
        &mut self,
        (group, member): (usize, u32),
        to: u32,
        (object, block): (u64, u64),
        header: Option<Header>,
    ) {
        let it = &self.groups[group];
        let (line, process) = (it.line, it.processes[member as usize]);
        if it.machines[member as usize].as_ref().is_none_or(Machine::is_over) {
            return;
        }
        let Some(store) = self.lines[line].stores.get(&(process, object)) else { return };
        let source = store[usize::try_from(block).unwrap()];
        assert_eq!(source, content(line, object, block), "it is here before it is offered");
        let message = Message::Offer { object, block, header, source };
        self.tell(group, member, to, message);
    }

    /// What is whole here now.
    pub(super) fn note_whole(&mut self, group: usize, member: u32) {
        let it = &mut self.groups[group];
        let process = it.processes[member as usize];
        let Some(machine) = &it.machines[member as usize] else { return };
        let upto = if member == 0 { 0 } else { machine.whole };
        for (number, (_, whole)) in it.sent.range_mut(..upto) {
            let store = self.lines[it.line].stores.get(&(process, *number));
            if !whole.contains(&process) && store.is_some_and(|it| !it.contains(&0)) {
                whole.push(process);
            }
        }
    }

    fn tell(&mut self, group: usize, from: u32, to: u32, message: Message<u64>) {
        let [source, target] = [from, to].map(|it| self.groups[group].processes[it as usize]);
        let after = self.now + self.random.below(WAY_MAX);
        let arrival = self.ways.entry((source, target)).or_default();
        *arrival = after.max(*arrival);
        let after = *arrival - self.now;
        self.plan(
            after,
            Happening::Machine { group, member: to, event: Event::Message { from, message } },
        );
    }

    fn prepare(&mut self, group: usize, member: u32, object: u64) {
        let it = &self.groups[group];
        let (line, process) = (it.line, it.processes[member as usize]);
        let header = it.machines[member as usize].as_ref().unwrap().header(object).unwrap();
        let (blocks, size) = (header.blocks(), header.size);
        let store = self.lines[line]
            .stores
            .insert((process, object), vec![0; usize::try_from(blocks).unwrap()]);
        assert!(store.is_none(), "each object is asked about once");
        let event = if self.random.below(1000) < self.story.refusals {
            self.groups[group].is_disturbed = true;
            self.to_blame.push(process);
            Event::Refused { object, why: "no room".to_owned() }
        } else {
            Event::Ready { object, bytes: size }
        };
        self.later(Happening::Machine { group, member, event });
    }

    fn end(&mut self, group: usize, member: u32, is_closed: bool) {
        let it = &mut self.groups[group];
        let end = &mut it.ends[member as usize];
        assert!(end.is_none(), "it ends once");
        *end = Some(is_closed);
        let line = &self.lines[it.line];
        if is_closed {
            assert!(line.is_closing, "nobody closes before the root does");
            for (number, (_, whole)) in &it.sent {
                let all = it.processes.iter().all(|it| whole.contains(it));
                assert!(
                    all || line.root_has_changed,
                    "closed, and object {number} is not everywhere"
                );
            }
        } else if let Some(died_at) = it.died_at {
            // The root watches whoever has joined, and all watch the root from the first.
            let is_watched = it.joined.iter().all(|it| *it) || !self.is_alive[it.processes[0]];
            let since = died_at.max(it.began_at[member as usize]);
            let bound = NOTICE_MAX + 2 * WAY_MAX;
            let is_in_time = self.now <= since + bound;
            let is_bound = is_watched && self.story.stalls == 0 && !self.has_cut;
            assert!(!is_bound || is_in_time, "it is known in time");
        }
        if is_closed && self.exits(group, member) {
            self.later(Happening::Exit { group, member });
        }
        if !is_closed && self.story.reforms {
            // Whoever leads has an id of its own.
            let processes = self.groups[group].processes.clone();
            let successor = self.form(self.groups[group].line, processes);
            let event = Event::Reform { id: [successor as u64, 0] };
            // The user of whoever leads may hear of more deaths before it calls.
            self.plan(NOTICE_MAX * 2, Happening::Machine { group, member, event });
        }
    }

    fn reformed(&mut self, group: usize, member: u32, id: [u64; 2], members: &[u32]) {
        let (process, line) =
            (self.groups[group].processes[member as usize], self.groups[group].line);
        let successor = usize::try_from(id[0]).unwrap();
        let processes: Vec<_> =
            members.iter().map(|it| self.groups[group].processes[*it as usize]).collect();
        if members[0] == member {
            // A member that has closed does not go on: it has everything. Nor does one that was not there, or has heard of another leader.
            let it = &self.groups[group];
            let dead = it.processes.iter().filter(|it| !self.is_alive[**it]).count();
            // Who was blamed, and has not heard it from one that died, leads others than the rest. If it has left, who is dead may have led.
            let is_blamed = it.processes.iter().any(|it| self.to_blame.contains(it));
            let is_torn = self.has_cut
                || it.ends.contains(&Some(true))
                || it.joined.contains(&false)
                || dead > usize::from(!is_blamed)
                || processes.iter().any(|it| self.lines[line].left_by.contains(it));
            let it = &mut self.groups[successor];
            it.processes.clone_from(&processes);
            it.died_at = None;
            it.machines.truncate(processes.len());
            it.joined.truncate(processes.len());
            it.ends.truncate(processes.len());
            it.began_at.truncate(processes.len());
            it.is_disturbed = processes.iter().any(|it| !self.is_alive[*it]) || is_torn;
            self.lines[line].root_has_changed |= member != 0;
            self.fates[2] += 1;
        }
        if processes.len() < 2 {
            return;
        }
        self.inherit(successor, group, process);
        let old = self.groups[group].machines[member as usize].take().unwrap();
        let place = processes.iter().position(|it| *it == process).unwrap();
        let carried = old.carry();
        self.fates[3] += carried
            .objects
            .values()
            .filter(|_| member != 0)
            .map(|it| it.come.len() as u64)
            .sum::<u64>();
        // Pulls that were under way are over, whatever they had brought: what counts as here is what the machine says.
        for (number, object) in &carried.objects {
            if !object.is_ready {
                self.lines[line].stores.remove(&(process, *number)); // The user had not answered.
            }
            if let Some(store) = self.lines[line].stores.get_mut(&(process, *number)) {
                (0..).zip(store).for_each(|(block, it)| {
                    if !object.held.has(block) {
                        *it = 0
                    }
                });
            }
        }
        self.join(successor, place, carried);
    }

    fn judge(&mut self) {
        for (number, it) in self.groups.iter().enumerate() {
            let line = &self.lines[it.line];
            for (place, process) in
                it.processes.iter().enumerate().filter(|it| self.is_alive[*it.1])
            {
                let Some(machine) = &it.machines[place] else { continue };
                let is_held_up = line.is_deaf && !it.is_disturbed;
                assert!(
                    machine.is_over() || is_held_up,
                    "group {number}: member {place} waits for ever"
                );
                match it.ends[place] {
                    Some(true) => self.fates[0] += 1,
                    Some(false) => self.fates[1] += 1,
                    None => {}
                }
                if !it.is_disturbed && !is_held_up {
                    assert_eq!(
                        it.ends[place],
                        Some(true),
                        "group {number}: nothing happened to it"
                    );
                    let delivered = line.delivered.get(process).map_or(0, Vec::len);
                    assert!(
                        place == 0 || line.root_has_changed || delivered == it.sent.len(),
                        "all is delivered"
                    );
                }
            }
        }
    }

    pub(super) fn say(&self, what: impl Fn() -> String) {
        if self.says {
            eprintln!("{}: {}", self.now, what());
        }
    }
}
