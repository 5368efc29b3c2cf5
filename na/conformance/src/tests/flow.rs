//! Sentences 4 and 5: credits bound memory, and answers never wait behind requests.

use std::collections::VecDeque;

use hg_na::{Error, Message, Op, Peer};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    suite::Suite,
    world::{A, B, World, pattern},
};

/// Messages beyond `queue_depth` that may be on their way to a peer that takes none.
const CREDITS_MAX: usize = 65_536;
/// Bytes that may be on their way to a peer that takes none, beyond a full queue.
const CREDIT_BYTES_MAX: usize = 256 << 20;
/// Refusals in a row, with progress in between that finds nothing, that count as full.
const FULL_AFTER: usize = 50;
/// Requests of each side when two contexts flood each other.
const FLOOD: u64 = 2000;

/// Posts until the queue is full although this node makes progress; answers how many were taken.
fn fill(node: &mut Node, len: usize, mut op: impl FnMut(u64, Message) -> Op) -> Outcome<u64> {
    let depth = node.caps().queue_depth;
    let most = (depth + CREDITS_MAX).min(depth + 64 + CREDIT_BYTES_MAX / len.max(1)) as u64;
    let (mut accepted, mut refusals) = (0, 0);
    while refusals < FULL_AFTER {
        let mut bytes = pattern(len, accepted);
        bytes[..8].copy_from_slice(&accepted.to_le_bytes());
        match node.post(op(accepted, Message::copied(&bytes)))? {
            Ok(_) => {
                (accepted, refusals) = (accepted + 1, 0);
                ensure!(accepted <= most, "{accepted} messages wait for a peer that takes none");
            }
            Err(rejected) if matches!(rejected.error, Error::Again) => {
                refusals = if node.progress()? { 0 } else { refusals + 1 };
            }
            Err(rejected) => fail!("a full queue refuses with {:?}", rejected.error),
        }
    }
    Ok(accepted)
}

pub(crate) fn a_flood_of_a_sleeping_target_ends_in_again_and_loses_nothing(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, _) = world.connect(A, B)?;
    let max = world.nodes[A].caps().max_unexpected;
    for len in [8, 200.min(max), max] {
        let request = |_, message| Op::SendUnexpected { to: to_b, message };
        let accepted = fill(&mut world.nodes[A], len, request)?;
        ensure!(accepted > 0, "no message of {len} bytes was accepted");
        for number in 0..accepted {
            let (_, message) = world.arrival(B)?;
            let mut wanted = pattern(len, number);
            wanted[..8].copy_from_slice(&number.to_le_bytes());
            ensure!(message.as_slice() == wanted, "message {number} of {accepted} came changed");
        }
        world.until("all sends completed", |nodes| Ok(nodes[A].pending() == 0))?;
        let failed = world.nodes[A].done.drain(..).find(|done| done.result.is_err());
        ensure!(failed.is_none(), "a send that arrived ended in {failed:?}");
    }
    world.connect(A, B)?;
    world.end()
}

/// One side of two that flood each other: requests out, answers to the other's requests.
struct Flooder {
    place: usize,
    peer: Peer,
    posted: u64,
    /// Answers that were refused with `Again`.
    owed: VecDeque<(Peer, u64)>,
}

impl Flooder {
    fn new(place: usize, peer: Peer) -> Self {
        Self { place, peer, posted: 0, owed: VecDeque::new() }
    }

    fn step(&mut self, node: &mut Node) -> Outcome {
        while self.posted < FLOOD {
            let message = Message::copied(&self.posted.to_le_bytes());
            match node.post(Op::SendUnexpected { to: self.peer, message })? {
                Ok(_) => {}
                Err(rejected) if matches!(rejected.error, Error::Again) => break,
                Err(rejected) => fail!("a flood was refused with {:?}", rejected.error),
            }
            loop {
                let receive = Op::RecvExpected { from: self.peer, tag: self.posted };
                match node.post(receive)? {
                    Ok(_) => break,
                    Err(rejected) if matches!(rejected.error, Error::Again) => node.progress()?,
                    Err(rejected) => fail!("a receive was refused with {:?}", rejected.error),
                };
            }
            self.posted += 1;
        }
        for (from, message) in node.unexpected.drain(..) {
            let number = message.as_slice().try_into().map_err(|_| "a request was cut short")?;
            self.owed.push_back((from, u64::from_le_bytes(number)));
        }
        while let Some((to, tag)) = self.owed.front().copied() {
            let message = Message::copied(&tag.to_le_bytes());
            match node.post(Op::SendExpected { to, tag, message })? {
                Ok(_) => drop(self.owed.pop_front()),
                Err(rejected) if matches!(rejected.error, Error::Again) => break,
                Err(rejected) => fail!("an answer was refused with {:?}", rejected.error),
            }
        }
        for done in node.done.drain(..) {
            ensure!(done.result.is_ok(), "in a flood, {done:?}");
        }
        Ok(())
    }

