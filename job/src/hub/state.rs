//! The hub as a state machine: frames and hang-ups in, frames out. No socket, clock or thread.
//!
//! ```text
//!             all ranks said Hello             Bye of all
//!  Gathering ----------------------> Together ------------> Over
//!      |  deadline, a seat hangs up      | hang-up, abort, disagreement, a call after a Bye
//!      +----------------> Broken <-------+   (told to everybody, and to whoever comes later)
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::frame::{Broken, DOWN_MAX, Down, Hello, Up, What};

/// What shall be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    One(u32, Down),
    All(Down),
}

/// A rank, as the hub knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    Awaited,
    Here { host: String },
    Left,
    Gone,
}

/// A collective call that not all ranks have made.
#[derive(Debug)]
struct Open {
    what: What,
    first: u32,
    values: Vec<Option<Vec<u8>>>,
    here: u32,
}

/// The calls of one channel.
#[derive(Debug, Default)]
struct Channel {
    /// Calls that have ended.
    ended: u64,
    open: Option<Open>,
}

#[derive(Debug)]
pub(crate) struct Hub {
    token: Vec<u8>,
    members: Vec<Member>,
    /// Ranks that have joined, ever.
    joined: u32,
    channels: BTreeMap<String, Channel>,
    /// The first reason.
    broken: Option<Broken>,
    /// An abort that came after it.
    aborted: Option<Broken>,
    effects: VecDeque<Effect>,
}

impl Hub {
    pub(crate) fn new(size: u32, token: Vec<u8>) -> Self {
        Self {
            token,
            members: vec![Member::Awaited; size as usize],
            joined: 0,
            channels: BTreeMap::new(),
            broken: None,
            aborted: None,
            effects: VecDeque::new(),
        }
    }

    fn size(&self) -> u32 {
        u32::try_from(self.members.len()).expect("made from a u32")
    }

    /// A process says who it is. `Err`: a sentence for it; it is no member.
    pub(crate) fn handle_hello(&mut self, hello: Hello) -> Result<u32, String> {
        let Hello { token, rank, size, host } = hello;
        if !same(&token, &self.token) {
            return Err("this is another job: the tokens differ".into());
        }
        if size != self.size() {
            return Err(format!("rank {rank} was told {size} ranks, rank 0 {}", self.size()));
        }
        match self.members.get_mut(rank as usize) {
            None => return Err(format!("there is no rank {rank} among {size}")),
            Some(member @ Member::Awaited) => *member = Member::Here { host },
            Some(_) => return Err(format!("two processes say that they are rank {rank}")),
        }
        self.joined += 1;
        if self.broken.is_some() {
            let reasons = self.broken.iter().chain(&self.aborted).cloned();
            self.effects.extend(reasons.map(|why| Effect::One(rank, Down::Broken(why))));
        } else if self.joined == self.size() {
            let nodes = self.number_nodes();
            self.effects.push_back(Effect::All(Down::Welcome { nodes }));
        }
        Ok(rank)
    }

    /// Hosts become numbers in the order of their lowest ranks.
    fn number_nodes(&self) -> Vec<u32> {
        let mut numbers = BTreeMap::new();
        let host = |member: &Member| match member {
            Member::Here { host } => host.clone(),
            Member::Awaited | Member::Left | Member::Gone => String::new(),
        };
        let number = |member| {
            let next = u32::try_from(numbers.len()).expect("not more than ranks");
            *numbers.entry(host(member)).or_insert(next)
        };
        self.members.iter().map(number).collect()
    }

    /// A member says something. `Err`: it does not know how to behave, and is cut off.
    pub(crate) fn handle(&mut self, rank: u32, up: Up) -> Result<(), ()> {
        match up {
            Up::Hello(_) => return Err(()),
            Up::Gather { channel, number, what, value } => {
                self.contribute(rank, channel, number, what, value);
            }
            Up::Abort { code, why } => self.breaks(Broken::Aborted { by: rank, code, why }),
            Up::Bye => {
                self.members[rank as usize] = Member::Left;
                if let Some((what, first)) = self.open_without(rank) {
                    let why = format!("rank {rank} left where rank {first} called {}", what.name());
                    self.breaks(Broken::Disagree { why });
                }
            }
            Up::Who { channel, number } => self.tell_missing(rank, channel, number),
        }
        Ok(())
    }

    /// A call under way that a rank has not made, and who has.
    fn open_without(&self, rank: u32) -> Option<(What, u32)> {
        let mut open = self.channels.values().filter_map(|channel| channel.open.as_ref());
        open.find(|open| open.values[rank as usize].is_none()).map(|open| (open.what, open.first))
    }

