//! The descriptors that a thread has read last.
//!
//! Who registers memory once and lends it again and again sends the same bytes again and again. What they mean was
//! found out before, and never changes: a descriptor is what its bytes say, whatever became of the memory since.
//! Reading one again is a comparison of its bytes and one more count, instead of a look at each field, memory from the
//! allocator and two copies. Where a transfer has used it up, that gives it back, and the next time nothing is counted:
//! a count waits for all that the thread has written before, a message to another processor, say.

use std::cell::RefCell;

use crate::Descriptor;

/// Places of one thread; each descriptor has two, side by side. Sixteen that are used in turn nearly always find sixteen:
/// three of one pair would be read anew each time.
const PLACES: usize = 128;

struct Known {
    descriptor: Descriptor,
    /// The same, given back.
    spare: Option<Descriptor>,
}

thread_local! {
    static RECENT: RefCell<Vec<[Option<Known>; 2]>> = const { RefCell::new(Vec::new()) };
}

/// What these bytes were read as, if it was not too long ago; else what `read` makes of them, which is remembered.
/// `None`, and nothing is, where that makes nothing of them.
#[inline]
pub(crate) fn read(
    bytes: &[u8],
    read: impl FnOnce(&[u8]) -> Option<Descriptor>,
) -> Option<Descriptor> {
    let mut read = Some(read);
    let known = RECENT.try_with(|recent| {
        let mut recent = recent.try_borrow_mut().ok()?;
        if recent.is_empty() {
            recent.resize_with(PAIRS, || [None, None]);
        }
        let pair = recent.get_mut(pair_of(bytes)?)?;
        for Known { descriptor, spare } in pair.iter_mut().flatten() {
            if descriptor.as_bytes() == bytes {
                return Some(spare.take().unwrap_or_else(|| descriptor.clone()));
            }
        }
        let new = read.take()?(bytes)?;
        // The newer one steps aside, and goes when the next one of the pair comes.
        pair.rotate_right(1);
        pair[0] = Some(Known { descriptor: new.clone(), spare: None });
        Some(new)
    });
    match (known.ok().flatten(), read) {
        (None, Some(read)) => read(bytes), // The thread ends.
        (known, _) => known,
    }
}

/// Takes a descriptor that nobody needs any more, for the next time that its bytes are read here.
#[inline]
pub(crate) fn give_back(used: Descriptor) {
    let mut used = Some(used);
    let _too_late = RECENT.try_with(|recent| {
        let mut recent = recent.try_borrow_mut().ok()?;
        let pair = recent.get_mut(pair_of(used.as_ref()?.as_bytes())?)?;
        let mut known = pair.iter_mut().flatten();
        let known = known.find(|it| used.as_ref().is_some_and(|used| used.is(&it.descriptor)))?;
        std::mem::swap(&mut known.spare, &mut used);
        Some(())
    });
}

/// By the bytes where transports put what tells regions apart: the last ones, and some before them.
fn pair_of(bytes: &[u8]) -> Option<usize> {
    let (before, last) = bytes.split_last_chunk::<8>()?;
    let (_, before) = before.split_last_chunk::<8>()?;
    let mixed = u64::from_le_bytes(*last) ^ u64::from_le_bytes(*before).rotate_left(32);
    let hash = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(hash >> (u64::BITS - PAIRS.ilog2())).ok()
}

const PAIRS: usize = PLACES / 2;

