//! One side of a connection under load: what it has posted, and what has ended.

use std::{env, time::Instant};

use hg_na::{
    Address, Completion, Descriptor, Memory, Message, Op, OpenOptions, Peer, Plugin as _, Region,
    Rights,
};
use hg_na_verbs::VerbsPlugin;

use super::{DEVICES, ports::End};

/// Longer than what is sent: the card moves it.
const LEN: u64 = 100_000;
/// Operations of each kind that one side has under way with a peer.
const DEPTH: u64 = 4;
/// Peers of one side that are told apart.
const PEERS: usize = 2;

/// Operations with one peer.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) posted: u64,
    pub(super) ended: u64,
    /// Of those, the ones that have failed.
    pub(super) failed: u64,
}

impl Count {
    pub(super) fn is_over(self) -> bool {
        self.posted == self.ended
    }
}

/// One side: it keeps operations under way with peers whose memory it was told of.
pub(super) struct Side {
    pub(super) end: End,
    region: Region,
    pub(super) counts: [Count; PEERS],
}

impl Side {
    /// On the card of this place.
    pub(super) fn open(card: usize) -> Self {
        let devices = env::var(DEVICES).unwrap();
        let device = devices.split(',').nth(card).unwrap();
        let url = Address::new(&format!("verbs://{device}")).unwrap();
        let domain = VerbsPlugin::default().open(&url, &OpenOptions::listening()).unwrap();
        let context = domain.context(0).unwrap();
        let memory = Memory::from(vec![7; usize::try_from(LEN).unwrap()]);
        let region = domain.register(memory, Rights::all()).unwrap();
        Self { end: (domain, context), region, counts: Default::default() }
    }

    pub(super) fn lookup(&mut self, address: &Address) -> Peer {
        self.end.1.lookup(address).unwrap()
    }

    pub(super) fn step(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.end.1.progress(Instant::now(), &mut done).unwrap();
        for it in &done {
            let Completion::Done(done) = it else { continue };
            let count = &mut self.counts[usize::try_from(done.token).unwrap()];
            count.ended += 1;
            count.failed += u64::from(done.result.is_err());
        }
        done
    }

    fn post(&mut self, who: usize, op: Op) {
        // One that is refused is posted no more.
        if self.end.1.post(who as u64, op).is_ok() {
            self.counts[who].posted += 1;
        }
    }

    /// Tells a peer of this side's memory.
    pub(super) fn tell(&mut self, who: usize, to: Peer) {
        let message = Message::copied(&self.region.descriptor().encode());
        self.post(who, Op::SendUnexpected { to, message });
    }

    /// As many as are to be under way.
    pub(super) fn fill(&mut self, who: usize, with: Peer, far: &Descriptor) {
        while self.counts[who].posted - self.counts[who].ended < 3 * DEPTH {
            let before = self.counts[who].posted;
            let (local, remote) =
                (|| self.region.slice(0, LEN).unwrap(), || far.slice(0, LEN).unwrap());
            let (get, put) = (
                Op::Get { from: with, local: local(), remote: remote() },
                Op::Put { to: with, local: local(), remote: remote() },
            );
            self.post(who, get);
            self.post(who, put);
            self.tell(who, with);
            if self.counts[who].posted == before {
                return;
            }
        }
    }
}

/// The descriptor in a message, and who it is from.
pub(super) fn told(done: &[Completion]) -> Option<(Peer, Descriptor)> {
    done.iter().find_map(|it| match it {
        Completion::Unexpected { from, message, .. } => {
            Some((*from, Descriptor::decode(message.as_slice()).unwrap()))
        }
        _ => None,
    })
}
