//! Names: `sm://BODY/CTX` as text, `hydrargyrum/BODY/CTX` as abstract socket.
//!
//! BODY is at most [`BODY_MAX`] of `A-Z a-z 0-9 . _ -`, chosen by the user or generated (process id
//! and 64 random bits). CTX is the decimal id of a context, without leading zeroes; left out, it is 0.
//! There is one spelling for each context, so that equal contexts have equal addresses.

use std::sync::Arc;

use hg_na::{Address, Error};
use hg_na_parts::regions::random;

use crate::descriptor::halves;

/// Longest body in bytes.
pub(crate) const BODY_MAX: usize = 64;

/// The scheme of this plugin.
pub(crate) const SCHEME: &str = "sm";

/// What every socket of this plugin starts with.
const PREFIX: &str = "hydrargyrum/";

/// An abstract socket's address takes 107 bytes behind the leading NUL.
const _: () = assert!(PREFIX.len() + BODY_MAX + "/255".len() <= 107);

/// The name of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(Arc<str>);

/// One context of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// Its domain.
    pub(crate) name: Name,
    /// Its id there.
    pub(crate) context: u8,
}

impl Name {
    /// The name that a URL asks for: `sm://` for a generated one, or `sm://BODY`.
    ///
    /// # Errors
    /// [`Error::BadAddress`], also when it names a context: a domain is opened as a whole.
    pub(crate) fn from_url(url: &Address) -> Result<Self, Error> {
        check_scheme(url)?;
        if url.rest().is_empty() { Self::generate() } else { Self::new(url, url.rest()) }
    }

    /// A name that nobody else has: the process id, then 64 random bits.
    pub(crate) fn generate() -> Result<Self, Error> {
        let [random, _] = halves(random()?);
        Ok(Self(format!("{}-{random:016x}", std::process::id()).into()))
    }

    fn new(address: &Address, body: &str) -> Result<Self, Error> {
        let may = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if (1..=BODY_MAX).contains(&body.len()) && body.bytes().all(may) {
            return Ok(Self(body.into()));
        }
        Err(bad(address, "a name takes 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'"))
    }

    /// The text that names one context.
    pub(crate) fn address(&self, context: u8) -> Address {
        let text = format!("{SCHEME}://{}/{context}", self.0);
        Address::new(&text).expect("a checked name and a number are printable and short")
    }

    /// The abstract socket that one context listens at.
    pub(crate) fn socket_name(&self, context: u8) -> String {
        format!("{PREFIX}{}/{context}", self.0)
    }
}

impl Target {
    /// Reads an address; `sm://BODY` means context 0.
    ///
    /// # Errors
    /// [`Error::BadAddress`] with what is wrong.
    pub(crate) fn parse(address: &Address) -> Result<Self, Error> {
        check_scheme(address)?;
        let (body, context) = match address.rest().split_once('/') {
            Some((body, digits)) => (body, parse_context(address, digits)?),
            None => (address.rest(), 0),
        };
        Ok(Self { name: Name::new(address, body)?, context })
    }
}

fn parse_context(address: &Address, digits: &str) -> Result<u8, Error> {
    let context = digits.parse().ok().filter(|context: &u8| context.to_string() == digits);
    context.ok_or_else(|| bad(address, "behind the '/' stands the id of a context, 0 to 255"))
}

fn check_scheme(address: &Address) -> Result<(), Error> {
    let why = |other| format!("this engine reaches sm:// only; open one with {other}://");
    match address.scheme() {
        SCHEME => Ok(()),
        other => Err(bad(address, &why(other))),
    }
}

fn bad(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.as_str().to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn address(text: &str) -> Address {
        Address::new(text).unwrap()
    }

    #[test]
    fn a_name_without_a_context_means_the_first_one() {
        let target = Target::parse(&address("sm://db")).unwrap();
        assert_eq!(target, Target::parse(&address("sm://db/0")).unwrap());
    }

    #[test]
    fn generated_names_differ_and_are_names() {
        let (one, two) = (Name::generate().unwrap(), Name::from_url(&address("sm://")).unwrap());
        assert_ne!(one, two);
        assert_eq!(Target::parse(&one.address(3)).unwrap(), Target { name: one, context: 3 });
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "tcp://a",
            "sm:///0",
            "sm://a/",
            "sm://a/256",
            "sm://a/01",
            "sm://a/+1",
            "sm://a/0/0",
            "sm://a*b",
        ] {
            let refused = Target::parse(&address(text));
            assert!(matches!(refused, Err(Error::BadAddress { .. })), "{text}: {refused:?}");
        }
        assert!(Name::from_url(&address("sm://a/0")).is_err(), "a domain is opened as a whole");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_name_survives_its_text(body in "[A-Za-z0-9._-]{1,64}", context: u8) {
            let name = Name::from_url(&address(&format!("sm://{body}"))).unwrap();
            let target = Target::parse(&name.address(context)).unwrap();
            prop_assert_eq!(target.context, context);
            prop_assert_eq!(&target.name, &name);
            prop_assert!(name.socket_name(context).len() <= 107);
        }

        #[test]
        fn whatever_parses_has_one_spelling(rest in "[ -~]{0,80}") {
            if let Ok(address) = Address::new(&format!("sm://{rest}"))
                && let Ok(target) = Target::parse(&address)
            {
                let spelled = target.name.address(target.context);
                let same = spelled == address || spelled.as_str() == format!("{address}/0");
                prop_assert!(same, "{address} became {spelled}");
            }
        }
    }
}