const _: () = assert!(PAIRS.is_power_of_two());

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use hg_na::{Descriptor as Region, Rights};
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::*;

    fn descriptor(token: u64) -> Descriptor {
        let region = Region::new(8, Rights::READ, &token.to_le_bytes());
        Descriptor::of_regions(Rights::READ, "sm", None, vec![region])
    }

    #[test]
    fn the_same_bytes_are_read_once_and_others_again() {
        let count = Cell::new(0);
        let again = |it: &Descriptor| {
            let seen = read(it.as_bytes(), |bytes| {
                count.set(count.get() + 1);
                Descriptor::decode_any(bytes).ok()
            });
            assert_eq!(seen.as_ref(), Some(it));
            count.get()
        };
        let (one, other) = (descriptor(1), descriptor(2));
        assert_eq!((again(&one), again(&one), again(&one)), (1, 1, 1));
        assert_eq!((again(&other), again(&other)), (2, 2));
    }

    #[test]
    fn two_that_share_a_pair_are_remembered_and_a_third_makes_the_older_one_go() {
        let first = descriptor(0);
        let pair = pair_of(first.as_bytes());
        let mut others = (1..).map(descriptor).filter(|it| pair_of(it.as_bytes()) == pair);
        let (second, third) = (others.next().unwrap(), others.next().unwrap());
        let count = Cell::new(0);
        let counted = |it: &Descriptor| {
            let seen = read(it.as_bytes(), |bytes| {
                count.set(count.get() + 1);
                Descriptor::decode_any(bytes).ok()
            });
            assert_eq!(seen.as_ref(), Some(it));
            count.get()
        };
        for _ in 0..3 {
            assert_eq!((counted(&first).min(1), counted(&second)), (1, 2));
        }
        assert_eq!((counted(&third), counted(&second), counted(&third)), (3, 3, 3));
        assert_eq!((counted(&first), counted(&third), counted(&second)), (4, 4, 5));
    }

    #[test]
    fn one_that_is_given_back_is_what_its_bytes_are_read_as_once() {
        let sent = descriptor(1_000);
        let decode = || Descriptor::decode(sent.as_bytes()).unwrap();
        let first = decode();
        assert_eq!(first.holders(), 2);
        for _ in 0..2 {
            give_back(decode());
            assert_eq!(first.holders(), 3);
            let (second, third) = (decode(), decode());
            assert!(second.is(&first) && third.is(&first));
            assert_eq!(first.holders(), 4);
            give_back(second);
            give_back(third);
            assert_eq!(first.holders(), 3);
            drop(decode());
            assert_eq!(first.holders(), 2);
        }
    }

    #[test]
    fn one_that_was_not_read_here_is_dropped_when_it_is_given_back() {
        let sent = descriptor(1_001);
        give_back(sent.clone());
        let read = Descriptor::decode(sent.as_bytes()).unwrap();
        give_back(sent.clone());
        assert_eq!((sent.holders(), read.holders()), (1, 2));
    }

    #[test]
    fn what_means_nothing_is_not_remembered() {
        let bytes = [7; 40];
        let count = Cell::new(0);
        for _ in 0..3 {
            let nothing = read(&bytes, |_| {
                count.set(count.get() + 1);
                None
            });
            assert!(nothing.is_none());
        }
        assert_eq!(count.get(), 3);
        assert!(read(&[], |_| None).is_none());
    }

    #[test]
    fn no_bit_of_one_that_is_remembered_can_be_another_unnoticed() {
        let good = descriptor(7);
        let mut bytes = good.as_bytes().to_vec();
        for at in 0..8 * bytes.len() {
            assert_eq!(Descriptor::decode(good.as_bytes()).unwrap(), good);
            bytes[at / 8] ^= 1 << (at % 8);
            for _ in 0..2 {
                match (Descriptor::decode(&bytes), Descriptor::decode_any(&bytes)) {
                    (Ok(seen), Ok(wanted)) => {
                        assert_eq!(seen.as_bytes(), bytes);
                        assert_eq!((seen.rights(), seen.len()), (wanted.rights(), wanted.len()));
                        assert_eq!(seen.regions(), wanted.regions());
                    }
                    (seen, wanted) => assert_eq!(seen.is_ok(), wanted.is_ok(), "bit {at}"),
                }
            }
            bytes[at / 8] ^= 1 << (at % 8);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn however_they_follow_one_another_each_is_read_as_what_it_is(
            tokens in proptest::collection::vec(0_u64..300, 1..600),
        ) {
            for token in tokens {
                let wanted = descriptor(token);
                let seen = Descriptor::decode(wanted.as_bytes()).unwrap();
                prop_assert_eq!(seen.regions(), wanted.regions());
                prop_assert_eq!(seen, wanted);
            }
        }
    }
}
