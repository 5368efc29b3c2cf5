//! A hub as a state machine: frames and hang-ups in, frames out. No socket, clock or thread.
//!
//! ```text
//!             all ranks said Hello             Bye of all
//!  Gathering ----------------------> Together ------------> Over
//!      |  deadline, a seat hangs up      | hang-up, abort, disagreement, a call after a Bye
//!      +----------------> Broken <-------+   (told to everybody, and to whoever comes later)
//! ```
//! That of rank 0 has nobody above it. Another one speaks for all its ranks to the hub above, once they have all joined, called
//! or left; what comes from there it passes on ([`crate::tree`] says who is above whom). A reason to break goes to all sides
//! but the one that it came from.
//!
//! | file | what |
//! |---|---|
//! | `asks.rs` | who has not made a call: a question that is passed on, and its answers |
//! | `posts.rs` | values for some ranks, on their way |

mod asks;
pub(crate) mod posts;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use self::{asks::Asks, posts::Posts};
use crate::{
    frame::{Broken, DOWN_MAX, Down, Hello, Up, What},
    tree,
};

/// What shall be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// To the child of this rank.
    One(u32, Down),
    All(Down),
    /// To the hub above.
    Up(Up),
}

/// Those who are connected here: a rank, or a hub that speaks for several, of which its own is the first.
#[derive(Debug)]
struct Child {
    ranks: Range<u32>,
    state: Member,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    Awaited,
    /// A hub that waits for its own.
    Arriving,
    /// The hosts of its ranks.
    Here(Vec<(String, u32)>),
    Left,
    Gone,
}

/// A collective call that not all ranks have made.
#[derive(Debug)]
struct Open {
    what: What,
    first: u32,
    /// Of each child.
    values: Vec<Option<Vec<Vec<u8>>>>,
    here: usize,
}

/// The calls of one channel.
#[derive(Debug, Default)]
struct Channel {
    /// Calls that have ended.
    ended: u64,
    open: Option<Open>,
}

/// Where something comes from, or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Above,
    /// By its place.
    Child(usize),
}

#[derive(Debug)]
pub(crate) struct Hub {
    token: Vec<u8>,
    size: u32,
    /// Whom it speaks for.
    ranks: Range<u32>,
    /// In the order of their ranks; the own one first.
    children: Vec<Child>,
    /// Those of which all ranks have joined, ever.
    joined: usize,
    /// All ranks of the job have joined.
    is_whole: bool,
    /// A rank that has left.
    left: Option<u32>,
    channels: BTreeMap<String, Channel>,
    asks: Asks,
    posts: Posts,
    /// The first reason.
    broken: Option<Broken>,
    /// An abort that came after it.
    aborted: Option<Broken>,
    effects: VecDeque<Effect>,
}

impl Hub {
    /// One that all ranks are connected to.
    pub(crate) fn star(size: u32, token: Vec<u8>) -> Self {
        Self::with((0..size, size), token, (0..size).map(|rank| rank..rank + 1))
    }

    /// That of the rank that heads these, of `size`.
    pub(crate) fn heading(ranks: Range<u32>, size: u32, token: Vec<u8>) -> Self {
        let parts = tree::parts(&ranks);
        Self::with((ranks, size), token, parts)
    }

    fn with(
        (ranks, size): (Range<u32>, u32),
        token: Vec<u8>,
        parts: impl Iterator<Item = Range<u32>>,
    ) -> Self {
        let children: Vec<_> = parts.map(|ranks| Child { ranks, state: Member::Awaited }).collect();
        let posts = Posts::new(children.len());
        let (channels, asks, effects) = Default::default();
        Self {
            token,
            size,
            ranks,
            children,
            joined: 0,
            is_whole: false,
            left: None,
            channels,
            asks,
            posts,
            broken: None,
            aborted: None,
            effects,
        }
    }

    /// Whom this one has connections from, by rank.
    pub(crate) fn child_ranks(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(|child| child.ranks.start)
    }

    /// The place of the child that is this rank's.
    pub(crate) fn place_of(&self, rank: u32) -> Option<usize> {
        self.children.binary_search_by_key(&rank, |child| child.ranks.start).ok()
    }

