//! What is said over the socket of a connection: the handshake, and mappings. What is decoded is bounded, and a claim until it
//! is checked.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | magic | `HgSm` |
//! | 4 | 4 | version | of everything below, and of the segments ([`VERSION`]) |
//! | 8 | 4 | kind | as in the next table |
//! | 12 | 4 | length | bytes that follow these 16 |
//!
//! | kind | what follows | descriptors |
//! |---|---|---|
//! | 1 Hello, 2 Welcome | incarnation (16 random bytes; another one is another peer) | [`GREETING_FDS`]: segment, region table, and the eventfd that their receiver rings to wake their sender |
//! | 3 Refuse | a sentence in UTF-8, at most [`SENTENCE_MAX`] bytes | |
//! | 4 Map | index and generation (4 each) of a region, its proof (16) | |
//! | 5 Mapped | index, generation, status (4) | the memfd, with status 0 |
//! | 6 Unmap | index, generation | |
//! | 7 Ring | | |
//!
//! Magic, kind 3, length and sentence keep their places in every version, so that an older side can read why it is refused. How
//! long segments and tables are goes by the version; a memfd of another size is refused when it is mapped.

use hg_na::GoneReason;

use crate::descriptor::RegionName;

/// The version that this code speaks.
pub(crate) const VERSION: u32 = 8;

/// Descriptors of a Hello or a Welcome: segment, region table, doorbell.
pub(crate) const GREETING_FDS: usize = 3;

/// Longest sentence of a Refuse in bytes.
const SENTENCE_MAX: usize = 256;

/// The sentence of a connection that was closed in good order.
pub(crate) const GOODBYE: &str = "closed in good order";

/// Longest packet in bytes: the buffer to receive into. What follows a header is a sentence, or shorter.
pub(crate) const PACKET_MAX: usize = 16 + SENTENCE_MAX;

const MAGIC: [u8; 4] = *b"HgSm";
const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const REFUSE: u32 = 3;
const MAP: u32 = 4;
const MAPPED: u32 = 5;
const UNMAP: u32 = 6;
const RING: u32 = 7;

/// What an owner answers who was asked for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Here it is.
    Given = 0,
    /// No such region (any more), or not of this kind.
    NoSuch = 1,
    /// The system does not let it pass the descriptor on.
    NoDescriptor = 2,
}

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Packet {
    /// From the side that connects: its incarnation.
    Hello([u8; 16]),
    /// The answer to it.
    Welcome([u8; 16]),
    /// No connection, or none any more, and why: for the user of the other side.
    Refuse(String),
    /// From an initiator: send me the memory of this region.
    Map(RegionName, [u8; 16]),
    /// The answer.
    Mapped(RegionName, Status),
    /// From an owner: the region is unregistered.
    Unmap(RegionName),
    /// In place of the doorbell. All other packets ring, too.
    Ring,
}

impl Packet {
    /// The wire form. A sentence that is too long is cut.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let named = |name: &RegionName, rest: &[u8]| {
            let words = [name.index, name.generation].map(u32::to_le_bytes);
            [words.as_flattened(), rest].concat()
        };
        let (kind, body) = match self {
            Self::Hello(incarnation) => (HELLO, incarnation.to_vec()),
            Self::Welcome(incarnation) => (WELCOME, incarnation.to_vec()),
            Self::Refuse(sentence) => {
                (REFUSE, sentence[..sentence.floor_char_boundary(SENTENCE_MAX)].into())
            }
            Self::Map(name, proof) => (MAP, named(name, proof)),
            Self::Mapped(name, status) => (MAPPED, named(name, &(*status as u32).to_le_bytes())),
            Self::Unmap(name) => (UNMAP, named(name, &[])),
            Self::Ring => (RING, Vec::new()),
        };
        let len = u32::try_from(body.len()).expect("a packet is short");
        let words = [VERSION, kind, len].map(u32::to_le_bytes);
        [&MAGIC, words.as_flattened(), &body].concat()
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`GoneReason::Refused`]: the other side speaks another version; [`GoneReason::Misbehaved`]: it breaks the layout.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, GoneReason> {
        let malformed = |why| GoneReason::Misbehaved(format!("what it says {why}").into());
        let mut reader = Reader(bytes);
        if reader.take() != Some(MAGIC) {
            return Err(malformed("does not start with the magic bytes"));
        }
        let mut word = || reader.u32().ok_or_else(|| malformed("is cut short"));
        let (version, kind, len) = (word()?, word()?, word()?);
        if usize::try_from(len).ok() != Some(reader.0.len()) {
            return Err(malformed("has another length than it tells"));
        }
        if kind != REFUSE && version != VERSION {
            let versions = format!(
                "the two were built from different versions of Hydrargyrum: its shared-memory protocol has version {version} at one side, {VERSION} at the other"
            );
            return Err(GoneReason::Refused(versions.into()));
        }
        let packet = reader.body(kind).filter(|_| reader.0.is_empty());
        packet.ok_or_else(|| malformed("is none of the protocol's sentences"))
    }
}

