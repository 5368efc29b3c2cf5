//! How a lifeline speaks: in the clear, or sealed with a pre-shared key.
//!
//! ```text
//! dialling end                      accepting end
//!  Keys (Noise NNpsk0)  -------->                    in the clear
//!                       <--------   Keys             in the clear
//!  Hello, ...           <------->   Welcome, ...     sealed: the keys of frames are among it
//! ```
//! Who has another key, or none, is told so in the clear: there is no other way.

use hg_na::Error;
use hg_na_link::{Greeting, Record, record::RECORD_MAX};
use hg_na_parts::key::{Exchange, Key, ONLY_ACCEPTOR, ONLY_DIALLER, Seal};

use crate::cut::Cut;

/// Longest plaintext of a sealed record: one record of the lifeline, with its length. Who only repeats the first word of another has no longer one
/// waited for.
const PLAIN_MAX: usize = 4 + RECORD_MAX;

/// Binds a key to this protocol.
const PROTOCOL: &[u8] = b"hydrargyrum lifeline 1";

/// How a lifeline speaks.
#[derive(Debug)]
pub(crate) enum Secrecy {
    /// There is no key.
    Clear,
    /// The other end's `Keys` are not here; what is to be said behind them waits.
    Exchanging { exchange: Option<Exchange>, dials: bool, waiting: Vec<u8> },
    /// With keys of this connection alone.
    Sealed(Seal),
}

impl Secrecy {
    /// Of a fresh lifeline; the end that dials begins.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new<G: Greeting>(
        key: &Key,
        dials: bool,
        out: &mut Vec<u8>,
    ) -> Result<Self, Error> {
        let exchange = if dials {
            let mut exchange = Exchange::dialling(key, PROTOCOL)?;
            out.extend(Record::<G>::Keys(exchange.write()?).encode());
            exchange
        } else {
            Exchange::accepting(key, PROTOCOL)
        };
        Ok(Self::Exchanging { exchange: Some(exchange), dials, waiting: Vec::new() })
    }

    /// What is said goes to `out`, as soon as it may.
    pub(crate) fn say<G: Greeting>(&mut self, record: &Record<G>, out: &mut Vec<u8>) {
        let bytes = record.encode();
        match self {
            Self::Clear => out.extend(bytes),
            Self::Exchanging { .. } if matches!(record, Record::Refuse(_)) => out.extend(bytes),
            Self::Exchanging { waiting, .. } => waiting.extend(bytes),
            Self::Sealed(seal) => {
                let sealed = seal.seal(&bytes, out);
                debug_assert!(sealed.is_ok(), "a record is short");
            }
        }
    }

    /// Bytes have come: what they say. `input` keeps what is not whole.
    ///
    /// # Errors
    /// What ends the lifeline. Why it is refused goes to `out`.
    pub(crate) fn hear<G: Greeting>(
        &mut self,
        mut bytes: &[u8],
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
        said: &mut Vec<Record<G>>,
    ) -> Result<(), Cut> {
        if let Self::Sealed(seal) = self {
            let mut plain = Vec::new();
            while seal.open(&mut bytes, &mut plain).map_err(Cut::Rubbish)? {
                input.extend(&plain);
            }
            return take_all(input, said, |_| Err(Cut::Rubbish("keys once more")));
        }
        input.extend(bytes);
        if matches!(self, Self::Clear) {
            return take_all(input, said, |_| Err(refused::<G>(ONLY_DIALLER, out)));
        }
        let Some(record) = Record::<G>::take(input).map_err(Cut::Rubbish)? else { return Ok(()) };
        match record {
            Record::Keys(message) => self.exchanged::<G>(&message, out)?,
            Record::Refuse(_) => said.push(record),
            _ => return Err(refused::<G>(ONLY_ACCEPTOR, out)),
        }
        let rest = std::mem::take(input);
        if rest.is_empty() { Ok(()) } else { self.hear(&rest, input, out, said) }
    }

    /// The other end's message: from now on everything is sealed.
    fn exchanged<G: Greeting>(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), Cut> {
        let Self::Exchanging { exchange, dials, waiting } = self else { return Ok(()) };
        let failed = |_| Cut::Rubbish("the key exchange failed");
        let mut exchange = exchange.take().expect("an exchange has two messages");
        exchange.read(message).map_err(|why| refused::<G>(why, out))?;
        if !*dials {
            out.extend(Record::<G>::Keys(exchange.write().map_err(failed)?).encode());
        }
        let mut seal = exchange.finish().map_err(failed)?;
        seal.limit(PLAIN_MAX);
        for plain in waiting.chunks(PLAIN_MAX) {
            seal.seal(plain, out).map_err(Cut::Rubbish)?;
        }
        *self = Self::Sealed(seal);
        Ok(())
    }
}

/// Takes all records that are whole.
fn take_all<G: Greeting>(
    input: &mut Vec<u8>,
    said: &mut Vec<Record<G>>,
    mut keys: impl FnMut(Vec<u8>) -> Result<(), Cut>,
) -> Result<(), Cut> {
    while let Some(record) = Record::take(input).map_err(Cut::Rubbish)? {
        match record {
            Record::Keys(message) => keys(message)?,
            record => said.push(record),
        }
    }
    Ok(())
}

fn refused<G: Greeting>(why: &'static str, out: &mut Vec<u8>) -> Cut {
    out.extend(Record::<G>::Refuse(why.to_owned()).encode());
    Cut::Refused(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Name;

    impl Greeting for Name {
        fn encode(&self, into: &mut Vec<u8>) {
            into.extend([7; 1000]);
        }

        fn decode(_: &[u8]) -> Option<Self> {
            Some(Self)
        }
    }

    #[test]
    fn once_sealed_all_that_was_said_comes_and_no_long_record_is_waited_for() {
        let key = Key::given(&hg_na::Key([7; 32])).unwrap();
        let (mut to, mut back, mut said) = (Vec::new(), Vec::new(), Vec::new());
        let mut dialler = Secrecy::new::<Name>(&key, true, &mut to).unwrap();
        let mut acceptor = Secrecy::new::<Name>(&key, false, &mut back).unwrap();
        for _ in 0..10 {
            dialler.say(&Record::Hello(Name), &mut to);
        }
        let (mut input, first) = (Vec::new(), std::mem::take(&mut to));
        acceptor.hear(&first, &mut input, &mut back, &mut said).unwrap();
        dialler.hear(&back, &mut Vec::new(), &mut to, &mut said).unwrap();
        acceptor.hear(&to, &mut input, &mut back, &mut said).unwrap();
        assert_eq!(said, vec![Record::Hello(Name); 10]);
        let long = acceptor.hear(&u16::MAX.to_le_bytes(), &mut input, &mut back, &mut said);
        assert!(matches!(long, Err(Cut::Rubbish(why)) if why.contains("long")), "{long:?}");
    }
}