    /// Whether that child is a hub.
    pub(crate) fn is_hub(&self, rank: u32) -> bool {
        self.place_of(rank).is_some_and(|place| self.children[place].is_hub())
    }

    /// The first of its ranks, whose process it is in.
    pub(crate) fn head(&self) -> u32 {
        self.ranks.start
    }

    fn has_above(&self) -> bool {
        self.ranks.start > 0
    }

    /// A process says who it is. `Err`: a sentence for it; it is no member.
    pub(crate) fn handle_hello(&mut self, hello: Hello) -> Result<u32, String> {
        let Hello { token, rank, size, host } = hello;
        if !same(&token, &self.token) {
            return Err("this is another job: the tokens differ".into());
        }
        if size != self.size {
            let (head, own) = (self.ranks.start, self.size);
            return Err(format!("rank {rank} was told {size} ranks, rank {head} {own}"));
        }
        let Some(place) = self.place_of(rank) else {
            return Err(if rank >= size {
                format!("there is no rank {rank} among {size}")
            } else {
                format!("rank {rank} does not belong to rank {}", self.ranks.start)
            });
        };
        if self.children[place].state != Member::Awaited {
            return Err(format!("two processes say that they are rank {rank}"));
        }
        let reasons: Vec<Broken> = self.reasons().cloned().collect();
        self.effects.extend(reasons.into_iter().map(|why| Effect::One(rank, Down::Broken(why))));
        let child = &mut self.children[place];
        if child.is_hub() {
            child.state = Member::Arriving;
        } else {
            child.state = Member::Here(vec![(host, 1)]);
            self.one_has_joined();
        }
        Ok(rank)
    }

    /// All ranks of a child are here.
    fn one_has_joined(&mut self) {
        self.joined += 1;
        if self.broken.is_some() || self.joined < self.children.len() {
            return;
        }
        let hosts = self.children.iter_mut().map(|child| match &mut child.state {
            Member::Here(hosts) => std::mem::take(hosts),
            Member::Awaited | Member::Arriving | Member::Left | Member::Gone => Vec::new(),
        });
        let hosts = merged(hosts.flatten());
        if self.has_above() {
            self.effects.push_back(Effect::Up(Up::Hosts(hosts)));
        } else {
            self.welcome(number_nodes(&hosts));
        }
    }

    fn welcome(&mut self, nodes: Vec<u32>) {
        self.is_whole = true;
        self.effects.push_back(Effect::All(Down::Welcome { nodes }));
    }

    /// A member says something. `Err`: it does not know how to behave, and is cut off.
    pub(crate) fn handle(&mut self, rank: u32, up: Up) -> Result<(), ()> {
        let place = self.place_of(rank).ok_or(())?;
        let child = &mut self.children[place];
        let is_hub = child.is_hub();
        match up {
            Up::Hosts(hosts) if child.state == Member::Arriving => {
                let count = hosts.iter().try_fold(0_u32, |all, (_, count)| all.checked_add(*count));
                if count.map(|count| count as usize) != Some(child.ranks.len()) {
                    return Err(());
                }
                child.state = Member::Here(hosts);
                self.one_has_joined();
            }
            Up::Gather { channel, number, what, values } => {
                if values.len() != what.values(&child.ranks) {
                    return Err(());
                }
                self.contribute(place, channel, number, what, values);
            }
            Up::Abort { code, why } => self.breaks(Broken::Aborted { by: rank, code, why }, None),
            Up::Broken(broken) if is_hub => self.breaks(broken, Some(Side::Child(place))),
            Up::Bye => {
                child.state = Member::Left;
                if !is_hub {
                    self.leaves(place, rank);
                }
            }
            Up::Left { rank } if is_hub && child.ranks.contains(&rank) => self.leaves(place, rank),
            Up::Who { channel, number } => self.ask(Side::Child(place), channel, number),
            Up::Missing { channel, number, ranks } if is_hub => {
                self.answered(Side::Child(place), (channel, number), &ranks);
            }
            Up::Post(post) => return self.post(Side::Child(place), post),
            Up::Taken if is_hub => return self.taken(Side::Child(place)),
            Up::Hello(_)
            | Up::Hosts(_)
            | Up::Broken(_)
            | Up::Left { .. }
            | Up::Missing { .. }
            | Up::Taken => return Err(()),
        }
        Ok(())
    }

