//! The three messages of the handshake. What is decoded is bounded, and a claim until it is checked.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | magic | `HgSm` |
//! | 4 | 4 | version | of everything below, and of the segments ([`VERSION`]) |
//! | 8 | 4 | kind | 1 Hello, 2 Welcome, 3 Refuse |
//! | 12 | 4 | length | bytes that follow these 16 |
//!
//! A Refuse goes on with its sentence in UTF-8, at most [`SENTENCE_MAX`] bytes; magic, kind 3, length and
//! sentence keep their places in every version, so that an older side can read why. The others:
//!
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 16 | 16 | incarnation | random; another one is another peer |
//! | 32 | 4 | context | id of the sender's context, at most 255 |
//! | 36 | ... | address | text, at most [`ADDRESS_MAX`] bytes |
//!
//! How long segments and tables are goes by the version; a memfd of another size is refused when it is mapped.
//! Hello and Welcome carry [`GREETING_FDS`] descriptors: segment, region table, and the eventfd that their receiver rings to
//! wake their sender.

use hg_na::{ADDRESS_MAX, Address, GoneReason};

/// The version that this code speaks.
pub(crate) const VERSION: u32 = 5;

/// Descriptors of a Hello or a Welcome: segment, region table, doorbell.
pub(crate) const GREETING_FDS: usize = 3;

/// Longest sentence of a Refuse in bytes.
pub(crate) const SENTENCE_MAX: usize = 256;

/// Longest message of the handshake in bytes: the buffer to receive into.
pub(crate) const GREETING_MAX: usize = BODY + ADDRESS_MAX;

/// What every message of the socket starts with.
const MAGIC: [u8; 4] = *b"HgSm";
const HEADER: usize = 16;
const BODY: usize = 36;
const KIND_HELLO: u32 = 1;
const KIND_WELCOME: u32 = 2;
const KIND_REFUSE: u32 = 3;

const _: () = assert!(HEADER + SENTENCE_MAX <= GREETING_MAX);

/// What one side says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Random; another one is another peer.
    pub(crate) incarnation: [u8; 16],
    /// Id of the sender's context.
    pub(crate) context: u8,
    /// The sender's address.
    pub(crate) address: Address,
}

/// A message of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// From the side that connects.
    Hello(Hello),
    /// The answer to it.
    Welcome(Hello),
    /// No connection, and why: for the user of the other side.
    Refuse(String),
}

impl Greeting {
    /// The wire form. A sentence that is too long is cut.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(hello) => (KIND_HELLO, hello.encode()),
            Self::Welcome(hello) => (KIND_WELCOME, hello.encode()),
            Self::Refuse(sentence) => (KIND_REFUSE, abridged(sentence).as_bytes().to_vec()),
        };
        framed(kind, &body)
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`GoneReason::Refused`]: the other side speaks another version; [`GoneReason::Misbehaved`]: it breaks the layout.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, GoneReason> {
        let malformed = |why| GoneReason::Misbehaved(format!("its greeting {why}").into());
        let (version, kind, reader) = unframed(bytes).map_err(malformed)?;
        if kind == KIND_REFUSE {
            return decode_sentence(reader.0).map(Self::Refuse).map_err(malformed);
        }
        if version != VERSION {
            let versions = format!(
                "the two were built from different versions of Hydrargyrum: its shared-memory protocol has version {version} at one side, {VERSION} at the other"
            );
            return Err(GoneReason::Refused(versions.into()));
        }
        match kind {
            KIND_HELLO => Hello::decode(reader).map(Self::Hello).map_err(malformed),
            KIND_WELCOME => Hello::decode(reader).map(Self::Welcome).map_err(malformed),
            _ => Err(malformed("is of an unknown kind")),
        }
    }
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let context = u32::from(self.context).to_le_bytes();
        [&self.incarnation, &context[..], self.address.as_str().as_bytes()].concat()
    }

    fn decode(mut reader: Reader<'_>) -> Result<Self, &'static str> {
        let cut = "is cut short";
        let incarnation = reader.take().ok_or(cut)?;
        let context = reader.u32().ok_or(cut)?;
        let context = u8::try_from(context).map_err(|_| "names a context over 255")?;
        let text = str::from_utf8(reader.0).map_err(|_| "has an address that is no text")?;
        let address = Address::new(text).map_err(|_| "has an address that is none")?;
        Ok(Self { incarnation, context, address })
    }
}

