//! Which queue pair carries which connection, where processes share one. No I/O.
//!
//! A *line* is a logical connection: a number of 32 bits at each end, which the other end puts into the immediate word of what it sends.
//!
//! ```text
//!  dialling end                                accepting end
//!  Hello: a pair of its own, not connected, -> knows one of the tokens: takes that pair
//!         its token, and the tokens of pairs   else: makes one, and connects it to the offered one
//!         that lead to the same machine
//!  connects, or has the pair already,       <- Welcome: the pair, by the dialling end's token
//!  and then drops the offered one
//!  join, over the pair                      -> the line is joined
//!  the line is joined                       <- join
//! ```
//! A greeting is a claim, and tokens are heard by other processes of the peer's machine; only from the machine that a pair leads to is its
//! token believed. What goes out over a shared pair reaches whoever made
//! that, so neither end sends before the other one has spoken over the pair itself, with the line's number: a stranger can not. For the
//! same reason only the Welcome of the line that a pair was offered for connects it; lines that were put on it earlier wait for that. A Welcome
//! that names a pair which is connected already has to have that pair's number and token at the other end, which were not told to its machine.
//!
//! A pair whose last line has ended is closed by agreement, since the peer may be about to put another line on it:
//! ```text
//!  Offered -Welcome-> Open -last line ended: Close-> Closing -Closed, or Close-> gone
//!                      ^-----------Welcome names it-----+ (the peer had taken it meanwhile, and answers no Close)
//! ```
//! Whoever is asked to close answers when it has no line there; it takes such a pair for no further line. Only an end that dials reopens.

use std::{collections::BTreeMap, net::IpAddr};

/// Tokens in one greeting; what is not named there is not shared.
pub(crate) const TOKENS_MAX: usize = 64;

/// Words that are no lines: a greeting that names one is refused where it is read.
const CLOSE: u32 = 0;
const CLOSED: u32 = 1;
pub(crate) const FIRST_LINE: u32 = 16;

/// The other end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Far {
    /// The number of its queue pair.
    pub(crate) number: u32,
    pub(crate) token: u64,
    /// Its machine, as far as that is known.
    pub(crate) ip: Option<IpAddr>,
    /// Whether it puts several lines on a pair.
    pub(crate) shares: bool,
}

impl Far {
    /// Whether both are one end of one pair.
    fn is_same(&self, other: &Self) -> bool {
        (self.number, self.token) == (other.number, other.token)
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// This word is sent over a pair.
    Say { pair: u32, word: u32 },
    /// A line may be sent on.
    Joined { line: u32 },
    /// The pair of a line is no more.
    Cut { line: u32 },
    /// A pair is destroyed when the peer has what was sent.
    Leave { pair: u32 },
    /// A pair is given up ([`Sharing::late`]) if this lasts.
    Await { pair: u32 },
    /// A pair is destroyed.
    Destroy { pair: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not connected.
    Offered,
    Open,
    /// Without lines; the peer was asked.
    Closing,
    Broken,
}

#[derive(Debug)]
struct Pair {
    token: u64,
    /// Of the machine that it leads to, or is to.
    ip: Option<IpAddr>,
    far: Option<Far>,
    phase: Phase,
    /// Lines on it.
    lines: usize,
    /// The peer wants it closed.
    is_asked: bool,
}

#[derive(Debug)]
struct Line {
    dials: bool,
    /// Where it is; while it dials, what was offered for it.
    pair: Option<u32>,
    /// The other end's number; `None`: it is not met.
    theirs: Option<u32>,
    is_joined: bool,
}

/// Pairs and lines of one process, or of one context that shares nothing.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) shares: bool,
    pairs: BTreeMap<u32, Pair>,
    lines: BTreeMap<u32, Line>,
    next: u32,
}

impl Sharing {
    /// Without lines; `shares`: several may be on one pair.
    pub(crate) fn new(shares: bool) -> Self {
        Self { shares, pairs: BTreeMap::new(), lines: BTreeMap::new(), next: FIRST_LINE }
    }

