//! Who dies, what is lost with it, and disks that are slow.

use super::{
    super::Event,
    world::{Happening, NOTICE_MAX, WAY_MAX, World},
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
            let Some(place) = it.processes.iter().position(|it| *it == process) else { continue };
            it.is_disturbed = true;
            it.died_at = Some(self.now);
            let dead = u32::try_from(place).unwrap();
            let watchers: Vec<_> = it.watchers.iter().copied().filter(|it| it.1 == dead).collect();
            for (member, _) in watchers {
                self.notice(group, member, dead);
            }
        }
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

    pub(super) fn notice(&mut self, group: usize, member: u32, dead: u32) {
        let event = Event::Gone { member: dead, why: "its process has ended".to_owned() };
        let after = self.random.below(NOTICE_MAX);
        self.plan(after, Happening::Machine { group, member, event });
    }
}
