//! What two ends say to each other before the first frame.
//!
//! # Layout (little-endian)
//! | offset | size | field |
//! |-------:|-----:|-------|
//! |      0 |    6 | magic, `HG-TCP` |
//! |      6 |    1 | version, 4 |
//! |      7 |    1 | kind, see [`Greeting`] |
//! |      8 |    2 | length of the body, at most [`BODY_MAX`] |
//! |     10 |  ... | body |
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 Hello | the end that dialled | incarnation 16, nonce of the connection 16, context 1, flags 1 (1: insists, 2: knows), announced address (may be empty) |
//! | 2 Welcome | the end that accepted | incarnation 16 |
//! | 3 Refuse | either | a sentence |
//! | 4 Superseded | the end that accepted | 8: which connection between the two contexts is used instead ([`Promise`]) |
//! | 5, 6 Noise | dialled, accepted | the two messages of the key exchange, before everything else |

use std::hash::Hasher as _;

/// Longest body.
pub(crate) const BODY_MAX: usize = 1024;
/// Bytes before the body.
pub(crate) const PREFIX: usize = 10;
/// Longest sentence of a refusal that is read or sent.
const SENTENCE_MAX: usize = 256;

/// Binds a key to this protocol.
pub(crate) const PROTOCOL: &[u8] = b"hydrargyrum tcp 1";
const MAGIC: &[u8; 6] = b"HG-TCP";
const VERSION: u8 = 4;

/// Names one opening of one context.
pub(crate) type Incarnation = [u8; 16];

/// Names a connection to its two ends, and to nobody else: random, chosen by the end that dials.
pub(crate) type Nonce = [u8; 16];

/// A connection that is to be used instead of the one called `asking`. Whoever has not made or accepted it learns nothing of it
/// here, and cannot say the same to anybody who asks by another nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) asking: Nonce,
    /// SipHash-2-4 of `asking`, with the nonce of the promised connection for its key.
    pub(crate) proof: [u8; 8],
}

impl Promise {
    /// Of the connection called `nonce`.
    pub(crate) fn of(nonce: Nonce, asking: Nonce) -> Self {
        let half = |at| u64::from_le_bytes(std::array::from_fn(|byte| nonce[at + byte]));
        #[expect(
            deprecated,
            reason = "of the standard library's hashes the one that is the same everywhere"
        )]
        let mut hasher = std::hash::SipHasher::new_with_keys(half(0), half(8));
        hasher.write(&asking);
        Self { asking, proof: hasher.finish().to_le_bytes() }
    }

    /// Whether it is of the connection called so.
    pub(crate) fn is_of(&self, nonce: Nonce) -> bool {
        *self == Self::of(nonce, self.asking)
    }
}

/// The first word of the end that dialled. All of it is a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The sender's context.
    pub(crate) incarnation: Incarnation,
    /// Of this connection.
    pub(crate) nonce: Nonce,
    /// Which context of the receiver's is meant.
    pub(crate) context: u8,
    /// Wants a connection of its own although another exists.
    pub(crate) insists: bool,
    /// Has accepted a connection that claims to come from the receiver.
    pub(crate) knows: bool,
    /// Where the sender listens; empty where it does not.
    pub(crate) address: String,
}

/// One message of the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Greeting {
    Hello(Hello),
    Welcome(Incarnation),
    Refuse(String),
    /// The proof of a [`Promise`].
    Superseded([u8; 8]),
    NoiseFirst(Vec<u8>),
    NoiseSecond(Vec<u8>),
}

