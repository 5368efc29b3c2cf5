//! Encryption between socket and frames: Noise with a pre-shared key, `NNpsk0`.
//!
//! Two messages, which the transport carries, prove that both ends have the key and agree on
//! fresh keys for each direction. Everything after them travels in records:
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

use super::Key;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const TAG: usize = 16;
/// Longest plaintext of a record: Noise messages have 65,535 bytes at most.
pub const RECORD_MAX: usize = 65_535 - TAG;
const REKEY_BITS: u32 = 16;

/// The key exchange of one connection.
pub struct Exchange(Box<HandshakeState>);

impl Exchange {
    /// For the end that dials. The key is good for this protocol alone, whatever else it is used for.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn dialling(key: &Key, protocol: &[u8]) -> Result<Self, Error> {
        Self::of(key, protocol, Builder::build_initiator)
    }

    /// For the end that accepts.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn accepting(key: &Key, protocol: &[u8]) -> Result<Self, Error> {
        Self::of(key, protocol, Builder::build_responder)
    }

    fn of<'k>(
        key: &'k Key,
        protocol: &'k [u8],
        build: impl FnOnce(Builder<'k>) -> Result<HandshakeState, snow::Error>,
    ) -> Result<Self, Error> {
        let state = builder(key, protocol).and_then(build);
        state.map(|state| Self(Box::new(state))).map_err(|error| wrong(&error))
    }

    /// This end's message.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn write(&mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; 256];
        let len = self.0.write_message(&[], &mut bytes).map_err(|error| wrong(&error))?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// The other end's message; false when it does not have the same key.
    pub fn read(&mut self, bytes: &[u8]) -> bool {
        self.0.read_message(bytes, &mut [0; 256]).is_ok_and(|payload| payload == 0)
    }

    /// After both messages.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn finish(self) -> Result<Seal, Error> {
        let state = self.0.into_transport_mode().map_err(|error| wrong(&error))?;
        let (state, partial) = (Box::new(state), Vec::new());
        Ok(Seal { state, partial, longest: RECORD_MAX, sealed: 0, opened: 0 })
    }
}

fn builder<'a>(key: &'a Key, protocol: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    let pattern = PATTERN.parse()?;
    Builder::new(pattern).prologue(protocol)?.psk(0, key.bytes())
}

fn wrong(error: &snow::Error) -> Error {
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
