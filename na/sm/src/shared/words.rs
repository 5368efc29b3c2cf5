//! Map words, as an owner reads them: who has a region mapped. The protocol is that of [`crate::region::pins`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::pins::pin_word;

/// A bit of a map word that pin words have clear: a view holds on to the mapping.
pub(crate) const HELD: u64 = 1 << 31;

/// Whether peers have a region mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mapped {
    /// None has.
    No,
    /// Some have, and will let go when they are told.
    Yes,
    /// Somebody has a view of it.
    Held,
}

/// What one peer's map words say about a region (U3): claims, as pins are.
pub(crate) fn mapped(words: &[AtomicU64], index: u32, generation: u32) -> Mapped {
    let name = pin_word(index, generation);
    // Acquire: what the peer did before it cleared its word is over.
    let said = words.iter().map(|word| match word.load(Ordering::Acquire) {
        word if word == name => Mapped::Yes,
        word if word == name | HELD => Mapped::Held,
        _ => Mapped::No,
    });
    said.max().unwrap_or(Mapped::No)
}

/// The region that a word names, and whether it is held.
pub(crate) fn parse(word: u64) -> Option<(u32, u32)> {
    let low = u32::try_from(word & u64::from(u32::MAX) & !HELD).expect("masked to 32 bits");
    let generation = u32::try_from(word >> 32).expect("32 bits are left");
    Some((low.checked_sub(1)?, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_held_from_mapped_from_others() {
        let words = [pin_word(4, 7), pin_word(5, 7) | HELD, 0].map(AtomicU64::new);
        assert_eq!(mapped(&words, 4, 7), Mapped::Yes);
        assert_eq!(mapped(&words, 5, 7), Mapped::Held);
        assert_eq!(mapped(&words, 5, 9), Mapped::No);
        assert_eq!(parse(pin_word(5, 7) | HELD), Some((5, 7)));
        assert_eq!(parse(0), None);
    }
}