    /// A new line.
    pub(crate) fn open(&mut self, dials: bool) -> u32 {
        while self.lines.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1).max(FIRST_LINE);
        }
        let line = self.next;
        self.next = line.wrapping_add(1).max(FIRST_LINE);
        self.lines.insert(line, Line { dials, pair: None, theirs: None, is_joined: false });
        line
    }

    /// A new pair is offered for a line to a machine. Answers the tokens of those that lead there.
    pub(crate) fn offer(
        &mut self,
        line: u32,
        (pair, token): (u32, u64),
        ip: Option<IpAddr>,
    ) -> Vec<u64> {
        let leads = |pair: &&Pair| {
            self.shares && ip.is_some() && pair.ip == ip && pair.phase != Phase::Broken
        };
        let tokens =
            self.pairs.values().filter(leads).map(|pair| pair.token).take(TOKENS_MAX).collect();
        let (far, phase, lines, is_asked) = (None, Phase::Offered, 0, false);
        self.pairs.insert(pair, Pair { token, ip, far, phase, lines, is_asked });
        self.put(line, pair, None);
        tokens
    }

    /// Somebody at a machine has introduced himself, and named tokens of his: the pair for his line, if one is such that leads there. Else
    /// one is [made](Self::made).
    pub(crate) fn hello(
        &mut self,
        line: u32,
        (theirs, ip): (u32, Option<IpAddr>),
        tokens: &[u64],
    ) -> Option<u32> {
        let is_of =
            |far: Far| far.shares && ip.is_some() && far.ip == ip && tokens.contains(&far.token);
        let is_fit = |pair: &Pair| {
            pair.phase == Phase::Open && !pair.is_asked && pair.far.is_some_and(is_of)
        };
        let mut fit = self.pairs.iter().filter(|(_, pair)| self.shares && is_fit(pair));
        let found = fit.next().map(|(number, _)| *number);
        if let Some(pair) = found {
            self.put(line, pair, Some(theirs));
        }
        found
    }

    /// A new pair was connected for a line, whose number is `theirs` at the other end.
    pub(crate) fn made(&mut self, line: u32, (pair, token): (u32, u64), (far, theirs): (Far, u32)) {
        let (phase, lines, is_asked) = (Phase::Open, 0, false);
        self.pairs.insert(pair, Pair { token, ip: far.ip, far: Some(far), phase, lines, is_asked });
        self.put(line, pair, Some(theirs));
    }

    /// A line that dials was welcomed on the pair with this token. Answers it, and whether it is to be connected, before the effects. `None`:
    /// there is no such pair with this peer.
    pub(crate) fn welcome(
        &mut self,
        line: u32,
        token: u64,
        (far, theirs): (Far, u32),
        effects: &mut Vec<Effect>,
    ) -> Option<(u32, bool)> {
        let offered = self.lines.get(&line)?.pair?;
        let (&number, pair) = self.pairs.iter_mut().find(|(_, pair)| pair.token == token)?;
        let connects = pair.phase == Phase::Offered && number == offered;
        match pair.phase {
            Phase::Offered if connects => (pair.far, pair.phase) = (Some(far), Phase::Open),
            Phase::Offered => {}
            Phase::Open | Phase::Closing if pair.far.is_some_and(|it| it.is_same(&far)) => {
                pair.phase = Phase::Open
            }
            Phase::Open | Phase::Closing | Phase::Broken => return None,
        }
        self.put(line, number, Some(theirs));
        self.leave(offered, true, effects);
        let is_open = self.pairs.get(&number).is_some_and(|pair| pair.phase == Phase::Open);
        let mut join =
            |it: &Line| effects.extend(it.theirs.map(|word| Effect::Say { pair: number, word }));
        match connects {
            true => self.lines.values().filter(|it| it.pair == Some(number)).for_each(join),
            false if is_open => self.lines.get(&line).into_iter().for_each(&mut join),
            false => {}
        }
        Some((number, connects))
    }

    /// A word has come over a pair; answers the line that it names, which may have what came with it.
    pub(crate) fn heard(&mut self, pair: u32, word: u32, effects: &mut Vec<Effect>) -> Option<u32> {
        match word {
            CLOSE => self.is_to_close(pair, effects),
            CLOSED => self.is_closed(pair, effects),
            _ => {}
        }
        let line = self.lines.get_mut(&word).filter(|line| line.pair == Some(pair))?;
        let theirs = line.theirs?;
        if !line.is_joined {
            line.is_joined = true;
            // It uses the pair, whatever it has said before.
            self.pairs.get_mut(&pair)?.is_asked = false;
            effects.push(Effect::Joined { line: word });
            if !line.dials {
                effects.push(Effect::Say { pair, word: theirs });
            }
        }
        Some(word)
    }

    fn is_to_close(&mut self, number: u32, effects: &mut Vec<Effect>) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        match pair.phase {
            Phase::Open | Phase::Closing if pair.lines == 0 => {
                if pair.phase == Phase::Open {
                    effects.push(Effect::Say { pair: number, word: CLOSED });
                }
                self.pairs.remove(&number);
                effects.push(Effect::Leave { pair: number });
            }
            Phase::Open => pair.is_asked = true,
            Phase::Offered | Phase::Closing | Phase::Broken => {}
        }
    }

    fn is_closed(&mut self, number: u32, effects: &mut Vec<Effect>) {
        let Some(pair) = self.pairs.get(&number) else { return };
        match pair.phase {
            Phase::Closing => {
                self.pairs.remove(&number);
                effects.push(Effect::Leave { pair: number });
            }
            Phase::Open => self.broke(number, effects),
            Phase::Offered | Phase::Broken => {}
        }
    }

    /// A line has ended; `is_cut`: its peer is out of reach, or is not to be trusted.
    pub(crate) fn ended(&mut self, line: u32, is_cut: bool, effects: &mut Vec<Effect>) {
        let Some(line) = self.lines.remove(&line) else { return };
        let Some(number) = line.pair else { return };
        self.leave(number, is_cut, effects);
        // It was this one's to connect.
        let is_offered = self.pairs.get(&number).is_some_and(|pair| pair.phase == Phase::Offered);
        if is_offered && line.theirs.is_none() {
            self.broke(number, effects);
        }
    }

    /// The pair that a line is on, or is to be.
    pub(crate) fn pair_of(&self, line: u32) -> Option<u32> {
        self.lines.get(&line)?.pair
    }

    /// Whether a pair carries lines, or may again.
    pub(crate) fn is_in_use(&self, number: u32) -> bool {
        self.pairs.get(&number).is_some_and(|pair| pair.phase != Phase::Broken)
    }

    /// The token by which the other end of a pair knows its own.
    pub(crate) fn far_token(&self, number: u32) -> Option<u64> {
        self.pairs.get(&number)?.far.map(|far| far.token)
    }

    /// A pair is in error.
    pub(crate) fn broke(&mut self, number: u32, effects: &mut Vec<Effect>) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.phase = Phase::Broken;
        if pair.lines == 0 {
            self.pairs.remove(&number);
            return effects.push(Effect::Destroy { pair: number });
        }
        self.cut(number, effects);
    }

    /// A pair was awaited for long.
    pub(crate) fn late(&mut self, number: u32, effects: &mut Vec<Effect>) {
        if self.pairs.get(&number).is_some_and(|pair| pair.phase == Phase::Closing) {
            self.pairs.remove(&number);
            effects.push(Effect::Destroy { pair: number });
        }
    }

    fn cut(&self, number: u32, effects: &mut Vec<Effect>) {
        let lines = self.lines.iter().filter(|(_, line)| line.pair == Some(number));
        effects.extend(lines.map(|(line, _)| Effect::Cut { line: *line }));
    }

    fn put(&mut self, line: u32, number: u32, theirs: Option<u32>) {
        let line = self.lines.get_mut(&line).expect("an open line");
        (line.pair, line.theirs) = (Some(number), theirs);
        self.pairs.get_mut(&number).expect("a pair that is there").lines += 1;
    }

    /// A pair has one line less.
    fn leave(&mut self, number: u32, is_cut: bool, effects: &mut Vec<Effect>) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.lines -= 1;
        if pair.lines > 0 {
            return;
        }
        let is_shared = self.shares && pair.far.is_some_and(|far| far.shares);
        match pair.phase {
            Phase::Open if is_shared && !is_cut && !pair.is_asked => {
                pair.phase = Phase::Closing;
                effects.push(Effect::Say { pair: number, word: CLOSE });
                return effects.push(Effect::Await { pair: number });
            }
            Phase::Open if !is_cut => {
                if is_shared {
                    effects.push(Effect::Say { pair: number, word: CLOSED });
                }
                effects.push(Effect::Leave { pair: number });
            }
            Phase::Offered | Phase::Open | Phase::Closing | Phase::Broken => {
                effects.push(Effect::Destroy { pair: number });
            }
        }
        self.pairs.remove(&number);
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;
