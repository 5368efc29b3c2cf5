//! Values for some ranks, on their way: each leaves at once to every side where it has a destination. Nothing is kept but what
//! waits to be sent, letters of one call to one side in one frame.

use std::{collections::VecDeque, ops::Range};

use super::{Effect, Hub, Side};
use crate::{
    frame::{Down, Letter, Post, Up},
    tree::Run,
};

/// Bytes of letters in one frame, about.
const POST_BYTES: usize = 256 << 10;

/// What waits for each side: the children, and the hub above.
#[derive(Debug)]
pub(super) struct Posts {
    sides: Vec<VecDeque<(Post, usize)>>,
    /// Sides that something waits for.
    ready: VecDeque<usize>,
}

impl Posts {
    pub(super) fn new(children: usize) -> Self {
        Self { sides: (0..=children).map(|_| VecDeque::new()).collect(), ready: VecDeque::new() }
    }

    fn push(&mut self, side: usize, (channel, number): (&str, u64), letter: Letter) {
        let bytes = 12 + 12 * letter.to.len() + letter.value.len();
        let waiting = &mut self.sides[side];
        if let Some((post, all)) = waiting.back_mut()
            && (post.channel.as_str(), post.number) == (channel, number)
            && *all < POST_BYTES
        {
            *all += bytes;
            return post.letters.push(letter);
        }
        let channel = channel.to_owned();
        waiting.push_back((Post { channel, number, letters: vec![letter] }, bytes));
        self.ready.push_back(side);
    }
}

impl Hub {
    /// `Err`: whoever sent it does not know how to behave.
    pub(super) fn post(&mut self, from: Side, post: Post) -> Result<(), ()> {
        let is_own = |letter: &Letter| match from {
            Side::Above => !self.ranks.contains(&letter.from),
            Side::Child(place) => self.children[place].ranks.contains(&letter.from),
        };
        let is_well = |letter: &Letter| letter.to.iter().all(|run| run.is_below(self.size));
        if !post.letters.iter().all(|letter| is_own(letter) && is_well(letter)) {
            return Err(());
        }
        if self.broken.is_some() {
            return Ok(());
        }
        let call = (post.channel.as_str(), post.number);
        for letter in &post.letters {
            for place in self.places_of(&letter.to) {
                if from != Side::Child(place) {
                    self.pass_on(place, call, letter);
                }
            }
            if self.has_above() && from != Side::Above {
                let outside = [0..self.ranks.start, self.ranks.end..self.size];
                let to: Vec<Run> =
                    outside.iter().flat_map(|ranks| within(&letter.to, ranks)).collect();
                if !to.is_empty() {
                    let letter = Letter { from: letter.from, to, value: letter.value.clone() };
                    self.posts.push(self.children.len(), call, letter);
                }
            }
        }
        Ok(())
    }

    /// The children that may be meant: all of those that a run reaches over.
    fn places_of(&self, to: &[Run]) -> Range<usize> {
        let first = to.iter().map(|run| run.first).min().unwrap_or(0);
        let last = to.iter().map(|run| run.first + (run.count - 1) * run.step).max().unwrap_or(0);
        let place = |rank: u32| self.children.partition_point(|child| child.ranks.end <= rank);
        place(first)..(place(last) + 1).min(self.children.len())
    }

    fn pass_on(&mut self, place: usize, call: (&str, u64), letter: &Letter) {
        let to: Vec<Run> = within(&letter.to, &self.children[place].ranks).collect();
        if !to.is_empty() {
            self.posts.push(
                place,
                call,
                Letter { from: letter.from, to, value: letter.value.clone() },
            );
        }
    }

    pub(super) fn next_post(&mut self) -> Option<Effect> {
        let side = self.posts.ready.pop_front()?;
        let (post, _) = self.posts.sides[side].pop_front()?;
        Some(match self.children.get(side) {
            Some(child) => Effect::One(child.ranks.start, Down::Post(post)),
            None => Effect::Up(Up::Post(post)),
        })
    }
}

fn within<'a>(runs: &'a [Run], ranks: &'a Range<u32>) -> impl Iterator<Item = Run> + 'a {
    runs.iter().filter_map(|run| run.within(ranks))
}
