//! Connections over pairs: how they are met, and end. What happens is decided by [`crate::sharing`]; here it is done.

use std::{net::IpAddr, sync::Arc, time::Instant};

use hg_na::Error;
use hg_na_parts::regions::random;
use rdma_core_sys as sys;

use crate::{
    card::{
        Desk, Event, Fault, Side, Target, Way,
        endpoint::{Endpoint, Leaving, PART_WAITS},
        pair::{Cargo, Pair, Post},
        registration::Registration,
    },
    sharing::{Effect, Far},
};

/// What each end of a connection tells the other: from a peer, a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Greeted {
    /// A queue pair of its own: offered, or the one that carries the connection.
    pub(crate) side: Side,
    /// The connection's number.
    pub(crate) line: u32,
    /// Whether others may share its pair.
    pub(crate) shares: bool,
    /// In a Hello, of its pairs that lead here; in a Welcome, the one of the other end's that is meant.
    pub(crate) tokens: Vec<u64>,
}

/// A line of a context.
#[derive(Debug)]
pub(super) struct Line {
    desk: Arc<Desk>,
    target: Target,
    /// The pair over which the other end has spoken.
    pub(super) joined_on: Option<u32>,
    /// Events in the inbox since it was emptied so often.
    unread: (u64, u32),
    /// There were more than a peer may leave: it is over, and nothing is put there any more.
    is_flooded: bool,
}

impl Line {
    pub(super) fn target_at(&self, desk: &Arc<Desk>) -> Option<Target> {
        Arc::ptr_eq(&self.desk, desk).then_some(self.target)
    }

    /// Whether what comes over a pair with this line's number is for its context.
    pub(super) fn is_carried_by(&self, number: u32) -> bool {
        self.joined_on == Some(number) && !self.is_flooded
    }

    /// Puts something into the inbox; the end of the line instead, if there is more of it than a peer may leave.
    pub(super) fn put(&mut self, event: impl FnOnce(Target) -> Event) {
        if self.is_flooded {
            return;
        }
        let emptied = self.desk.emptied();
        if self.unread.0 != emptied {
            self.unread = (emptied, 0);
        }
        self.unread.1 += 1;
        self.is_flooded = self.unread.1 > super::desk::UNREAD_MAX;
        self.desk.put(match self.is_flooded {
            false => event(self.target),
            true => Event::Broken { of: self.target, fault: FLOODED },
        });
    }
}

impl Endpoint {
    /// A line of a context's for the connection of a place.
    pub(super) fn open_line(&mut self, desk: &Arc<Desk>, place: u32, dials: bool) -> u32 {
        let line = self.sharing.open(dials);
        let (desk, target) = (Arc::clone(desk), Target { place, port: self.port, line });
        self.lines.insert(
            line,
            Line { desk, target, joined_on: None, unread: (0, 0), is_flooded: false },
        );
        line
    }

    /// What the end that is dialled at an address is told.
    ///
    /// # Errors
    /// There is no queue pair to be had.
    pub(super) fn offer(&mut self, line: u32, ip: Option<IpAddr>) -> Result<Greeted, Error> {
        let side = self.add_pair()?;
        let tokens = self.sharing.offer(line, (side.number, side.token), ip);
        Ok(Greeted { side, line, shares: self.sharing.shares, tokens })
    }

    /// Somebody has introduced himself on a line: what he is told, and the way to him.
    ///
    /// # Errors
    /// There is no queue pair to be had.
    pub(super) fn greet(
        &mut self,
        line: u32,
        (hello, ip): (&Greeted, Option<IpAddr>),
    ) -> Result<(Greeted, Way), Error> {
        let found = self.sharing.hello(line, (hello.line, ip), &hello.tokens);
        let number = match found {
            Some(number) => number,
            None => {
                let own = self.add_pair()?;
                if let Err(fault) = self.connect(own.number, &hello.side) {
                    drop(self.pairs.remove(&own.number));
                    return Err(fault.into());
                }
                let far = far(hello, ip);
                self.sharing.made(line, (own.number, own.token), (far, hello.line));
                own.number
            }
        };
        let pair = &self.pairs[&number];
        let tokens = self.sharing.far_token(number).into_iter().collect();
        let welcome = Greeted { side: pair.side(), line, shares: self.sharing.shares, tokens };
        Ok((welcome, Way { number, word: hello.line, gauge: Arc::clone(&pair.gauge) }))
    }

    /// A line that dials was welcomed: the way to the other end.
    ///
    /// # Errors
    /// It names no pair of this side's, or that cannot be connected.
    pub(super) fn welcomed(
        &mut self,
        line: u32,
        (welcome, ip): (&Greeted, Option<IpAddr>),
    ) -> Result<Way, Fault> {
        const NO_PAIR: Fault = Fault::Call("ibv_modify_qp", nix::libc::ENOTCONN);
        let [token] = welcome.tokens[..] else { return Err(NO_PAIR) };
        let mut effects = Vec::new();
        let met = (far(welcome, ip), welcome.line);
        let (number, connects) =
            self.sharing.welcome(line, token, met, &mut effects).ok_or(NO_PAIR)?;
        if connects && let Err(fault) = self.connect(number, &welcome.side) {
            self.sharing.broke(number, &mut effects);
            effects.retain(|it| !matches!(it, Effect::Say { .. }));
            self.act(effects, fault);
            return Err(fault);
        }
        self.act(effects, Fault::Again);
        let gauge = self.pairs.get(&number).map(|pair| Arc::clone(&pair.gauge)).ok_or(NO_PAIR)?;
        Ok(Way { number, word: welcome.line, gauge })
    }

