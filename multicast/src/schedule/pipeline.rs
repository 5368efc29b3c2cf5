//! The binomial pipeline.
//!
//! The members stand on the vertices of a hypercube of `2^l <= n` vertices: the root alone on vertex 0, where `n` is no power of two two
//! members, *twins*, on each of the vertices `1 ..= n - 2^l`, one on each of the others. In step `j` the vertices talk along dimension
//! `j mod l`, in both directions. Of twins one receives what comes to the vertex, and passes its twin the oldest block that this one lacks; the other
//! sends what leaves the vertex. They change roles whenever the vertex's bit of the dimension that has just been used is set.
//! In one last step each gives the other what it lacks.

use std::collections::VecDeque;

use super::{Hop, Step};

/// A member of the pipeline, in the middle of it.
#[derive(Debug, Clone)]
pub(super) struct Pipeline {
    cube: Cube,
    member: u32,
    vertex: u32,
    /// What has come to the vertex's lower and upper member, and its twin lacks, oldest first.
    unshared: [VecDeque<u64>; 2],
}

impl Pipeline {
    pub(super) fn new(members: u32, blocks: u64, member: u32) -> Self {
        let cube = Cube { members, dimensions: members.max(2).ilog2(), blocks };
        Self { cube, member, vertex: cube.vertex_of(member), unshared: Default::default() }
    }

    /// The next step; they are asked for in order.
    pub(super) fn step(&mut self, step: u64) -> Step {
        let (cube, vertex) = (self.cube, self.vertex);
        let partner = vertex ^ 1 << cube.dimension(step);
        let leaving = cube.block_from(vertex, step).map(|block| {
            let peer = cube.receiver(partner, step);
            Hop { peer, block }
        });
        let coming = cube.block_from(partner, step).map(|block| {
            let peer = cube.sender(partner, step);
            Hop { peer, block }
        });
        if !cube.has_twins(vertex) {
            return Step { send: leaving, receive: coming };
        }
        let receiver = cube.receiver(vertex, step);
        let of = |member| usize::from(member != vertex);
        let twin = cube.twin(self.member);
        if step + 1 == cube.blocks + u64::from(cube.dimensions) {
            let mut last = |from: u32, peer| {
                self.unshared[of(from)].pop_front().map(|block| Hop { peer, block })
            };
            return Step { send: last(self.member, twin), receive: last(twin, twin) };
        }
        let shared = self.unshared[of(receiver)].pop_front();
        self.unshared[of(receiver)].extend(coming.map(|it| it.block));
        let shared = shared.map(|block| Hop { peer: twin, block });
        if self.member == receiver {
            Step { send: shared, receive: coming }
        } else {
            Step { send: leaving, receive: shared }
        }
    }
}

/// Who stands where, and what goes from vertex to vertex.
#[derive(Debug, Clone, Copy)]
struct Cube {
    members: u32,
    dimensions: u32,
    blocks: u64,
}

impl Cube {
    fn vertices(self) -> u32 {
        1 << self.dimensions
    }

    fn vertex_of(self, member: u32) -> u32 {
        if member < self.vertices() { member } else { member - self.vertices() + 1 }
    }

    fn has_twins(self, vertex: u32) -> bool {
        vertex != 0 && vertex <= self.members.saturating_sub(self.vertices())
    }

    fn twin(self, member: u32) -> u32 {
        let apart = self.vertices() - 1;
        if member < self.vertices() { member + apart } else { member - apart }
    }

    fn dimension(self, step: u64) -> u32 {
        u32::try_from(step % u64::from(self.dimensions)).expect("one of the dimensions")
    }

    /// The block that a vertex sends in a step.
    fn block_from(self, vertex: u32, step: u64) -> Option<u64> {
        let (l, dimension) = (self.dimensions, self.dimension(step));
        let is_over = step + 1 >= self.blocks + u64::from(l);
        if is_over || vertex ^ 1 << dimension == 0 {
            return None;
        }
        let rotated = (vertex >> dimension | vertex << (l - dimension)) & (self.vertices() - 1);
        let zeros = if rotated == 0 { l } else { rotated.trailing_zeros() };
        (step + u64::from(zeros)).checked_sub(u64::from(l)).map(|block| block.min(self.blocks - 1))
    }

    /// Who of a vertex receives in a step.
    fn receiver(self, vertex: u32, step: u64) -> u32 {
        if !self.has_twins(vertex) {
            return vertex;
        }
        let rounds = step / u64::from(self.dimensions);
        let begun = (vertex & ((1 << self.dimension(step)) - 1)).count_ones();
        let changes = rounds * u64::from(vertex.count_ones()) + u64::from(begun);
        if changes.is_multiple_of(2) { vertex } else { self.twin(vertex) }
    }

    /// Who of a vertex sends to others in a step.
    fn sender(self, vertex: u32, step: u64) -> u32 {
        let receiver = self.receiver(vertex, step);
        if self.has_twins(vertex) { self.twin(receiver) } else { receiver }
    }
}
