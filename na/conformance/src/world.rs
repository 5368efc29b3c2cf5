//! Several observed contexts that one thread steps in turn, and what tests ask of them.

use std::sync::Arc;

use hg_na::{
    Domain, Done, Error, Message, Op, OpId, OpenOptions, Peer, Rejected, Returned, Tag, Token,
};

use crate::{
    node::Node,
    outcome::{Outcome, ensure, fail},
    suite::Suite,
};

/// Rounds of progress that end every test, in which nothing may come any more.
const AFTERMATH_ROUNDS: usize = 64;
/// Names of a world's nodes, for messages.
const NAMES: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

/// The contexts of one test.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) nodes: Vec<Node>,
}

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;

impl<'a> World<'a> {
    /// `count` domains of one context each, all of them listening.
    pub(crate) fn new(suite: &'a Suite, count: usize) -> Outcome<Self> {
        let mut world = Self { suite, nodes: Vec::new() };
        for _ in 0..count {
            let domain = suite.open(&suite.url, &OpenOptions::listening())?;
            world.add(domain, 0)?;
        }
        Ok(world)
    }

    /// Opens one more context; answers its place.
    pub(crate) fn add(&mut self, domain: Arc<dyn Domain>, id: u8) -> Outcome<usize> {
        let place = self.nodes.len();
        let context = self.suite.once_free(|| domain.context(id));
        let context = context.map_err(|error| format!("context {id} does not open: {error}"))?;
        self.nodes.push(Node::new(NAMES[place % NAMES.len()], domain, context));
        Ok(place)
    }

    /// One round of progress of every node; says whether anything moved.
    pub(crate) fn round(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for node in &mut self.nodes {
            moved |= node.progress()?;
        }
        Ok(moved)
    }