impl Greeting {
    /// The wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(hello) => {
                let mut body = hello.incarnation.to_vec();
                let flags = u8::from(hello.insists) | u8::from(hello.knows) << 1;
                body.extend(hello.nonce);
                body.extend([hello.context, flags]);
                body.extend(hello.address.bytes());
                (1, body)
            }
            Self::Welcome(incarnation) => (2, incarnation.to_vec()),
            Self::Refuse(sentence) => (3, bounded(sentence).into_bytes()),
            Self::Superseded(proof) => (4, proof.to_vec()),
            Self::NoiseFirst(bytes) => (5, bytes.clone()),
            Self::NoiseSecond(bytes) => (6, bytes.clone()),
        };
        let len = u16::try_from(body.len()).expect("a greeting is short: an address has 512 bytes");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind]);
        bytes.extend(len.to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// Reads one greeting off the front: it and its length, or `None` while it is not whole.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let shown = bytes.len().min(MAGIC.len());
        if bytes[..shown] != MAGIC[..shown] {
            return Err("the other end does not speak this protocol");
        }
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let [.., version, kind, len_0, len_1] = *prefix;
        if version != VERSION {
            return Err("the other end speaks another version of this protocol");
        }
        let len = usize::from(u16::from_le_bytes([len_0, len_1]));
        if len > BODY_MAX {
            return Err("a greeting that is too long");
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let greeting = Self::decode_body(kind, body).ok_or("a greeting that makes no sense")?;
        Ok(Some((greeting, PREFIX + len)))
    }

    fn decode_body(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            1 => {
                let (incarnation, rest) = body.split_first_chunk::<16>()?;
                let (nonce, rest) = rest.split_first_chunk::<16>()?;
                let ([context, flags], address) = rest.split_first_chunk::<2>()?;
                let address = std::str::from_utf8(address).ok()?;
                let proper = *flags <= 3
                    && address.len() <= hg_na::ADDRESS_MAX
                    && address.bytes().all(|byte| byte.is_ascii_graphic());
                proper.then(|| {
                    Self::Hello(Hello {
                        incarnation: *incarnation,
                        nonce: *nonce,
                        context: *context,
                        insists: flags & 1 != 0,
                        knows: flags & 2 != 0,
                        address: address.to_owned(),
                    })
                })
            }
            2 => Some(Self::Welcome(body.try_into().ok()?)),
            3 => Some(Self::Refuse(sentence(body))),
            4 => Some(Self::Superseded(body.try_into().ok()?)),
            5 => Some(Self::NoiseFirst(body.to_vec())),
            6 => Some(Self::NoiseSecond(body.to_vec())),
            _ => None,
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(char::is_ascii).take(SENTENCE_MAX).collect()
}

/// A stranger's words, fit to be shown.
fn sentence(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(SENTENCE_MAX)]).into_owned();
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

    use super::*;

    fn all() -> Vec<Greeting> {
        let hello = |address: &str| {
            Greeting::Hello(Hello {
                incarnation: [7; 16],
                nonce: [8; 16],
                context: 3,
                insists: true,
                knows: false,
                address: address.to_owned(),
            })
        };
        vec![
            hello(""),
            hello("tcp://a:1/3"),
            Greeting::Welcome([9; 16]),
            Greeting::Refuse("no context 3 is open here".to_owned()),
            Greeting::Superseded([5; 8]),
            Greeting::NoiseFirst(vec![1; 48]),
            Greeting::NoiseSecond(vec![]),
        ]
    }

    #[test]
    fn every_greeting_survives_its_wire_form_and_waits_for_its_end() {
        for greeting in all() {
            let mut bytes = greeting.encode();
            for len in 0..bytes.len() {
                assert_eq!(Greeting::decode(&bytes[..len]), Ok(None), "{greeting:?} {len}");
            }
            let len = bytes.len();
            bytes.push(1);
            assert_eq!(Greeting::decode(&bytes), Ok(Some((greeting, len))));
        }
    }

    #[test]
    fn a_promise_is_of_one_connection_and_the_same_in_every_build() {
        let nonce = std::array::from_fn(|byte| u8::try_from(byte).unwrap());
        let promise = Promise::of(nonce, nonce);
        // The paper's own vector.
        assert_eq!(promise.proof, [0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f]);
        assert!(promise.is_of(nonce) && !promise.is_of([7; 16]));
        assert!(!Promise { asking: [7; 16], ..promise }.is_of(nonce));
    }

    #[test]
    fn strangers_are_told_from_the_first_wrong_byte_on() {
        assert!(Greeting::decode(b"G").is_err());
        assert!(Greeting::decode(b"GET / HTTP/1.1").is_err());
        let mut other = Greeting::Welcome([0; 16]).encode();
        other[6] = 9;
        assert!(Greeting::decode(&other).unwrap_err().contains("version"));
        other[6] = VERSION;
        other[8..10].copy_from_slice(&2000u16.to_le_bytes());
        assert!(Greeting::decode(&other).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_input_does_harm(kind in 0u8..9, body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = Greeting::Welcome([0; 16]).encode();
            bytes.truncate(PREFIX);
            bytes[7] = kind;
            bytes[8..10].copy_from_slice(&u16::try_from(body.len()).unwrap().to_le_bytes());
            bytes.extend(&body);
            if let Ok(Some((_, used))) = Greeting::decode(&bytes) {
                prop_assert!(used == bytes.len());
            }
        }
    }
}
