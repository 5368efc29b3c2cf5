//! Contexts of injected messages: nothing is told of one unless it fails, and then its context says to which address it was on its way.
//!
//! When an address is removed, something may still be on its way to it, and fail later. So a context is used for another address
//! only after [`SPARE`] others were given up, and its memory stays until the endpoint was closed.

use std::{collections::VecDeque, ffi::c_void};

use rustc_hash::FxHashMap;

use crate::fabric::frames::Frames;

/// Contexts that wait before one of them is used again.
const SPARE: usize = 256;
/// Contexts of a row.
const ROW: usize = 64;

/// One context for each address to which something was injected.
#[derive(Default)]
pub(super) struct Injected {
    /// Only their contexts are used.
    rows: Vec<Frames>,
    /// Of each context.
    addresses: Vec<Option<u64>>,
    /// Numbers of contexts.
    by_address: FxHashMap<u64, usize>,
    given_up: VecDeque<usize>,
}

impl Injected {
    /// For a message to this address.
    pub(super) fn context_of(&mut self, address: u64) -> *mut c_void {
        let number = match self.by_address.get(&address) {
            Some(number) => *number,
            None => self.assign(address),
        };
        self.rows[number / ROW].context(number % ROW)
    }

    fn assign(&mut self, address: u64) -> usize {
        let again = if self.given_up.len() > SPARE { self.given_up.pop_front() } else { None };
        let number = again.unwrap_or_else(|| {
            if self.addresses.len() == self.rows.len() * ROW {
                self.rows.push(Frames::new(ROW, 1));
            }
            self.addresses.push(None);
            self.addresses.len() - 1
        });
        self.addresses[number] = Some(address);
        self.by_address.insert(address, number);
        number
    }

    /// An address is removed.
    pub(super) fn forget(&mut self, address: u64) {
        if let Some(number) = self.by_address.remove(&address) {
            self.addresses[number] = None;
            self.given_up.push_back(number);
        }
    }

    /// The address that a context stands for.
    pub(super) fn address_of(&self, context: *mut c_void) -> Option<u64> {
        let mut rows = self.rows.iter().enumerate();
        let number = rows.find_map(|(row, it)| Some(row * ROW + it.find(context)?))?;
        *self.addresses.get(number)?
    }

    /// The library may reach them for as long as the process lives.
    pub(super) fn leak(&mut self) {
        self.rows.iter_mut().for_each(Frames::leak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_stands_for_one_address_until_that_is_removed() {
        let mut injected = Injected::default();
        let contexts: Vec<_> = (0..200).map(|address| injected.context_of(address)).collect();
        for (address, context) in (0..).zip(&contexts) {
            assert_eq!(injected.context_of(address), *context);
            assert_eq!(injected.address_of(*context), Some(address));
        }
        injected.forget(7);
        assert_eq!(injected.address_of(contexts[7]), None);
        assert_ne!(injected.context_of(7), contexts[7], "a late failure is not the next one's");
    }

    #[test]
    fn crowds_that_come_and_go_cost_no_more_contexts_than_wait() {
        let mut injected = Injected::default();
        for address in 0..10_000 {
            injected.context_of(address);
            injected.forget(address);
        }
        assert!(injected.addresses.len() <= SPARE + 2, "{}", injected.addresses.len());
    }
}