    /// The hub above says something. `Err`: it does not know how to behave.
    pub(crate) fn handle_above(&mut self, down: Down) -> Result<(), ()> {
        match down {
            Down::Gathered { ref channel, .. } => {
                let channel = self.channels.entry(channel.clone()).or_default();
                channel.ended += 1;
                channel.open = None;
                self.effects.push_back(Effect::All(down));
            }
            Down::Welcome { nodes } => self.welcome(nodes),
            Down::Refused { why } => self.breaks(Broken::Disagree { why }, Some(Side::Above)),
            Down::Broken(broken) => self.breaks(broken, Some(Side::Above)),
            Down::Missing { channel, number, ranks } => {
                self.answered(Side::Above, (channel, number), &ranks);
            }
            Down::Who { channel, number } => self.ask(Side::Above, channel, number),
            Down::Post(post) => return self.post(Side::Above, post),
            Down::Taken => return self.taken(Side::Above),
        }
        Ok(())
    }

    /// A rank has said that it takes part in nothing any more: an error where somebody waits for it.
    fn leaves(&mut self, place: usize, rank: u32) {
        // Of several the first is enough: nobody calls anything any more.
        if self.left.replace(rank).is_none() && self.has_above() {
            self.effects.push_back(Effect::Up(Up::Left { rank }));
        }
        if let Some((what, first)) = self.open_without(place) {
            let why = format!("rank {rank} left where rank {first} called {}", what.name());
            self.breaks(Broken::Disagree { why }, None);
        }
    }

    /// A call under way that a child has not made, and who has.
    fn open_without(&self, place: usize) -> Option<(What, u32)> {
        let mut open = self.channels.values().filter_map(|channel| channel.open.as_ref());
        open.find(|open| open.values[place].is_none()).map(|open| (open.what, open.first))
    }

    fn contribute(
        &mut self,
        place: usize,
        name: String,
        number: u64,
        what: What,
        values: Vec<Vec<u8>>,
    ) {
        let rank = self.children[place].ranks.start;
        if let Some(broken) = &self.broken {
            self.effects.push_back(Effect::One(rank, Down::Broken(broken.clone())));
            return;
        }
        if let Some(rank) = self.left {
            return self.breaks(Broken::Left { rank }, None);
        }
        let children = self.children.len();
        let channel = self.channels.entry(name.clone()).or_default();
        let disagreement = channel.disagreement((&name, number), rank, what, place);
        if let Some(why) = disagreement {
            return self.breaks(Broken::Disagree { why }, None);
        }
        let open = channel.open.get_or_insert_with(|| Open {
            what,
            first: rank,
            values: vec![None; children],
            here: 0,
        });
        open.values[place] = Some(values);
        open.here += 1;
        if open.here == children {
            self.finish(name, number);
        }
    }

    /// All have called.
    fn finish(&mut self, name: String, number: u64) {
        let has_above = self.has_above();
        let channel = self.channels.get_mut(&name).expect("somebody contributed to it");
        let open = channel.open.as_mut().expect("it has just become whole");
        let what = open.what;
        // Who has called stays known until the call ends.
        let values: Vec<Vec<u8>> =
            open.values.iter_mut().flatten().flat_map(std::mem::take).collect();
        if !has_above {
            channel.open = None;
            channel.ended += 1;
        }
        let length: usize = values.iter().map(|value| value.len() + 4).sum();
        if length > DOWN_MAX - 1024 {
            let why =
                format!("together the values have {length} bytes, over the limit of {DOWN_MAX}");
            return self.breaks(Broken::Disagree { why }, None);
        }
        self.effects.push_back(if has_above {
            Effect::Up(Up::Gather { channel: name, number, what, values })
        } else {
            Effect::All(Down::Gathered { channel: name, number, values })
        });
    }

    /// A member's connection has ended.
    pub(crate) fn handle_hang_up(&mut self, rank: u32) {
        let Some(place) = self.place_of(rank) else { return };
        match std::mem::replace(&mut self.children[place].state, Member::Gone) {
            Member::Here(_) | Member::Arriving => self.breaks(Broken::Lost { rank }, None),
            Member::Awaited => self.breaks(Broken::Early { rank }, None),
            Member::Left => self.children[place].state = Member::Left,
            Member::Gone => {}
        }
    }

