//! Who dies, what is lost with it, and disks that are slow.

use super::{
    super::Event,
    world::{Group, Happening, NOTICE_MAX, WAY_MAX, World},
};

/// How long a slow disk takes for a block, at most.
const DISK_MAX: u64 = 500;

impl World {
    pub(super) fn choose_disks(&mut self) {
        for process in 0..self.disks.len() {
            let is_slow = self.random.below(1000) < self.story.slow_disks;
            self.disks[process] = is_slow.then_some(0);
        }
    }

    /// Happens when the process's disk has done what it was told before, and this; at once where it has none.
    pub(super) fn after_disk(&mut self, process: usize, happening: Happening) {
        let Some(free_at) = self.disks[process] else {
            self.happen(happening);
            return;
        };
        let done_at = free_at.max(self.now) + self.random.below(DISK_MAX);
        self.disks[process] = Some(done_at);
        self.plan(done_at - self.now, happening);
    }

    pub(super) fn kill(&mut self, process: usize) {
        if !std::mem::replace(&mut self.is_alive[process], false) {
            return;
        }
        self.say(|| format!("process {process} dies"));
        if self.story.loses_words {
            self.lose_words(process);
        }
        for group in 0..self.groups.len() {
            let it = &mut self.groups[group];
            if it.processes.contains(&process) {
                it.is_disturbed = true;
                it.died_at = Some(self.now);
            }
        }
        self.notice_all(|_, watched| watched == process);
    }

    /// The last of what a process has said to each other one never comes.
    fn lose_words(&mut self, process: usize) {
        let random = &mut self.random;
        let comes_until: Vec<u64> = (0..self.is_alive.len())
            .map(|_| self.now + random.below(2) * random.below(WAY_MAX))
            .collect();
        let Self { queue, happenings, groups, .. } = self;
        for (at, number) in queue.iter().map(|it| it.0) {
            let Some(Happening::Machine { group, member, event: Event::Message { from, .. } }) =
                happenings.get(&number)
            else {
                continue;
            };
            let processes = &groups[*group].processes;
            let (source, target) = (processes[*from as usize], processes[*member as usize]);
            if source == process && at > comes_until[target] {
                happenings.remove(&number);
            }
        }
    }

    /// Whether this process ends when it has closed the last of its groups.
    pub(super) fn exits(&mut self, group: usize, member: u32) -> bool {
        let process = self.groups[group].processes[member as usize];
        let is_through = |it: &Group| {
            let place = it.processes.iter().position(|it| *it == process);
            place.is_none_or(|it_is| it.machines[it_is].is_none() || it.ends[it_is] == Some(true))
        };
        self.groups.iter().all(is_through) && self.random.below(1000) < self.story.exits
    }

    /// Those that watch it cannot tell it from a death; what it has said comes.
    pub(super) fn exit(&mut self, group: usize, member: u32) {
        let process = self.groups[group].processes[member as usize];
        self.say(|| format!("process {process} ends"));
        self.is_alive[process] = false;
        self.notice_all(|_, watched| watched == process);
    }

    /// Both live, and each may take it for the other one's end.
    pub(super) fn cut(&mut self, between: [usize; 2]) {
        if between[0] == between[1] {
            return;
        }
        self.say(|| format!("the connection between {between:?} breaks"));
        self.has_cut = true;
        self.to_blame.extend(between);
        for it in &mut self.groups {
            it.is_disturbed |= between.iter().all(|process| it.processes.contains(process));
        }
        let is_cut = |one, other| between.contains(&one) && between.contains(&other);
        let Self { happenings, groups, .. } = self;
        happenings.retain(|_, it| match it {
            Happening::Machine { group, member, event: Event::Message { from, .. } } => {
                let processes = &groups[*group].processes;
                !is_cut(processes[*from as usize], processes[*member as usize])
            }
            _ => true,
        });
        self.notice_all(is_cut);
        self.call_again(is_cut);
    }

    /// What roots have called others by may be lost.
    fn call_again(&mut self, is_over: impl Fn(usize, usize) -> bool) {
        for group in 0..self.groups.len() {
            if self.groups[group].machines[0].is_none() {
                continue; // It has not begun: who is in it is not known.
            }
            for place in 1..self.groups[group].processes.len() {
                let processes = &self.groups[group].processes;
                if is_over(processes[0], processes[place]) {
                    let event = Event::NotCalled { member: u32::try_from(place).unwrap() };
                    let after = self.random.below(NOTICE_MAX);
                    self.plan(after, Happening::Machine { group, member: 0, event });
                }
            }
        }
    }

    /// Watches of these by those end.
    fn notice_all(&mut self, is_over: impl Fn(usize, usize) -> bool) {
        for group in 0..self.groups.len() {
            let it = &mut self.groups[group];
            let processes = &it.processes;
            let ends =
                |it: &mut (u32, u32)| is_over(processes[it.0 as usize], processes[it.1 as usize]);
            let ended: Vec<_> = it.watchers.extract_if(.., ends).collect();
            for (member, watched) in ended {
                self.notice(group, member, watched);
            }
        }
    }

    pub(super) fn notice(&mut self, group: usize, member: u32, dead: u32) {
        let event = Event::Gone { member: dead, why: "its process has ended".to_owned() };
        let after = self.random.below(NOTICE_MAX);
        self.plan(after, Happening::Machine { group, member, event });
    }
}
