//! Kinds of operations of which no more could wait.

use std::mem::{Discriminant, discriminant};

use hg_na::Op;

/// Those of one peer for which room was not told since.
#[derive(Debug, Default)]
pub(crate) struct Full(Vec<Discriminant<Op>>);

impl Full {
    /// One of this kind was refused.
    pub(crate) fn add(&mut self, op: &Op) {
        let kind = discriminant(op);
        if !self.0.contains(&kind) {
            self.0.push(kind);
        }
    }

    /// Takes those out of which at most half of `depth` wait; says whether there was any.
    pub(crate) fn take<'a>(
        &mut self,
        waiting: impl Iterator<Item = &'a Op> + Clone,
        depth: usize,
    ) -> bool {
        let before = self.0.len();
        self.0.retain(|kind| {
            waiting.clone().filter(|op| discriminant(*op) == *kind).count() > depth / 2
        });
        self.0.len() < before
    }
}
