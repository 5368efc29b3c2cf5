//! Members of groups, each with an engine of its own in this process.

use hg::Address;
use hg_multicast::{Destination, Group, GroupId, Multicast, Options, Received, schedule::Choice};

pub(crate) const URLS: [&str; 2] = ["sm://", "tcp://127.0.0.1"];

/// Plain sockets: what a route would take shared memory for stays on them.
fn open(url: &str) -> Multicast {
    let builder = hg::builder();
    let builder = if url.starts_with("tcp") { builder.setting("routing", "off") } else { builder };
    Multicast::open(builder, url).unwrap()
}

pub(crate) struct Members {
    pub(crate) processes: Vec<Multicast>,
    pub(crate) addresses: Vec<Address>,
}

impl Members {
    pub(crate) fn open(url: &str, count: usize) -> Self {
        let processes: Vec<_> = (0..count).map(|_| open(url)).collect();
        let addresses = processes.iter().map(|it| it.address().clone()).collect();
        Self { processes, addresses }
    }

    /// The same, of which another one is the root.
    pub(crate) fn rotated(&self, turn: usize) -> Self {
        let (mut processes, mut addresses) = (self.processes.clone(), self.addresses.clone());
        processes.rotate_left(turn);
        addresses.rotate_left(turn);
        Self { processes, addresses }
    }

    /// Its process ends, and another one begins at its address.
    pub(crate) fn open_last_again(&mut self) {
        self.processes.pop().unwrap().close();
        self.processes.push(open(self.addresses.last().unwrap().as_str()));
    }

    pub(crate) fn group(&self, options: &Options) -> Vec<Group> {
        self.group_with(options, |_| |_: hg_multicast::Incoming<'_>| Ok(Destination::Allocate))
    }

    pub(crate) fn group_with<F>(
        &self,
        options: &Options,
        incoming: impl Fn(usize) -> F,
    ) -> Vec<Group>
    where
        F: FnMut(hg_multicast::Incoming<'_>) -> Result<Destination, String> + Send + 'static,
    {
        let id = GroupId::random().unwrap();
        let join = |(own, it): (usize, &Multicast)| {
            let (member, options) = (u32::try_from(own).unwrap(), options.clone());
            it.group(id, &self.addresses, member, options, incoming(own)).unwrap()
        };
        self.processes.iter().enumerate().map(join).collect()
    }
}

pub(crate) fn options(schedule: Choice, block_size: u64) -> Options {
    let mut options = Options::default();
    (options.schedule, options.block_size) = (schedule, Some(block_size));
    options
}

pub(crate) fn bytes(seed: usize, size: usize) -> Vec<u8> {
    (0..size).map(|it| u8::try_from((it * 31 + it / 251 + seed * 7) % 256).unwrap()).collect()
}

pub(crate) fn take(group: &Group) -> Received {
    group.receive().wait().unwrap().expect("the group is not closed")
}

pub(crate) fn close(groups: Vec<Group>) {
    let closing: Vec<_> = groups.into_iter().map(Group::close).collect();
    closing.into_iter().for_each(|it| it.wait().unwrap());
}
