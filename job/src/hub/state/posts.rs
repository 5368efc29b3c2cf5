//! Values for some ranks, on their way: each leaves at once to every side where it has a destination, letters of one call to one
//! side in one frame.
//!
//! # Bounds
//! A side has at most [`UNDER_WAY_MAX`] frames that it has not passed on, and a rank has one: a hub says of each that it has
//! (`Taken`); a rank says nothing, and is given more only while its connection takes them. What waits for a side is bounded by [`WAITING_MAX`] bytes: beyond those,
//! frames of other sides stay where they came, untaken. So every connection is read all the time, and what else is said
//! there is heard, while a rank takes nothing in.
//!
//! What comes from above goes down only, to ranks in the end, which always read; so room is made somewhere.

use std::{collections::VecDeque, ops::Range};

use super::{Effect, Hub, Side};
use crate::{
    frame::{Down, Letter, Post, Up},
    tree::Run,
};

/// Bytes of letters in one frame, about.
pub(crate) const POST_BYTES: usize = 256 << 10;
/// Bytes that wait for a side at which nothing more is passed on.
pub(crate) const WAITING_MAX: usize = 4 << 20;
/// Frames that a hub was given, and has not passed on.
pub(crate) const UNDER_WAY_MAX: u32 = 4;

/// The sides: the children, and the hub above.
#[derive(Debug)]
pub(super) struct Posts {
    sides: Vec<Way>,
}

/// What comes from a side and what goes there.
#[derive(Debug, Default)]
struct Way {
    /// It takes in nothing for now.
    is_blocked: bool,
    under_way: u32,
    waiting: VecDeque<(Post, usize)>,
    waiting_bytes: usize,
    /// Came from there, and was not passed on.
    came: VecDeque<Post>,
}

impl Posts {
    pub(super) fn new(children: usize) -> Self {
        Self { sides: (0..=children).map(|_| Way::default()).collect() }
    }

    fn push(&mut self, side: usize, (channel, number): (&str, u64), letter: Letter) {
        let bytes = letter.len();
        let way = &mut self.sides[side];
        way.waiting_bytes += bytes;
        if let Some((post, all)) = way.waiting.back_mut()
            && (post.channel.as_str(), post.number) == (channel, number)
            && *all < POST_BYTES
        {
            *all += bytes;
            return post.letters.push(letter);
        }
        let channel = channel.to_owned();
        way.waiting.push_back((Post { channel, number, letters: vec![letter] }, bytes));
    }

    /// Whether something from this side may be passed on.
    fn has_room(&self, from: usize) -> bool {
        let above = self.sides.len() - 1;
        let is_full = |way: &Way| way.waiting_bytes > WAITING_MAX;
        !self.sides[..above].iter().any(is_full) && (from == above || !is_full(&self.sides[above]))
    }
}

impl Hub {
    /// Something for other ranks has come. `Err`: whoever sent it does not know how to behave.
    pub(super) fn post(&mut self, from: Side, post: Post) -> Result<(), ()> {
        let is_own = |letter: &Letter| match from {
            Side::Above => !self.ranks.contains(&letter.from),
            Side::Child(place) => self.children[place].ranks.contains(&letter.from),
        };
        let is_well = |letter: &Letter| letter.to.iter().all(|run| run.is_below(self.size));
        let is_rank = matches!(from, Side::Child(place) if !self.children[place].is_hub());
        let came_max = if is_rank { 1 } else { UNDER_WAY_MAX as usize };
        if self.posts.sides[self.number_of(from)].came.len() >= came_max
            || !post.letters.iter().all(|letter| is_own(letter) && is_well(letter))
        {
            return Err(());
        }
        if self.broken.is_none() {
            let from = self.number_of(from);
            self.posts.sides[from].came.push_back(post);
            self.pass_all_on();
        }
        Ok(())
    }

    /// A hub has passed on what it was given.
    pub(super) fn taken(&mut self, by: Side) -> Result<(), ()> {
        let number = self.number_of(by);
        let under_way = &mut self.posts.sides[number].under_way;
        // What was told before the job broke is forgotten.
        *under_way = match under_way.checked_sub(1) {
            Some(left) => left,
            None if self.broken.is_some() => 0,
            None => return Err(()),
        };
        Ok(())
    }

