//! Encryption between socket and frames: Noise with a pre-shared key, `NNpsk0`.
//!
//! Two messages, which the transport carries, prove that both ends have the key and agree on
//! fresh keys for each direction. Before the first one stands a byte that names the [cipher](super::cipher).
//! Everything after them travels in records:
//!
//! | offset | size | field |
//! |-------:|-----:|-------|
//! |      0 |    2 | length of the rest, little-endian, at least 17 |
//! |      2 |  ... | ciphertext and its 16-byte tag |
//!
//! After every 2^[`REKEY_BITS`] records of a direction both ends derive its next key, long before a
//! nonce could come to its end.

use hg_na::Error;
use snow::{Builder, HandshakeState, TransportState};

use super::{
    DIFFER, Key, UNKNOWN,
    cipher::{Resolver, Suite},
};

const TAG: usize = 16;
/// Longest plaintext of a record: Noise messages have 65,535 bytes at most.
pub const RECORD_MAX: usize = 65_535 - TAG;
const REKEY_BITS: u32 = 16;

/// The key exchange of one connection.
pub struct Exchange(Step);

enum Step {
    /// Nothing is known of the first message, which says the suite.
    Awaiting(Key, &'static [u8]),
    /// The suite, while it is still to be said.
    Begun(Box<HandshakeState>, Option<Suite>),
}

impl Exchange {
    /// For the end that dials. The key is good for this protocol alone, whatever else it is used for.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn dialling(key: &Key, protocol: &'static [u8]) -> Result<Self, Error> {
        Self::dialling_in(Suite::here() as u8, key, protocol)
    }

    /// With the cipher of this number, for fuzz targets.
    ///
    /// # Errors
    /// [`Error::Os`].
    #[doc(hidden)]
    pub fn dialling_in(suite: u8, key: &Key, protocol: &'static [u8]) -> Result<Self, Error> {
        let suite = Suite::decode(suite).ok_or_else(|| wrong(&UNKNOWN))?;
        let state = builder(suite, key, protocol).and_then(Builder::build_initiator);
        let state = state.map_err(|error| wrong(&error))?;
        Ok(Self(Step::Begun(Box::new(state), Some(suite))))
    }

    /// For the end that accepts.
    #[must_use]
    pub fn accepting(key: &Key, protocol: &'static [u8]) -> Self {
        Self(Step::Awaiting(key.clone(), protocol))
    }

    /// This end's message.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn write(&mut self) -> Result<Vec<u8>, Error> {
        let Step::Begun(state, suite) = &mut self.0 else {
            unreachable!("the end that dials writes first")
        };
        let mut bytes: Vec<u8> = suite.take().map(|suite| suite as u8).into_iter().collect();
        let start = bytes.len();
        bytes.resize(256, 0);
        let len = state.write_message(&[], &mut bytes[start..]).map_err(|error| wrong(&error))?;
        bytes.truncate(start + len);
        Ok(bytes)
    }

    /// The other end's message.
    ///
    /// # Errors
    /// A sentence to be told to the other end: it does not have the same key, or is of another version.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let mut message = bytes;
        if let Step::Awaiting(key, protocol) = &self.0 {
            let (byte, rest) = bytes.split_first().ok_or(DIFFER)?;
            let suite = Suite::decode(*byte).ok_or(UNKNOWN)?;
            let state = builder(suite, key, protocol).and_then(Builder::build_responder);
            let state = state.map_err(|_| "the key exchange failed")?;
            (self.0, message) = (Step::Begun(Box::new(state), None), rest);
        }
        let Step::Begun(state, _) = &mut self.0 else { unreachable!("begun above") };
        let read = state.read_message(message, &mut [0; 256]);
        if read.is_ok_and(|payload| payload == 0) { Ok(()) } else { Err(DIFFER) }
    }

    /// After both messages.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn finish(self) -> Result<Seal, Error> {
        let Step::Begun(state, _) = self.0 else { unreachable!("both messages come before") };
        let state = state.into_transport_mode();
        let state = Box::new(state.map_err(|error| wrong(&error))?);
        Ok(Seal { state, partial: Vec::new(), longest: RECORD_MAX, sealed: 0, opened: 0 })
    }
}

