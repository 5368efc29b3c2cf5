//! What travels beside what [`hg_na_link`] says: the key of each frame, and the greeting. The other side's numbers are claims until they are
//! checked.
//!
//! A frame is a [`hg_na_link::Header`], which names the connection's place in the receiver's table, then 8 bytes: a random key, which the
//! receiver gave to this sender, and to nobody else; then the bytes.

use hg_na_link::frame::Reader;

/// Bytes of a key.
pub(crate) const KEY: usize = 8;
const MAGIC: [u8; 8] = *b"hg-ofi\x00\x04";

/// The key that stands behind a header, and what follows.
pub(crate) fn key_of(rest: &[u8]) -> Option<(u64, &[u8])> {
    let (key, content) = rest.split_first_chunk::<KEY>()?;
    Some((u64::from_le_bytes(*key), content))
}

/// What each side tells the other first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Place of this connection in the greeter's table.
    pub(crate) link: u32,
    /// What frames for it must carry.
    pub(crate) key: u64,
    /// Longest frame that it takes.
    pub(crate) frame: u32,
    /// Whether it moves memory from and to what others lend it ([`Kind::GetLent`]).
    pub(crate) one_sided: bool,
    /// Its provider, and how it is used; both sides need the same.
    pub(crate) provider: String,
    /// The address of its endpoint.
    pub(crate) name: Vec<u8>,
}

impl hg_na_link::Greeting for Greeting {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(MAGIC);
        into.extend(self.link.to_le_bytes());
        into.extend(self.key.to_le_bytes());
        into.extend(self.frame.to_le_bytes());
        into.extend(u32::from(self.one_sided).to_le_bytes());
        for text in [self.provider.as_bytes(), &self.name] {
            let len = u16::try_from(text.len()).expect("names are short");
            into.extend(len.to_le_bytes());
            into.extend(text);
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array::<8>()? != MAGIC {
            return None;
        }
        let (link, key, frame) = (reader.u32()?, reader.u64()?, reader.u32()?);
        let one_sided = reader.u32()? & 1 != 0;
        let provider = String::from_utf8(reader.counted()?.to_vec()).ok()?;
        let name = reader.counted()?.to_vec();
        reader.0.is_empty().then_some(Self { link, key, frame, one_sided, provider, name })
    }
}

#[cfg(test)]
mod tests {
    use hg_na_link::Greeting as _;

    use super::*;

    #[test]
    fn greetings_survive_their_wire_form_and_others_are_refused() {
        let greeting = Greeting {
            link: 7,
            key: 1 << 63,
            frame: 4096,
            one_sided: true,
            provider: "shm".into(),
            name: vec![1, 2, 3],
        };
        let mut bytes = Vec::new();
        greeting.encode(&mut bytes);
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        assert_eq!(Greeting::decode(&bytes[1..]), None);
        assert_eq!(Greeting::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Greeting::decode(&[&bytes[..], b"x"].concat()), None);
    }

    #[test]
    fn the_seeds_of_the_fuzz_target_speak_this_version() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/ofi_lifeline");
        for seed in ["hello", "welcome", "keys", "keys_twice"] {
            // The first byte says where the rest is cut.
            let mut said = std::fs::read(folder.join(seed)).unwrap().split_off(1);
            let record = hg_na_link::Record::<Greeting>::take(&mut said);
            assert!(matches!(record, Ok(Some(_))), "{seed}: {record:?}");
        }
    }
}
