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

    fn silent(&self) -> Vec<u32> {
        let silent = self.pairs.iter().filter(|(_, pair)| pair.is_silent());
        silent.map(|(number, _)| *number).collect()
    }

    /// The same of all pairs: somebody needs what they hold.
    pub(super) fn ask_all(&mut self) {
        self.silent().into_iter().for_each(|number| self.ask(number));
    }

    /// The same of all pairs, before one who would look at them goes. Where the port is down, whoever hears that it is up looks.
    pub(super) fn ask_before_leave(&mut self) {
        let silent = self.silent();
        self.ask_if_active(silent);
    }

    /// The same of these pairs, which nobody needs to have done: not while the port is down, where it ends a pair that would have outlived that. Says whether it was done.
    fn ask_if_active(&mut self, silent: Vec<u32>) -> bool {
        let is_done = silent.is_empty() || self.device().is_active();
        if is_done {
            silent.into_iter().for_each(|number| self.ask(number));
        }
        is_done
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
        let is_done = self.ask_if_active(idle);
        self.idle().looked(now, are_in_use || !is_done);
    }
}