fn builder<'a>(suite: Suite, key: &'a Key, protocol: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    let pattern = suite.pattern().parse()?;
    Builder::with_resolver(pattern, Box::new(Resolver)).prologue(protocol)?.psk(0, key.bytes())
}

fn wrong(error: &impl ToString) -> Error {
    Error::os("noise", std::io::Error::other(error.to_string()))
}

/// The keys of an open connection.
pub struct Seal {
    state: Box<TransportState>,
    /// The beginning of a record whose rest has not come yet.
    partial: Vec<u8>,
    /// Longest plaintext that is waited for.
    longest: usize,
    /// Records so far.
    sealed: u64,
    opened: u64,
}

impl Seal {
    /// Appends a record with this plaintext.
    ///
    /// # Errors
    /// A sentence; the connection is of no use any more.
    pub fn seal(&mut self, plain: &[u8], into: &mut Vec<u8>) -> Result<(), &'static str> {
        let start = into.len();
        into.resize(start + 2 + plain.len() + TAG, 0);
        let sealed = self.state.write_message(plain, &mut into[start + 2..]);
        let len = sealed.map_err(|_| "a record cannot be sealed")?;
        let len = u16::try_from(len).map_err(|_| "a record is too long")?;
        into[start..start + 2].copy_from_slice(&len.to_le_bytes());
        self.sealed += 1;
        if self.sealed.trailing_zeros() >= REKEY_BITS {
            self.state.rekey_outgoing();
        }
        Ok(())
    }

    /// From now on records with a longer plaintext are refused before they have come.
    pub fn limit(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Bytes of a record whose rest has not come yet.
    #[must_use]
    pub fn partial(&self) -> usize {
        self.partial.len()
    }

    /// Opens the next record of `input`, which is shortened by it; false when more is needed.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(&mut self, input: &mut &[u8], into: &mut Vec<u8>) -> Result<bool, &'static str> {
        if self.partial.is_empty()
            && let Some((len, rest)) = input.split_first_chunk::<2>()
            && let Some((record, rest)) = rest.split_at_checked(record_len(*len, self.longest)?)
        {
            *input = rest;
            return self.open_record(record, into);
        }
        loop {
            let wanted = match self.partial.first_chunk::<2>() {
                None => 2,
                Some(len) => 2 + record_len(*len, self.longest)?,
            };
            let take = (wanted - self.partial.len()).min(input.len());
            let (now, later) = input.split_at(take);
            self.partial.extend_from_slice(now);
            *input = later;
            if self.partial.len() < wanted {
                return Ok(false);
            }
            if wanted > 2 {
                // Its memory is not kept: it may be 64 KiB.
                let record = std::mem::take(&mut self.partial);
                return self.open_record(&record[2..], into);
            }
        }
    }

    fn open_record(&mut self, record: &[u8], into: &mut Vec<u8>) -> Result<bool, &'static str> {
        into.resize(record.len(), 0);
        let opened = self.state.read_message(record, into);
        let len = opened.map_err(|_| "a record that was not made with the connection's key")?;
        into.truncate(len);
        self.opened += 1;
        if self.opened.trailing_zeros() >= REKEY_BITS {
            self.state.rekey_incoming();
        }
        Ok(true)
    }
}

