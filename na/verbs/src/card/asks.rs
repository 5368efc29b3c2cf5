//! Asking for the completion of silent posts.

use std::time::Instant;

use rdma_core_sys as sys;

use crate::{
    card::{
        endpoint::Endpoint,
        pair::{Cargo, Pair, Post},
    },
    signals::Silent,
};

impl Endpoint {
    /// Asks for the completion of silent posts, by one that does nothing else.
    pub(super) fn ask(&mut self, number: u32) {
        if self.pairs.get(&number).is_some_and(Pair::is_silent) {
            let post = Post {
                opcode: sys::WR_RDMA_WRITE,
                word: 0,
                remote: (0, 0),
                run: None,
                must_ask: true,
                cargo: Cargo::Nothing,
            };
            // SAFETY:
            // - no memory is named.
            unsafe { self.post(number, post) };
        }
    }

    /// The same of all pairs.
    pub(super) fn ask_all(&mut self) {
        let silent = self.pairs.iter().filter(|(_, pair)| pair.is_silent());
        let silent: Vec<u32> = silent.map(|(number, _)| *number).collect();
        silent.into_iter().for_each(|number| self.ask(number));
    }

    /// The same of those that nobody has posted to since the look before.
    pub(super) fn look(&mut self, now: Instant) {
        let (mut idle, mut are_in_use) = (Vec::new(), false);
        for (number, pair) in &mut self.pairs {
            match pair.look() {
                Silent::Nothing => {}
                Silent::InUse => are_in_use = true,
                Silent::Idle => idle.push(*number),
            }
        }
        self.idle().looked(now, are_in_use);
        idle.into_iter().for_each(|number| self.ask(number));
    }
}