    /// Steps every node until the condition holds; gives up when the suite's patience ends.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut [Node]) -> Outcome<bool>,
    ) -> Outcome {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.until_of(&all, what, &mut holds)
    }

    /// Steps some of the nodes until the condition holds.
    pub(crate) fn until_of(
        &mut self,
        stepped: &[usize],
        what: &str,
        mut holds: impl FnMut(&mut [Node]) -> Outcome<bool>,
    ) -> Outcome {
        let mut clock = self.suite.patience.start();
        loop {
            if holds(&mut self.nodes)? {
                return Ok(());
            }
            let mut moved = false;
            for place in stepped {
                moved |= self.nodes[*place].progress()?;
            }
            ensure!(clock.patient(moved), "it never happened that {what}");
        }
    }

    /// Posts, and makes progress on `stepped` while the answer is [`Error::Again`].
    pub(crate) fn try_post(
        &mut self,
        place: usize,
        op: Op,
    ) -> Outcome<Result<(Token, OpId), Rejected>> {
        let mut clock = self.suite.patience.start();
        let mut op = op;
        loop {
            match self.nodes[place].post(op)? {
                Err(Rejected { op: back, error: Error::Again }) => op = back,
                decided => return Ok(decided),
            }
            let moved = self.round()?;
            ensure!(clock.patient(moved), "a post was refused with Again for ever");
        }
    }

    /// Posts until it is accepted.
    pub(crate) fn post(&mut self, place: usize, op: Op) -> Outcome<(Token, OpId)> {
        self.try_post(place, op)?.map_err(|Rejected { op, error }| {
            format!("{}: {op:?} was refused: {error}", self.nodes[place].name)
        })
    }

    /// Posts something that must be refused; answers why it was.
    pub(crate) fn refused(&mut self, place: usize, op: Op, what: &str) -> Outcome<Error> {
        match self.try_post(place, op)? {
            Err(rejected) => Ok(rejected.error),
            Ok(_) => fail!("{what} was accepted"),
        }
    }

    /// Steps every node until this operation has completed.
    pub(crate) fn completion(&mut self, place: usize, token: Token) -> Outcome<Done> {
        let mut found = None;
        self.until("an accepted operation completed", |nodes| {
            found = nodes[place].take_done_of(token);
            Ok(found.is_some())
        })?;
        found.ok_or_else(|| "a completion was lost".to_owned())
    }

    /// Posts and waits for the completion.
    pub(crate) fn finish(&mut self, place: usize, op: Op) -> Outcome<Done> {
        let (token, _) = self.post(place, op)?;
        self.completion(place, token)
    }

    /// Posts, waits, and wants success.
    pub(crate) fn succeed(&mut self, place: usize, op: Op) -> Outcome<Returned> {
        let done = self.finish(place, op)?;
        match done.result {
            Ok(()) => Ok(done.returned),
            Err(failure) => fail!("{}: an operation failed: {failure:?}", self.nodes[place].name),
        }
    }

    pub(crate) fn send(&mut self, place: usize, to: Peer, bytes: &[u8]) -> Outcome<Token> {
        Ok(self.post(place, Op::SendUnexpected { to, message: Message::copied(bytes) })?.0)
    }

    pub(crate) fn answer(
        &mut self,
        place: usize,
        to: Peer,
        tag: Tag,
        bytes: &[u8],
    ) -> Outcome<Token> {
        Ok(self.post(place, Op::SendExpected { to, tag, message: Message::copied(bytes) })?.0)
    }

    pub(crate) fn receive(&mut self, place: usize, from: Peer, tag: Tag) -> Outcome<(Token, OpId)> {
        self.post(place, Op::RecvExpected { from, tag })
    }

    /// Waits for a posted receive and compares its message.
    pub(crate) fn received(&mut self, place: usize, token: Token, wanted: &[u8]) -> Outcome {
        let done = self.completion(place, token)?;
        match (&done.result, &done.returned) {
            (Ok(()), Returned::Message(message)) if message.as_slice() == wanted => Ok(()),
            _ => fail!("a receive ended in {done:?} instead of {} bytes as sent", wanted.len()),
        }
    }

    /// The next unexpected message.
    pub(crate) fn arrival(&mut self, place: usize) -> Outcome<(Peer, Message)> {
        let mut found = None;
        self.until("an unexpected message arrived", |nodes| {
            found = nodes[place].unexpected.pop_front();
            Ok(found.is_some())
        })?;
        found.ok_or_else(|| "an arrival was lost".to_owned())
    }

    /// `from` greets `to`: answers the two handles, `from`'s of `to` and `to`'s of `from`.
    pub(crate) fn connect(&mut self, from: usize, to: usize) -> Outcome<(Peer, Peer)> {
        let address = self.nodes[to].address();
        let there = self.nodes[from].lookup(&address)?;
        let token = self.send(from, there, b"greeting")?;
        let (back, message) = self.arrival(to)?;
        ensure!(message.as_slice() == b"greeting", "a greeting arrived as {message:?}");
        let done = self.completion(from, token)?;
        ensure!(done.result.is_ok(), "a greeting arrived, but its completion says {done:?}");
        Ok((there, back))
    }

    /// Steps every node until this peer is reported gone to one of them.
    pub(crate) fn gone(&mut self, place: usize, peer: Peer) -> Outcome {
        self.until("a peer's end was reported", |nodes| Ok(nodes[place].gone.contains_key(&peer)))
    }

    /// Steps every node until this peer is said to have hung up to one of them.
    pub(crate) fn hung_up(&mut self, place: usize, peer: Peer) -> Outcome {
        self.until("a hang-up was told", |nodes| Ok(nodes[place].hung_up.contains_key(&peer)))
    }

    /// Drops a node; the places of those after it move down.
    pub(crate) fn close(&mut self, place: usize) {
        drop(self.nodes.remove(place));
    }

    /// Every accepted operation has completed, and nothing comes any more.
    pub(crate) fn end(mut self) -> Outcome {
        self.until("every accepted operation completed", |nodes| {
            Ok(nodes.iter().all(|node| node.pending() == 0))
        })?;
        for _ in 0..AFTERMATH_ROUNDS {
            self.round()?;
        }
        for node in &self.nodes {
            let rest = node.unexpected.len() + node.control.len();
            ensure!(rest == 0, "{}: {rest} messages came that nobody waits for", node.name);
        }
        Ok(())
    }
}

/// Bytes that tell their place and their message.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(len)
    .collect()
}