/// Reads from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn body(&mut self, kind: u32) -> Option<Packet> {
        Some(match kind {
            HELLO => Packet::Hello(self.take()?),
            WELCOME => Packet::Welcome(self.take()?),
            REFUSE => Packet::Refuse(self.sentence()?),
            MAP => Packet::Map(self.name()?, self.take()?),
            MAPPED => Packet::Mapped(self.name()?, self.status()?),
            UNMAP => Packet::Unmap(self.name()?),
            RING => Packet::Ring,
            _ => return None,
        })
    }

    /// Printable, so that it may be shown to a user as it is.
    fn sentence(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.0);
        let sentence = str::from_utf8(bytes).ok().filter(|text| text.len() <= SENTENCE_MAX)?;
        Some(sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    fn name(&mut self) -> Option<RegionName> {
        Some(RegionName { index: self.u32()?, generation: self.u32()? })
    }

    fn status(&mut self) -> Option<Status> {
        let all = [Status::Given, Status::NoSuch, Status::NoDescriptor];
        all.get(usize::try_from(self.u32()?).ok()?).copied()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn the_fields_lie_where_the_table_says() {
        let bytes = Packet::Hello([7; 16]).encode();
        assert_eq!((&bytes[..4], &bytes[8..12]), (&b"HgSm"[..], &[1, 0, 0, 0][..]));
        assert_eq!(bytes[16..], [7; 16]);
        let map = Packet::Map(RegionName { index: 3, generation: 5 }, [9; 16]).encode();
        assert_eq!(map[16..24], [3, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(map[24..], [9; 16]);
    }

    #[test]
    fn another_version_is_named_but_its_refusal_can_be_read() {
        let mut hello = Packet::Hello([7; 16]).encode();
        hello[4] = 9;
        let refused = Packet::decode(&hello);
        let names_both = |why: &str| why.contains("version 9 at one side, 8 at the other");
        assert!(
            matches!(&refused, Err(GoneReason::Refused(why)) if names_both(why)),
            "{refused:?}"
        );
        let mut refuse = Packet::Refuse("no".to_owned()).encode();
        refuse[4] = 9;
        assert_eq!(Packet::decode(&refuse), Ok(Packet::Refuse("no".to_owned())));
    }

    #[test]
    fn a_long_sentence_is_cut_at_a_character() {
        let long = "\u{e9}".repeat(SENTENCE_MAX);
        let decoded = Packet::decode(&Packet::Refuse(long).encode()).unwrap();
        assert_eq!(decoded, Packet::Refuse("\u{e9}".repeat(SENTENCE_MAX / 2)));
        let mut longer = Packet::Refuse("x".repeat(SENTENCE_MAX)).encode();
        longer[12..16].copy_from_slice(&257_u32.to_le_bytes());
        longer.push(b'x');
        assert!(Packet::decode(&longer).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_packet_survives_its_wire_form(
            index: u32, generation: u32, random: [u8; 16], kind in 0..9, sentence in "[ -~]{0,256}",
        ) {
            let name = RegionName { index, generation };
            let packet = match kind {
                0 => Packet::Map(name, random),
                1 => Packet::Mapped(name, Status::Given),
                2 => Packet::Mapped(name, Status::NoSuch),
                3 => Packet::Mapped(name, Status::NoDescriptor),
                4 => Packet::Unmap(name),
                5 => Packet::Hello(random),
                6 => Packet::Welcome(random),
                7 => Packet::Ring,
                _ => Packet::Refuse(sentence),
            };
            let bytes = packet.encode();
            prop_assert!(bytes.len() <= PACKET_MAX);
            prop_assert_eq!(Packet::decode(&bytes), Ok(packet));
            for len in 0..bytes.len() {
                prop_assert!(Packet::decode(&bytes[..len]).is_err());
            }
            prop_assert!(Packet::decode(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn damaged_and_other_bytes_never_panic(
            place in 0_usize..32, value: u8, tail in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = Packet::Hello([7; 16]).encode();
            bytes[place] = value;
            bytes.truncate(place + 1 + tail.len());
            for bytes in [bytes, tail] {
                if let Ok(packet) = Packet::decode(&bytes) {
                    prop_assert!(packet.encode().len() <= PACKET_MAX);
                }
            }
        }
    }
}
