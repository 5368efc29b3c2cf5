//! The descriptor of a region that stands in several plugins: one part for each, by scheme.
//!
//! # Layout of the plugin's bytes (little-endian)
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | check: of everything below; a changed byte always changes it |
//! | 8 | 1 | [`MARK`] |
//! | 9 | ... | the parts: length of the scheme (1), length of the bytes (1), scheme, bytes |
//!
//! The check guards against bugs, in the part that is not used as well; against malice each part has its
//! own token, and checks size and rights. A descriptor that is damaged is no joint one, so that its plugin refuses it as a whole.

use std::ops::Range;

use crate::{DESCRIPTOR_MAX, Descriptor, Error, Rights};

/// Says that parts follow.
const MARK: u8 = b'J';
const CHECK_LEN: usize = 8;

impl Descriptor {
    /// A descriptor of the same region in several plugins: `parts` by scheme.
    ///
    /// # Errors
    /// [`Error::Limit`] when they are too long together.
    pub fn joint(len: u64, rights: Rights, parts: &[(&str, &Descriptor)]) -> Result<Self, Error> {
        let what = "bytes of a descriptor with several parts";
        let remedy = "route between transports with shorter descriptors";
        let limit = Error::Limit { what, limit: DESCRIPTOR_MAX as u64, remedy };
        let mut body = vec![MARK];
        for (scheme, part) in parts {
            let short = |len: usize| u8::try_from(len).map_err(|_| limit.clone());
            body.extend([short(scheme.len())?, short(part.opaque().len())?]);
            body.extend(scheme.as_bytes());
            body.extend(part.opaque());
        }
        if CHECK_LEN + body.len() > DESCRIPTOR_MAX {
            return Err(limit);
        }
        let check = check(&body).to_le_bytes();
        Ok(Self::new(len, rights, &[&check[..], &body].concat()))
    }

    /// Whether it may be one of several parts. Most are not, and are not asked for the one of a scheme that has to be found
    /// out first.
    #[inline]
    #[must_use]
    pub fn may_be_joint(&self) -> bool {
        self.opaque().get(CHECK_LEN) == Some(&MARK)
    }

    /// The part for one plugin; `None` when this is no joint descriptor, or has none for it.
    #[must_use]
    pub fn part_for(&self, scheme: &str) -> Option<Self> {
        self.part(self.find(scheme)?)
    }

    fn find(&self, scheme: &str) -> Option<Range<usize>> {
        let bytes = self.opaque();
        let (claimed, body) = bytes.split_first_chunk::<CHECK_LEN>()?;
        if body.first() != Some(&MARK) || check(body) != u64::from_le_bytes(*claimed) {
            return None;
        }
        let mut at = CHECK_LEN + 1;
        while let [scheme_len, len] = *bytes.get(at..at + 2)? {
            let start = at + 2 + usize::from(scheme_len);
            let end = start + usize::from(len);
            if bytes.get(at + 2..start)? == scheme.as_bytes() {
                return Some(start..end);
            }
            at = end;
        }
        None
    }
}

/// Each step is a bijection of what came before, so one changed word cannot cancel out. Eight bytes a step:
/// this is asked at each transfer.
fn check(body: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 32)
    };
    let mut hash = body.len() as u64;
    let (words, rest) = body.as_chunks::<8>();
    for word in words {
        hash = step(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    step(hash, u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joint() -> Descriptor {
        let one = Descriptor::new(77, Rights::READ, b"shared memory");
        let two = Descriptor::new(77, Rights::READ, b"network");
        Descriptor::joint(77, Rights::READ, &[("sm", &one), ("tcp", &two)]).unwrap()
    }

    #[test]
    fn each_plugin_finds_its_part() {
        let joint = Descriptor::decode(&joint().encode()).unwrap();
        assert_eq!(joint.part_for("sm").unwrap().opaque(), b"shared memory");
        assert!(joint.may_be_joint());
        assert!(!Descriptor::new(77, Rights::READ, b"memory").may_be_joint());
        let part = joint.part_for("tcp").unwrap();
        assert_eq!(part, Descriptor::new(77, Rights::READ, b"network"));
        assert!(joint.part_for("ofi").is_none() && part.part_for("tcp").is_none());
    }

    #[test]
    fn one_wrong_bit_anywhere_leaves_no_part() {
        let bytes = joint().opaque().to_vec();
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let wrong = Descriptor::new(77, Rights::READ, &wrong);
            assert!(wrong.part_for("sm").is_none() && wrong.part_for("tcp").is_none(), "{bit}");
        }
    }

    #[test]
    fn parts_that_claim_to_be_longer_than_they_are_end_the_search() {
        for tail in [&[][..], &[1], &[2, 200, b's', b'm'], &[255, 0], &[2, 0, b's', b'm']] {
            let body = [&[MARK], tail].concat();
            let check = check(&body).to_le_bytes();
            let descriptor = Descriptor::new(1, Rights::READ, &[&check[..], &body].concat());
            let part = descriptor.part_for("sm");
            assert_eq!(part.is_some(), tail == [2, 0, b's', b'm'], "{tail:?}");
        }
        let long = Descriptor::new(1, Rights::READ, &[0; DESCRIPTOR_MAX]);
        assert!(Descriptor::joint(1, Rights::READ, &[("sm", &long)]).is_err());
    }
}