    /// The connection to the hub above, which is that rank's, has ended.
    pub(crate) fn handle_above_gone(&mut self, rank: u32) {
        self.breaks(Broken::Lost { rank }, Some(Side::Above));
    }

    /// Nobody is waited for any longer. Those that wait for others say that themselves.
    pub(crate) fn handle_deadline(&mut self) {
        let ranks: Vec<u32> = self.awaited().collect();
        if !ranks.is_empty() {
            self.breaks(Broken::NeverCame { ranks }, None);
        }
    }

    /// Those that have not joined here.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u32> {
        let awaited = self.children.iter().filter(|child| child.state == Member::Awaited);
        awaited.map(|child| child.ranks.start)
    }

    /// The first reason counts, except that an abort is always told. `from`: who knows it.
    fn breaks(&mut self, broken: Broken, from: Option<Side>) {
        let place = match (&self.broken, &broken) {
            (None, _) => &mut self.broken,
            // It comes back from above.
            (Some(first), Broken::Aborted { .. }) if *first != broken && self.aborted.is_none() => {
                &mut self.aborted
            }
            (Some(_), _) => return,
        };
        *place = Some(broken.clone());
        self.channels.clear();
        self.asks = Asks::default();
        self.posts = Posts::new(self.children.len());
        if self.has_above() && from != Some(Side::Above) {
            self.effects.push_back(Effect::Up(Up::Broken(broken.clone())));
        }
        self.effects.push_back(Effect::All(Down::Broken(broken)));
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front().or_else(|| self.next_post())
    }

    /// Does somebody have to join still, and may?
    pub(crate) fn is_gathering(&self) -> bool {
        self.broken.is_none() && self.joined < self.children.len()
    }

    /// Why it is broken, if it is.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// That, and an abort that came after it.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &Broken> {
        self.broken.iter().chain(&self.aborted)
    }

    /// Has every rank left or gone? One that is awaited may still come, if only to hear why it need not.
    pub(crate) fn is_over(&self) -> bool {
        self.children.iter().all(|child| matches!(child.state, Member::Left | Member::Gone))
    }
}

impl Child {
    fn is_hub(&self) -> bool {
        self.ranks.len() > 1
    }
}

impl Channel {
    /// What is wrong with a call.
    fn disagreement(
        &self,
        (name, number): (&str, u64),
        rank: u32,
        what: What,
        place: usize,
    ) -> Option<String> {
        let called = what.name();
        if number != self.ended {
            let others = self.ended;
            return Some(format!(
                "rank {rank} is at call {number} of `{name}`, others at {others}"
            ));
        }
        let open = self.open.as_ref()?;
        if open.what != what {
            let (first, others) = (open.first, open.what.name());
            return Some(format!("rank {rank} called {called} where rank {first} called {others}"));
        }
        let is_twice = open.values[place].is_some();
        is_twice.then(|| format!("rank {rank} called {called} number {number} of `{name}` twice"))
    }
}

impl What {
    /// How many values a call of these ranks has.
    fn values(self, ranks: &Range<u32>) -> usize {
        match self {
            Self::Gather => ranks.len(),
            Self::Barrier => 0,
            Self::Share => usize::from(ranks.start == 0),
        }
    }
}

/// Ranks that follow one another on a host are one entry.
fn merged(hosts: impl Iterator<Item = (String, u32)>) -> Vec<(String, u32)> {
    let mut runs: Vec<(String, u32)> = Vec::new();
    for (host, count) in hosts {
        match runs.last_mut() {
            Some((last, all)) if *last == host => *all += count,
            _ => runs.push((host, count)),
        }
    }
    runs
}

/// Hosts become numbers in the order of their lowest ranks.
fn number_nodes(hosts: &[(String, u32)]) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    let mut nodes = Vec::new();
    for (host, count) in hosts {
        let next = u32::try_from(numbers.len()).expect("not more than ranks");
        let number = *numbers.entry(host).or_insert(next);
        nodes.resize(nodes.len() + *count as usize, number);
    }
    nodes
}

/// Compares tokens in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