    /// A line has ended; `is_cut`: its peer is out of reach, or is not to be trusted.
    pub(super) fn end_line(&mut self, line: u32, is_cut: bool) {
        self.lines.remove(&line);
        let mut effects = Vec::new();
        self.sharing.ended(line, is_cut, &mut effects);
        self.act(effects, Fault::Again);
    }

    /// The same, of a line whose peer may still move what was lent to it: where the pair has other lines, or may again, an end of its rights would be
    /// the end of the pair. So the memory stays lent until the pair ends: the answer is `true` then.
    pub(super) fn end_lending(
        &mut self,
        line: u32,
        is_cut: bool,
        mut lent: Vec<Registration>,
    ) -> bool {
        let number = self.sharing.pair_of(line);
        self.end_line(line, is_cut);
        let number = number.filter(|number| !lent.is_empty() && self.sharing.is_in_use(*number));
        let Some((number, pair)) = number.and_then(|it| Some((it, self.pairs.get_mut(&it)?)))
        else {
            return false;
        };
        pair.left.append(&mut lent);
        if pair.left.len() > LEFT_MAX {
            self.broke(number, LEFT);
        }
        true
    }

    /// A word has come over a pair that is no line's which has joined.
    pub(super) fn heard(&mut self, number: u32, word: u32) {
        let mut effects = Vec::new();
        if let Some(line) = self.sharing.heard(number, word, &mut effects)
            && let Some(line) = self.lines.get_mut(&line)
        {
            line.joined_on = Some(number);
        }
        self.act(effects, Fault::Again);
    }

    /// Puts a pair in error.
    pub(super) fn broke(&mut self, number: u32, fault: Fault) {
        if self.pairs.get(&number).is_some_and(|pair| pair.gauge.breaks()) {
            let mut effects = Vec::new();
            self.sharing.broke(number, &mut effects);
            self.act(effects, fault);
        }
    }

    /// Does what has been decided.
    pub(super) fn act(&mut self, effects: Vec<Effect>, fault: Fault) {
        for effect in effects {
            match effect {
                Effect::Say { pair, word } => self.say(pair, word),
                Effect::Joined { line } => self.tell(line, |of| Event::Joined { of }),
                Effect::Cut { line } => {
                    let fault = if fault == Fault::Again { CLOSED } else { fault };
                    self.tell(line, |of| Event::Broken { of, fault });
                }
                Effect::Leave { pair } => self.leave(pair, true),
                Effect::Await { pair } => self.leave(pair, false),
                Effect::Destroy { pair } => self.destroy(pair),
            }
        }
    }

    fn tell(&mut self, line: u32, event: impl FnOnce(Target) -> Event) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.put(event);
        }
    }

    fn say(&mut self, number: u32, word: u32) {
        let post = Post {
            opcode: sys::WR_SEND_WITH_IMM,
            word,
            remote: (0, 0),
            run: None,
            must_ask: false,
            cargo: Cargo::Nothing,
        };
        // SAFETY:
        // - no memory is named.
        unsafe { self.post(number, post) };
    }

    fn leave(&mut self, number: u32, is_gone: bool) {
        self.ask(number);
        let Some(pair) = self.pairs.get(&number) else { return };
        let last = is_gone.then(|| pair.gauge.last());
        self.leaving.retain(|it| it.number != number);
        self.leaving.push(Leaving { number, last, by: Instant::now() + PART_WAITS });
    }

    fn add_pair(&mut self) -> Result<Side, Error> {
        let random = random()?;
        let (first, rest) = random.split_first_chunk().expect("16 bytes hold 4");
        let token = rest.first_chunk().expect("12 bytes hold 8");
        let numbers = (u32::from_le_bytes(*first), u64::from_le_bytes(*token));
        let pair = Pair::new(self.device(), self.queues(), numbers, self.every)?;
        let side = pair.side();
        self.pairs.insert(side.number, pair);
        Ok(side)
    }

    fn connect(&mut self, number: u32, other: &Side) -> Result<(), Fault> {
        self.makes_room()?;
        self.pairs.get_mut(&number).ok_or(Fault::Again)?.connect(other)
    }
}

/// The other end of a shared pair has closed it.
const CLOSED: Fault = Fault::Status(sys::WC_WR_FLUSH_ERR);

/// Transfers that lines have left behind on a pair that goes on: some times what one peer may have under way.
const LEFT_MAX: usize = 256;
const LEFT: Fault = Fault::Event("too many transfers were left behind on its queue pair");

/// A peer that keeps to its credits never leaves as much.
const FLOODED: Fault = Fault::Event("it has sent more than its credits allow");

fn far(greeted: &Greeted, ip: Option<IpAddr>) -> Far {
    let Side { number, token, .. } = greeted.side;
    Far { number, token, ip, shares: greeted.shares }
}
