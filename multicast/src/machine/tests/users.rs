//! Users: roots send and close; receivers receive late, through groups that follow one another, or never, and leave or close meanwhile.

use super::{
    super::Event,
    story::content,
    world::{Happening, WAY_MAX, World},
};

impl World {
    /// The root's user.
    pub(super) fn use_root(&mut self, group: usize) {
        let line = self.groups[group].line;
        let process = self.groups[group].processes[0];
        let Some(machine) = &mut self.groups[group].machines[0] else { return };
        if machine.is_over() {
            return;
        }
        if self.lines[line].left == 0 {
            self.lines[line].is_closing = true;
            self.give(group, 0, Event::Close);
            return;
        }
        self.lines[line].left -= 1;
        let block_size = if self.random.below(3) == 0 { 1000 } else { 65_536 };
        let blocks = 1 + self.random.below(self.story.blocks_max);
        let size = block_size * blocks - self.random.below(block_size);
        let is_in_memory = self.disks[process].is_none();
        let choice = self.story.choice;
        let number = machine.send(choice, (size, block_size), is_in_memory, vec![1]);
        let content = (0..blocks).map(|block| content(line, number, block)).collect();
        self.lines[line].stores.insert((process, number), content);
        self.groups[group].sent.insert(number, (size, vec![process]));
        self.later(Happening::Use { group });
        self.act(group, 0);
    }

    pub(super) fn deliver(&mut self, group: usize, member: u32, object: u64) {
        self.note_whole(group, member);
        let line = self.groups[group].line;
        let process = self.groups[group].processes[member as usize];
        let store = self.lines[line].stores.remove(&(process, object)).expect("it is here");
        let right: Vec<_> = (0..store.len() as u64).map(|it| content(line, object, it)).collect();
        assert_eq!(store, right, "it is whole");
        let has_changed = self.lines[line].root_has_changed;
        let delivered = self.lines[line].delivered.entry(process).or_default();
        let next = delivered.last().map_or(0, |it| it + 1);
        assert!(object == next || (has_changed && object > next), "{object} after {next}");
        delivered.push(object);
        let bytes = self.groups[group].sent[&object].0;
        self.delivered((group, member), bytes);
    }

    /// What a process that goes on there knows of what was sent before.
    pub(super) fn inherit(&mut self, successor: usize, group: usize, process: usize) {
        for (number, (bytes, whole)) in self.groups[group].sent.clone() {
            let (_, known) = self.groups[successor].sent.entry(number).or_insert((bytes, vec![]));
            known.extend(whole.into_iter().filter(|it| *it == process));
        }
    }

    /// The user of this member will receive it; or will not.
    fn delivered(&mut self, (group, member): (usize, u32), bytes: u64) {
        let it = &self.groups[group];
        let (line, process) = (it.line, it.processes[member as usize]);
        if self.lines[line].closed_by.contains(&process) {
            return;
        }
        *self.lines[line].unreceived.entry(process).or_default() += bytes;
        if self.story.deaf == Some(process) && line == 0 {
            return;
        }
        // Some take so long that the group has failed, and another one follows.
        let is_late = self.random.below(4) == 0;
        let after = self.random.below(if is_late { 10 * WAY_MAX } else { WAY_MAX });
        self.plan(after, Happening::Received { group, member, bytes });
        if self.random.below(1000) < self.story.leaves {
            self.plan(after, Happening::Left { group, member });
        }
    }

    pub(super) fn received(&mut self, of: (usize, u32), bytes: u64) {
        let it = &self.groups[of.0];
        let (line, process) = (it.line, it.processes[of.1 as usize]);
        if self.lines[line].closed_by.contains(&process) {
            return;
        }
        if let Some((group, member)) = self.now(of) {
            let unreceived = self.lines[line].unreceived.get_mut(&process);
            *unreceived.expect("it was delivered") -= bytes;
            self.give(group, member, Event::Received { bytes });
        }
    }

    /// What was delivered there can be received no more.
    pub(super) fn close_handle(&mut self, group: usize, member: u32) {
        let it = &self.groups[group];
        let (line, process) = (it.line, it.processes[member as usize]);
        if it.machines[member as usize].as_ref().is_some_and(|it| !it.is_over()) {
            self.lines[line].closed_by.push(process);
            self.lines[line].unreceived.remove(&process);
        }
    }

    pub(super) fn leave(&mut self, of: (usize, u32)) {
        let Some((group, member)) = self.now(of) else { return };
        let it = &self.groups[group];
        let (line, process) = (it.line, it.processes[member as usize]);
        // The next one too, if whoever leads has formed it with this one.
        let of_line = self.groups.iter_mut().filter(|it| it.line == line);
        of_line.for_each(|it| it.is_disturbed |= it.processes.contains(&process));
        self.to_blame.push(process);
        self.give(group, member, Event::Own { why: "it has left the group".to_owned() });
        self.groups[group].machines[member as usize] = None;
        self.lines[line].left_by.push(process);
    }

    /// The member that this one has become by reforms.
    fn now(&self, (group, member): (usize, u32)) -> Option<(usize, u32)> {
        let (line, process) =
            (self.groups[group].line, self.groups[group].processes[member as usize]);
        let place = |of: usize| {
            let it = &self.groups[of];
            let place = it.processes.iter().position(|it| *it == process)?;
            let is_it = it.line == line && it.machines[place].is_some();
            is_it.then(|| (of, u32::try_from(place).unwrap()))
        };
        (0..self.groups.len()).find_map(place)
    }

    /// The deaf one's user closes, if it is a receiver.
    pub(super) fn plan_deaf_close(&mut self) {
        let Some(deaf) = self.story.deaf.filter(|_| self.story.deaf_closes) else { return };
        let place = self.groups[0].processes.iter().position(|it| *it == deaf);
        if let Some(member) = place.and_then(|it| u32::try_from(it).ok()).filter(|it| *it != 0) {
            let after = self.random.below(20 * WAY_MAX);
            self.lines[0].is_deaf = false;
            self.plan(after, Happening::Machine { group: 0, member, event: Event::Close });
        }
    }

    /// What is here and nobody has received is what the machine counts, and no more than is allowed, and one object.
    pub(super) fn check_memory(&self, group: usize, member: u32) {
        let it = &self.groups[group];
        let Some(machine) = &it.machines[member as usize] else { return };
        let unreceived = self.lines[it.line].unreceived.get(&it.processes[member as usize]);
        let begun: u64 = machine.objects.values().map(|it| it.bytes).sum();
        assert_eq!(machine.untaken, begun + unreceived.copied().unwrap_or(0), "all is counted");
        assert!(machine.untaken <= self.story.untaken_max + LARGEST, "memory is bounded");
    }
}

/// Bytes that an object counts at most.
const LARGEST: u64 = 12 * 65_536 + 1000;