/// The sentence of a Refuse: printable, so that it may be shown to a user as it is.
fn decode_sentence(bytes: &[u8]) -> Result<String, &'static str> {
    if bytes.len() > SENTENCE_MAX {
        return Err("refuses at too great length");
    }
    let sentence = str::from_utf8(bytes).map_err(|_| "refuses in bytes that are no text")?;
    Ok(sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// The longest start of a sentence that fits.
fn abridged(sentence: &str) -> &str {
    &sentence[..sentence.floor_char_boundary(SENTENCE_MAX)]
}

/// A message of the socket: its header, then its body.
pub(super) fn framed(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("a message is short");
    let words = [VERSION, kind, len].map(u32::to_le_bytes);
    [&MAGIC, words.as_flattened(), body].concat()
}

/// Version, kind and body of what may be one; or what is wrong with it.
pub(super) fn unframed(bytes: &[u8]) -> Result<(u32, u32, Reader<'_>), &'static str> {
    let mut reader = Reader(bytes);
    if reader.take() != Some(MAGIC) {
        return Err("does not start with the magic bytes");
    }
    let mut word = || reader.u32().ok_or("is cut short");
    let (version, kind, len) = (word()?, word()?, word()?);
    if usize::try_from(len).ok() != Some(reader.0.len()) {
        return Err("has another length than it says");
    }
    Ok((version, kind, reader))
}

/// Reads from the front.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn sample() -> Hello {
        Hello { incarnation: [7; 16], context: 3, address: Address::new("sm://x/3").unwrap() }
    }

    #[test]
    fn the_fields_lie_where_the_table_says() {
        let bytes = Greeting::Hello(sample()).encode();
        assert_eq!(&bytes[..4], b"HgSm");
        assert_eq!(bytes[16..32], [7; 16]);
        assert_eq!(bytes[32..36], 3_u32.to_le_bytes());
        assert_eq!(&bytes[36..], b"sm://x/3");
    }

    #[test]
    fn another_version_is_named_but_its_refusal_can_be_read() {
        let mut hello = Greeting::Hello(sample()).encode();
        hello[4] = 9;
        let refused = Greeting::decode(&hello);
        let names_both = |why: &str| why.contains("version 9 at one side, 5 at the other");
        assert!(
            matches!(&refused, Err(GoneReason::Refused(why)) if names_both(why)),
            "{refused:?}"
        );
        let mut refuse = Greeting::Refuse("no".to_owned()).encode();
        refuse[4] = 9;
        assert_eq!(Greeting::decode(&refuse), Ok(Greeting::Refuse("no".to_owned())));
    }

    #[test]
    fn truncated_and_lengthened_greetings_are_refused() {
        let bytes = Greeting::Welcome(sample()).encode();
        for len in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Greeting::decode(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_long_sentence_is_cut_at_a_character() {
        let long = "\u{e9}".repeat(SENTENCE_MAX);
        let decoded = Greeting::decode(&Greeting::Refuse(long).encode()).unwrap();
        assert_eq!(decoded, Greeting::Refuse("\u{e9}".repeat(SENTENCE_MAX / 2)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_greeting_survives_its_wire_form(
            incarnation: [u8; 16], context: u8, welcome: bool, rest in "[!-~]{0,507}",
        ) {
            let address = Address::new(&format!("sm://{rest}")).unwrap();
            let hello = Hello { incarnation, context, address };
            let greeting = if welcome { Greeting::Welcome(hello) } else { Greeting::Hello(hello) };
            let bytes = greeting.encode();
            prop_assert!(bytes.len() <= GREETING_MAX);
            prop_assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        }

        #[test]
        fn damaged_greetings_never_panic_and_stay_bounded(
            place in 0_usize..44, value: u8, tail in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = Greeting::Hello(sample()).encode();
            bytes[place] = value;
            bytes.truncate(place + 1 + tail.len());
            if let Ok(Greeting::Hello(hello) | Greeting::Welcome(hello)) = Greeting::decode(&bytes) {
                prop_assert!(hello.address.as_str().len() <= ADDRESS_MAX);
            }
            let _whatever = Greeting::decode(&tail);
        }
    }
}