fn record_len(bytes: [u8; 2], longest: usize) -> Result<usize, &'static str> {
    match usize::from(u16::from_le_bytes(bytes)) {
        ..=TAG => Err("a record that is too short"),
        len if len > longest + TAG => Err("a record that is too long"),
        len => Ok(len),
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Exchange(..)")
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Seal({} records sealed, {} opened)", self.sealed, self.opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOL: &[u8] = b"test";
    const SUITES: [Suite; 2] = [Suite::ChaCha, Suite::Aes];

    fn key(byte: u8) -> Key {
        Key::given(&hg_na::Key([byte; 32])).unwrap()
    }

    /// The two ends of a connection: the one that dialled, the one that accepted.
    fn ends(suite: Suite) -> (Seal, Seal) {
        let mut dialling = Exchange::dialling_in(suite as u8, &key(7), PROTOCOL).unwrap();
        let mut accepting = Exchange::accepting(&key(7), PROTOCOL);
        accepting.read(&dialling.write().unwrap()).unwrap();
        dialling.read(&accepting.write().unwrap()).unwrap();
        (dialling.finish().unwrap(), accepting.finish().unwrap())
    }

    #[test]
    fn whatever_the_end_that_dials_chooses_both_directions_go_on_past_a_change_of_keys() {
        for suite in SUITES {
            let (mut one, mut other) = ends(suite);
            let (mut record, mut plain) = (Vec::new(), Vec::new());
            // Each in turn, so that both have sealed and opened more than one key is for.
            for number in 0..(2u64 << REKEY_BITS) + 6 {
                record.clear();
                one.seal(&number.to_le_bytes(), &mut record).unwrap();
                assert_eq!(other.open(&mut &record[..], &mut plain), Ok(true));
                assert_eq!(plain, number.to_le_bytes());
                std::mem::swap(&mut one, &mut other);
            }
        }
    }

    #[test]
    fn when_only_one_end_has_changed_its_keys_nothing_is_opened() {
        const LAST: u64 = (1 << REKEY_BITS) - 1;
        for suite in SUITES {
            for (sealed, opened) in [(0, 0), (LAST, LAST), (LAST, 0), (0, LAST)] {
                let (mut from, mut to) = ends(suite);
                (from.sealed, to.opened) = (sealed, opened);
                let mut open = || {
                    let mut record = Vec::new();
                    from.seal(b"a record", &mut record).unwrap();
                    to.open(&mut &record[..], &mut Vec::new()).is_ok()
                };
                // The keys change behind the first.
                assert_eq!([open(), open()], [true, sealed == opened], "{suite:?}: {sealed}");
            }
        }
    }

    #[test]
    fn a_record_that_is_altered_repeated_left_out_or_of_another_connection_is_not_opened() {
        for suite in SUITES {
            // Two records, and who is to open them.
            let sealed = || {
                let (mut from, to) = ends(suite);
                let mut records = [const { Vec::new() }; 2];
                records.iter_mut().for_each(|it| from.seal(b"a record", it).unwrap());
                (records, to)
            };
            let open = |to: &mut Seal, record: &[u8]| to.open(&mut &*record, &mut Vec::new());
            let ([first, second], mut to) = sealed();
            assert_eq!((open(&mut to, &first), open(&mut to, &second)), (Ok(true), Ok(true)));
            assert!(open(&mut to, &second).is_err(), "repeated");
            assert!(open(&mut sealed().1, &first).is_err(), "of another connection");
            let ([_, second], mut to) = sealed();
            assert!(open(&mut to, &second).is_err(), "the first is left out");
            for at in 0..first.len() {
                let ([mut first, _], mut to) = sealed();
                first[at] ^= 1;
                // Where the length has grown, until what it announces has come.
                first.resize(2 + TAG + RECORD_MAX, 0);
                assert!(open(&mut to, &first).is_err(), "byte {at} is altered");
            }
        }
    }

    #[test]
    fn another_key_and_a_cipher_that_is_not_known_are_told_by_name() {
        for suite in SUITES {
            let first =
                Exchange::dialling_in(suite as u8, &key(7), PROTOCOL).unwrap().write().unwrap();
            let said = |key: &Key, bytes: &[u8]| Exchange::accepting(key, PROTOCOL).read(bytes);
            assert_eq!(said(&key(7), &first), Ok(()));
            assert_eq!(said(&key(8), &first), Err(DIFFER));
            assert_eq!(said(&key(7), &[]), Err(DIFFER));
            let mut other = first.clone();
            other[0] = 2;
            assert_eq!(said(&key(7), &other), Err(UNKNOWN));
            // Nobody on the way chooses.
            other[0] = 1 - first[0];
            assert_eq!(said(&key(7), &other), Err(DIFFER));
        }
    }
}
