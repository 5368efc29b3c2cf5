//! The local plugin's parts of the descriptors that were asked for last.
//!
//! Whoever lends memory again and again sends the same descriptor again and again. Finding a part in it means a look at all
//! of its bytes ([`Descriptor::part_for`]), some 200 instructions a transfer; which part it is never changes.

use hg_na::Descriptor;

/// Descriptors that are remembered, each at one of two places side by side: sixteen that are used in turn nearly always are.
const PLACES: usize = 128;

/// What was found last.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// None before the first one: most contexts are asked for none. Of a pair the newer one comes first.
    pairs: Vec<[Option<Known>; 2]>,
}

#[derive(Debug, Clone)]
struct Known {
    whole: Descriptor,
    part: Descriptor,
}

impl Parts {
    /// The part of a joint descriptor for this scheme, always the same one; `None`: it has none, or is no joint one.
    #[inline]
    pub(crate) fn of(&mut self, whole: &Descriptor, scheme: &str) -> Option<Descriptor> {
        if !whole.may_be_joint() {
            return None;
        }
        let pair = pair_of(whole)?;
        let mut known = self.pairs.get(pair).into_iter().flatten().flatten();
        match known.find(|known| known.whole == *whole) {
            Some(known) => Some(known.part.clone()),
            None => self.find(pair, whole, scheme),
        }
    }

    #[cold]
    fn find(&mut self, pair: usize, whole: &Descriptor, scheme: &str) -> Option<Descriptor> {
        let part = whole.part_for(scheme)?;
        self.pairs.resize(PLACES / 2, [None, None]);
        let pair = &mut self.pairs[pair];
        pair.rotate_right(1);
        pair[0] = Some(Known { whole: whole.clone(), part: part.clone() });
        Some(part)
    }
}

/// By the first bytes, which are a hash of all others.
fn pair_of(whole: &Descriptor) -> Option<usize> {
    Some(usize::from(*whole.opaque().first()?) % (PLACES / 2))
}

#[cfg(test)]
mod tests {
    use hg_na::Rights;
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn joint(number: u64) -> Descriptor {
        let part = |len: usize| {
            let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
            Descriptor::new(number, Rights::READ, &bytes)
        };
        Descriptor::joint(number, Rights::READ, &[("sm", &part(40)), ("tcp", &part(24))]).unwrap()
    }

    #[test]
    fn what_is_no_joint_descriptor_has_no_part_and_is_not_remembered() {
        let mut parts = Parts::default();
        assert!(parts.of(&Descriptor::new(8, Rights::READ, b"memory"), "sm").is_none());
        assert!(parts.of(&Descriptor::new(8, Rights::READ, b"memory__J"), "sm").is_none());
        assert!(parts.pairs.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_the_part_that_a_look_finds_whatever_was_asked_for_before(
            asked in proptest::collection::vec((0_u64..200, 0_usize..800, proptest::bool::ANY), 1..300),
        ) {
            let mut parts = Parts::default();
            for (number, bit, is_damaged) in asked {
                let mut bytes = joint(number).encode();
                let bit = bit % (8 * bytes.len());
                bytes[bit / 8] ^= u8::from(is_damaged) << (bit % 8);
                let Ok(whole) = Descriptor::decode(&bytes) else { continue };
                let (seen, wanted) = (parts.of(&whole, "sm"), whole.part_for("sm"));
                prop_assert_eq!(&seen, &wanted);
                prop_assert!(parts.pairs.len() <= PLACES / 2);
            }
        }
    }
}