    /// The connection of a child that is a rank has no room for more, or has some again.
    pub(crate) fn handle_room(&mut self, rank: u32, has_room: bool) {
        if let Some(place) = self.place_of(rank) {
            self.posts.sides[place].is_blocked = !has_room;
        }
    }

    /// Bytes of values that have come and are not passed on, or wait for their sides.
    pub(crate) fn held(&self) -> usize {
        let came = self.posts.sides.iter().flat_map(|way| &way.came);
        let came: usize = came.flat_map(|post| &post.letters).map(Letter::len).sum();
        came + self.posts.sides.iter().map(|way| way.waiting_bytes).sum::<usize>()
    }

    /// The most bytes that wait for one side.
    #[cfg(test)]
    pub(crate) fn waiting_values(&self) -> usize {
        self.posts.sides.iter().map(|way| way.waiting_bytes).max().unwrap_or(0)
    }

    fn number_of(&self, side: Side) -> usize {
        match side {
            Side::Child(place) => place,
            Side::Above => self.children.len(),
        }
    }

    /// Passes on what has come, as far as there is room.
    fn pass_all_on(&mut self) {
        for from in 0..self.posts.sides.len() {
            while !self.posts.sides[from].came.is_empty() && self.posts.has_room(from) {
                let Some(post) = self.posts.sides[from].came.pop_front() else { break };
                self.pass_on(from, &post);
                self.effects.push_back(match self.children.get(from) {
                    Some(child) => Effect::One(child.ranks.start, Down::Taken),
                    None => Effect::Up(Up::Taken),
                });
            }
        }
    }

    fn pass_on(&mut self, from: usize, post: &Post) {
        let (call, above) = ((post.channel.as_str(), post.number), self.children.len());
        for letter in &post.letters {
            for place in self.places_of(&letter.to) {
                if from != place {
                    let to = within(&letter.to, &self.children[place].ranks).collect();
                    self.give(place, call, letter, to);
                }
            }
            if self.has_above() && from != above {
                let outside = [0..self.ranks.start, self.ranks.end..self.size];
                let to = outside.iter().flat_map(|ranks| within(&letter.to, ranks)).collect();
                self.give(above, call, letter, to);
            }
        }
    }

    /// The children that may be meant: all of those that a run reaches over.
    fn places_of(&self, to: &[Run]) -> Range<usize> {
        let first = to.iter().map(|run| run.first).min().unwrap_or(0);
        let last = to.iter().map(|run| run.first + (run.count - 1) * run.step).max().unwrap_or(0);
        let place = |rank: u32| self.children.partition_point(|child| child.ranks.end <= rank);
        place(first)..(place(last) + 1).min(self.children.len())
    }

    fn give(&mut self, side: usize, call: (&str, u64), letter: &Letter, to: Vec<Run>) {
        if !to.is_empty() {
            let letter = Letter { from: letter.from, to, value: letter.value.clone() };
            self.posts.push(side, call, letter);
        }
    }

    pub(super) fn next_post(&mut self) -> Option<Effect> {
        let may_go = |way: &Way| {
            !(way.is_blocked || way.under_way >= UNDER_WAY_MAX || way.waiting.is_empty())
        };
        let side = self.posts.sides.iter().position(may_go)?;
        let way = &mut self.posts.sides[side];
        let (post, bytes) = way.waiting.pop_front()?;
        way.waiting_bytes -= bytes;
        let child = self.children.get(side);
        // Of a rank its connection tells.
        way.under_way += u32::from(child.is_none_or(super::Child::is_hub));
        let effect = match child {
            Some(child) => Effect::One(child.ranks.start, Down::Post(post)),
            None => Effect::Up(Up::Post(post)),
        };
        self.pass_all_on();
        Some(effect)
    }
}

fn within<'a>(runs: &'a [Run], ranks: &'a Range<u32>) -> impl Iterator<Item = Run> + 'a {
    runs.iter().filter_map(|run| run.within(ranks))
}