    fn contribute(&mut self, rank: u32, name: String, number: u64, what: What, value: Vec<u8>) {
        if let Some(broken) = &self.broken {
            self.effects.push_back(Effect::One(rank, Down::Broken(broken.clone())));
            return;
        }
        if let Some(left) =
            (0_u32..).zip(&self.members).find(|(_, member)| **member == Member::Left)
        {
            return self.breaks(Broken::Left { rank: left.0 });
        }
        let size = self.size();
        let channel = self.channels.entry(name.clone()).or_default();
        if number != channel.ended {
            let why =
                format!("rank {rank} is at call {number} of `{name}`, others at {}", channel.ended);
            return self.breaks(Broken::Disagree { why });
        }
        let open = channel.open.get_or_insert_with(|| Open {
            what,
            first: rank,
            values: vec![None; size as usize],
            here: 0,
        });
        if open.what != what {
            let (first, others) = (open.first, open.what.name());
            let why =
                format!("rank {rank} called {} where rank {first} called {others}", what.name());
            return self.breaks(Broken::Disagree { why });
        }
        let place = &mut open.values[rank as usize];
        if place.is_some() {
            let why =
                format!("rank {rank} called {} number {number} of `{name}` twice", what.name());
            return self.breaks(Broken::Disagree { why });
        }
        *place = Some(value);
        open.here += 1;
        if open.here == size {
            self.finish(name, number);
        }
    }

    fn finish(&mut self, name: String, number: u64) {
        let channel = self.channels.get_mut(&name).expect("somebody contributed to it");
        let open = channel.open.take().expect("it has just become whole");
        channel.ended += 1;
        let values: Vec<Vec<u8>> = match open.what {
            What::Gather => open.values.into_iter().flatten().collect(),
            What::Barrier => Vec::new(),
        };
        let length: usize = values.iter().map(|value| value.len() + 4).sum();
        if length > DOWN_MAX - 1024 {
            let why =
                format!("together the values have {length} bytes, over the limit of {DOWN_MAX}");
            return self.breaks(Broken::Disagree { why });
        }
        self.effects.push_back(Effect::All(Down::Gathered { channel: name, number, values }));
    }

    fn tell_missing(&mut self, rank: u32, name: String, number: u64) {
        let open = self.channels.get(&name).filter(|channel| channel.ended == number);
        let open = open.and_then(|channel| channel.open.as_ref());
        let missing = |open: &Open| {
            let absent = (0_u32..).zip(&open.values).filter(|(_, value)| value.is_none());
            absent.map(|(rank, _)| rank).collect()
        };
        let ranks = open.map(missing).unwrap_or_default();
        self.effects.push_back(Effect::One(rank, Down::Missing { channel: name, number, ranks }));
    }

    /// A member's connection has ended.
    pub(crate) fn handle_hang_up(&mut self, rank: u32) {
        let member = &mut self.members[rank as usize];
        let before = std::mem::replace(member, Member::Gone);
        match before {
            Member::Here { .. } => self.breaks(Broken::Lost { rank }),
            Member::Awaited => self.breaks(Broken::Early { rank }),
            Member::Left => self.members[rank as usize] = Member::Left,
            Member::Gone => {}
        }
    }

    /// Nobody is waited for any longer.
    pub(crate) fn handle_deadline(&mut self) {
        let ranks: Vec<u32> = self.awaited().collect();
        if !ranks.is_empty() {
            self.breaks(Broken::NeverCame { ranks });
        }
    }

    /// Those that have not joined.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u32> {
        (0_u32..)
            .zip(&self.members)
            .filter(|(_, member)| **member == Member::Awaited)
            .map(|(rank, _)| rank)
    }

    /// The first reason counts, except that an abort is always told.
    fn breaks(&mut self, broken: Broken) {
        let place = match (&self.broken, &broken) {
            (None, _) => &mut self.broken,
            (Some(_), Broken::Aborted { .. }) => &mut self.aborted,
            (Some(_), _) => return,
        };
        self.effects.push_back(Effect::All(Down::Broken(broken.clone())));
        *place = Some(broken);
        self.channels.clear();
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Does somebody have to join still, and may?
    pub(crate) fn is_gathering(&self) -> bool {
        self.broken.is_none() && self.joined < self.size()
    }

    /// Why it is broken, if it is.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Has every rank left or gone? One that is awaited may still come, if only to hear why it need not.
    pub(crate) fn is_over(&self) -> bool {
        self.members.iter().all(|member| matches!(member, Member::Left | Member::Gone))
    }
}

/// Compares tokens in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
