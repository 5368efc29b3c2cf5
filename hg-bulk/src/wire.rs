//! The bytes of a descriptor.
//!
//! With data in them they are thousands, and live as long as one handler. An allocator takes many times longer for so
//! many than for a few; so each thread keeps those of the last ones for the next.

use std::{cell::RefCell, ops::Deref};

/// Shorter ones an allocator has at hand.
const KEPT_MIN: usize = 1024;
/// Longer ones are freed: few programs allow them.
const KEPT_MAX: usize = 16 * 1024;
/// Of so many descriptors a thread keeps the bytes.
const SPARE_MAX: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that are used again once they are dropped.
pub(crate) struct Wire(Vec<u8>);

impl Wire {
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let is_kept = (KEPT_MIN..=KEPT_MAX).contains(&bytes.len());
        let mut wire = if is_kept { spare().unwrap_or_default() } else { Vec::new() };
        wire.extend_from_slice(bytes);
        Self(wire)
    }
}

/// `None` also while the thread ends.
fn spare() -> Option<Vec<u8>> {
    let mut bytes = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.pop()).ok()??;
    bytes.clear();
    Some(bytes)
}

impl Drop for Wire {
    fn drop(&mut self) {
        if (KEPT_MIN..=KEPT_MAX).contains(&self.0.capacity()) {
            let bytes = std::mem::take(&mut self.0);
            let _too_late = SPARE.try_with(|spare| {
                if let Ok(mut spare) = spare.try_borrow_mut()
                    && spare.len() < SPARE_MAX
                {
                    spare.push(bytes);
                }
            });
        }
    }
}

impl From<Vec<u8>> for Wire {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Deref for Wire {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Vec<usize> {
        SPARE.with_borrow(|spare| spare.iter().map(Vec::capacity).collect())
    }

    /// In a thread that keeps nothing yet.
    #[expect(clippy::disallowed_methods, reason = "what a thread keeps is tested")]
    fn in_new_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_thread_keeps_a_few_of_some_length_and_uses_them_again() {
        in_new_thread(|| {
            drop(Wire::copy_of(&[7; KEPT_MIN - 1]));
            drop(Wire::copy_of(&[7; KEPT_MAX + 1]));
            assert!(kept().is_empty());
            let many: Vec<_> = (0..2 * SPARE_MAX).map(|_| Wire::copy_of(&[7; 4096])).collect();
            drop(many);
            assert_eq!(kept(), [4096; SPARE_MAX]);
            let shorter = Wire::copy_of(&[8; 2000]);
            assert_eq!((&*shorter, kept().len()), ([8; 2000].as_slice(), SPARE_MAX - 1));
        });
    }

    #[test]
    fn bytes_may_be_dropped_by_another_thread() {
        in_new_thread(|| {
            let wire = Wire::copy_of(&[7; 4096]);
            in_new_thread(move || drop(wire));
            assert!(kept().is_empty());
        });
    }
}