    fn finished(&self, node: &Node) -> bool {
        self.posted == FLOOD && self.owed.is_empty() && node.pending() == 0
    }
}

pub(crate) fn two_contexts_that_flood_each_other_both_finish(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let mut sides = [Flooder::new(A, to_b), Flooder::new(B, to_a)];
    world.until("two floods came to their ends", |nodes| {
        for side in &mut sides {
            side.step(&mut nodes[side.place])?;
        }
        Ok(sides.iter().all(|side| side.finished(&nodes[side.place])))
    })?;
    world.end()
}

pub(crate) fn answers_and_control_messages_pass_closed_admission(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let peers = [(A, to_b), (B, to_a)];
    let mut accepted = [0; 2];
    for (place, _) in peers {
        world.nodes[place].context.set_admission(false);
    }
    for (place, peer) in peers {
        let request = |_, message| Op::SendUnexpected { to: peer, message };
        accepted[place] = fill(&mut world.nodes[place], 8, request)?;
    }
    for round in 0..200u64 {
        for (place, peer) in peers {
            let (other, back) = peers[1 - place];
            let (receive, _) = world.receive(other, back, round)?;
            world.answer(place, peer, round, &round.to_le_bytes())?;
            world.received(other, receive, &round.to_le_bytes())?;
            let message = Message::copied(&round.to_le_bytes());
            world.post(place, Op::SendControl { to: peer, message })?;
            world.until("a control message passed closed admission", |nodes| {
                Ok(nodes[other].control.pop_front().is_some())
            })?;
        }
    }
    for node in &world.nodes {
        let taken = node.unexpected.len();
        ensure!(taken == 0, "{taken} unexpected messages were taken while admission is closed");
    }
    for (place, _) in peers {
        world.nodes[place].context.set_admission(true);
    }
    for (place, _) in peers {
        for number in 0..accepted[1 - place] {
            let (_, message) = world.arrival(place)?;
            let right = message.as_slice() == number.to_le_bytes();
            ensure!(right, "request {number} was lost while admission was closed");
        }
    }
    world.end()
}

pub(crate) fn answers_and_control_messages_do_not_wait_for_a_target_out_of_credits(
    suite: &Suite,
) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    let request = |_, message| Op::SendUnexpected { to: to_b, message };
    let accepted = fill(&mut world.nodes[A], 8, request)?;
    world.nodes[B].context.set_admission(false);
    let answer = Op::SendExpected { to: to_b, tag: 1, message: Message::copied(b"answer") };
    let control = Op::SendControl { to: to_b, message: Message::copied(b"control") };
    let (receive, _) = world.receive(B, to_a, 1)?;
    for op in [answer, control] {
        world.succeed(A, op)?;
    }
    world.received(B, receive, b"answer")?;
    world
        .until("the control message arrived", |nodes| Ok(nodes[B].control.pop_front().is_some()))?;
    world.nodes[B].context.set_admission(true);
    for _ in 0..accepted {
        world.arrival(B)?;
    }
    world.end()
}

pub(crate) fn closed_admission_stops_unexpected_messages_until_it_opens(suite: &Suite) -> Outcome {
    let mut world = World::new(suite, 2)?;
    let (to_b, to_a) = world.connect(A, B)?;
    world.nodes[B].context.set_admission(false);
    world.send(A, to_b, b"waits")?;
    // Answers pass: when this one is here, the target had every chance to take the request.
    for round in 0..10 {
        let (receive, _) = world.receive(B, to_a, round)?;
        world.answer(A, to_b, round, b"passes")?;
        world.received(B, receive, b"passes")?;
    }
    let early = world.nodes[B].unexpected.len();
    ensure!(early == 0, "{early} unexpected messages were taken while admission is closed");
    world.nodes[B].context.set_admission(true);
    let (_, message) = world.arrival(B)?;
    ensure!(message.as_slice() == b"waits", "another message arrived: {:?}", message.as_slice());
    world.end()
}
