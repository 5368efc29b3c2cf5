//! Puts and gets beside messages to the same peer that never end.

use std::{sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context, Domain, Memory, Message, Op, OpenOptions, Peer, Plugin as _,
    Region, Rights,
};
use hg_visor::VisorPlugin;
use watchdog::{Watchdog, until};

use crate::common::Daemon;

/// Bytes of the put and of the get; of messages meanwhile, at most twice as many are sent, and a few windows.
const LEN: usize = 1 << 20;
const FLOOD_MAX: usize = 8 * LEN;
const MESSAGE: usize = 1024;
const FLOOD: u64 = 1;
const TRANSFER: u64 = 2;

/// One endpoint with memory that its peer may use.
struct Side {
    domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
    peer: Option<Peer>,
    flooded: usize,
    transfers: usize,
}

impl Side {
    fn new(daemon: &Daemon) -> Self {
        let plugin = VisorPlugin::through(&daemon.name);
        let url = Address::new("visor://").unwrap();
        let domain = plugin.open(&url, &OpenOptions::listening()).unwrap();
        let context = domain.context(0).unwrap();
        Self { domain, context, peer: None, flooded: 0, transfers: 0 }
    }

    fn memory(&self) -> Region {
        self.domain.register(Memory::from(vec![7; LEN]), Rights::all()).unwrap()
    }

    fn progress(&mut self) {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).unwrap();
        for completion in done {
            match completion {
                Completion::Control { from, .. } => self.peer = Some(from),
                Completion::Done(done) => {
                    done.result.unwrap();
                    self.flooded += usize::from(done.token == FLOOD) * MESSAGE;
                    self.transfers += usize::from(done.token == TRANSFER);
                }
                _ => {}
            }
        }
    }

    /// Posts messages until no more are taken.
    fn flood(&mut self) {
        let to = self.peer.unwrap();
        loop {
            let message = Message::from(vec![1; MESSAGE]);
            if self.context.post(FLOOD, Op::SendControl { to, message }).is_err() {
                return;
            }
        }
    }
}

#[test]
fn transfers_have_their_share_beside_messages_that_never_end() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let (mut origin, mut target) = (Side::new(&daemon), Side::new(&daemon));
    let to = origin.context.lookup(target.context.address()).unwrap();
    origin.peer = Some(to);
    origin.context.post(0, Op::SendControl { to, message: Message::copied(b"hello") }).unwrap();
    until("they know each other", || {
        origin.progress();
        target.progress();
        target.peer.is_some()
    });
    let (near, far) = (origin.memory(), target.memory());
    for is_put in [true, false] {
        let local = near.slice(0, LEN as u64).unwrap();
        let remote = far.descriptor().slice(0, LEN as u64).unwrap();
        let op = match is_put {
            true => Op::Put { to, local, remote },
            false => Op::Get { from: to, local, remote },
        };
        // Whoever sends the transfer's bytes sends messages, too.
        let flood = |origin: &mut Side, target: &mut Side| {
            if is_put { origin.flood() } else { target.flood() }
        };
        flood(&mut origin, &mut target);
        let before = origin.transfers;
        (origin.flooded, target.flooded) = (0, 0);
        origin.context.post(TRANSFER, op).unwrap();
        until("the transfer has ended", || {
            origin.progress();
            target.progress();
            flood(&mut origin, &mut target);
            let flooded = origin.flooded + target.flooded;
            assert!(flooded < FLOOD_MAX, "put: {is_put}: {flooded} bytes of messages went before");
            origin.transfers > before
        });
    }
}
