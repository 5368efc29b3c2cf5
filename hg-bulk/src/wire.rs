//! The bytes of a descriptor.
//!
//! Those without data are few, and stand in the descriptor itself. With data in them they are thousands, and live as long as one handler. An allocator takes many times longer for so
//! many than for a few; so each thread keeps those of the last ones for the next.
//! And those that are read out of a received message stay there, where the transport allows it ([`reading`]).

use std::{cell::RefCell, ops::Deref, sync::Arc};

use hg_na::{Message, MessageBody};

/// So many stand in the descriptor: one region of any of the transports here.
const HERE_MAX: usize = 118;
/// Shorter ones an allocator has at hand.
const KEPT_MIN: usize = 1024;
/// Longer ones are freed: few programs allow them.
const KEPT_MAX: usize = 16 * 1024;
/// Of so many descriptors a thread keeps the bytes.
const SPARE_MAX: usize = 4;

/// A message of more than so many times the bytes of a descriptor is not held on to for its sake.
const HELD_MAX: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// The message that this thread reads.
    static READ: RefCell<Option<Arc<dyn MessageBody>>> = const { RefCell::new(None) };
}

/// Runs something that reads a message: long descriptors in it hold on to its memory instead of being copied.
#[inline]
pub fn reading<T>(message: &Message, read: impl FnOnce() -> T) -> T {
    let _until_then = message.shared().map(hold);
    read()
}

#[cold]
fn hold(body: &Arc<dyn MessageBody>) -> Reading {
    Reading(READ.with(|read| read.replace(Some(Arc::clone(body)))))
}

/// What was read before, to go on with.
struct Reading(Option<Arc<dyn MessageBody>>);

impl Drop for Reading {
    fn drop(&mut self) {
        READ.with(|read| drop(read.replace(self.0.take())));
    }
}

/// Bytes of the message that is read, as a part of it.
fn held(bytes: &[u8]) -> Option<Wire> {
    let body = READ.try_with(|read| read.try_borrow().ok()?.clone()).ok()??;
    let all = body.bytes();
    // Addresses are compared, nothing more: what lies inside is the message's, whoever made the slice.
    let start = bytes.as_ptr().addr().checked_sub(all.as_ptr().addr())?;
    let range = start..start.checked_add(bytes.len())?;
    let fits = range.end <= all.len() && all.len() / HELD_MAX <= bytes.len();
    fits.then(|| Wire::Held(body, range))
}

/// The bytes.
pub(crate) enum Wire {
    /// A few.
    Here { len: u8, bytes: [u8; HERE_MAX] },
    /// More, whose memory is used again once they are dropped.
    Apart(Apart),
    /// A part of a received message.
    Held(Arc<dyn MessageBody>, std::ops::Range<usize>),
}

/// Bytes that are used again once they are dropped.
pub(crate) struct Apart(Vec<u8>);

impl Wire {
    /// The same bytes, as they are.
    #[inline]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let held = if bytes.len() < KEPT_MIN { None } else { held(bytes) };
        held.unwrap_or_else(|| Self::copy_of(bytes))
    }

    fn copy_of(bytes: &[u8]) -> Self {
        let mut here = [0; HERE_MAX];
        if let (Some(place), Ok(len)) = (here.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            place.copy_from_slice(bytes);
            return Self::Here { len, bytes: here };
        }
        let is_kept = (KEPT_MIN..=KEPT_MAX).contains(&bytes.len());
        let mut wire = if is_kept { spare().unwrap_or_default() } else { Vec::new() };
        wire.extend_from_slice(bytes);
        Self::Apart(Apart(wire))
    }
}

/// `None` also while the thread ends.
fn spare() -> Option<Vec<u8>> {
    let mut bytes = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.pop()).ok()??;
    bytes.clear();
    Some(bytes)
}

impl Drop for Apart {
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
        Self::Apart(Apart(bytes))
    }
}

impl Deref for Wire {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Here { len, bytes } => &bytes[..usize::from(*len)],
            Self::Apart(apart) => &apart.0,
            Self::Held(body, range) => &body.bytes()[range.clone()],
        }
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
    fn bytes_of_any_length_are_copied() {
        for len in [0, 1, HERE_MAX, HERE_MAX + 1, KEPT_MIN, KEPT_MAX + 1] {
            assert_eq!(&*Wire::copy_of(&vec![9; len]), vec![9; len]);
        }
    }

    #[derive(Debug)]
    struct Bytes(Vec<u8>);

    impl MessageBody for Bytes {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
        fn truncate(&mut self, len: usize) {
            self.0.truncate(len);
        }
    }

    #[test]
    fn long_bytes_of_the_message_that_is_read_stay_there_and_outlive_it() {
        let message = Message::from_shared(Arc::new(Bytes((0..=255).cycle().take(8000).collect())));
        let bytes = message.as_slice();
        let elsewhere = bytes[1..].to_vec();
        let (held, short, others) = reading(&message, || {
            reading(&Message::inline(8), || ()); // Changes nothing for what goes on.
            (Wire::of(&bytes[1..7001]), Wire::of(&bytes[..1999]), Wire::of(&elsewhere))
        });
        assert_eq!((&*held, held.as_ptr()), (&bytes[1..7001], bytes[1..].as_ptr()));
        assert_eq!((&*short, short.as_ptr() == bytes.as_ptr()), (&bytes[..1999], false));
        assert_eq!(&*others, &bytes[1..]);
        let after = Wire::of(bytes);
        assert_ne!(after.as_ptr(), bytes.as_ptr());
        drop(message);
        assert_eq!(*held, elsewhere[..7000]);
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
