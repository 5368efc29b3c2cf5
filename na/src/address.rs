//! Addresses: URLs that name one context of one process, or all contexts of an engine, and what an engine is opened with.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Error;

/// Longest address in bytes.
pub const ADDRESS_MAX: usize = 512;

/// The scheme of an address with a part for each of several transports: `uid://NODE#sm://...#tcp://...`.
pub const UID: &str = "uid";

/// Between the scheme and the rest.
const MARK: &str = "://";

/// Between the address of an engine's first context and how many it has; stands in no address of a plugin's.
const TIMES: char = '*';

/// Contexts behind one address at most: a byte names each.
const CONTEXTS_MAX: usize = 256;

/// `SCHEME://REST`: the scheme chooses the plugin, the rest is the plugin's.
///
/// A plugin's own address names one context ([`crate::Context::address`]). That of an engine with several is the address of
/// its first one with their number behind it, as in `tcp://host:7000*4` ([`Address::contexts`]): plugins never see it. Cheap to
/// clone; travels in any RPC as a string.
///
/// ```
/// let address: hg_na::Address = "sm://metadata".parse()?;
/// assert_eq!((address.scheme(), address.rest()), ("sm", "metadata"));
/// # Ok::<(), hg_na::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(Arc<str>);

impl Address {
    /// Checks the form `SCHEME://REST`, printable ASCII without spaces, [`ADDRESS_MAX`] bytes.
    ///
    /// # Errors
    /// [`Error::BadAddress`] with what is wrong.
    pub fn new(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::BadAddress { address: abridged(text), why: why.to_owned() };
        if text.len() > ADDRESS_MAX {
            return Err(bad(&format!("it is longer than {ADDRESS_MAX} bytes")));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad("it holds a space, a control character or a non-ASCII character"));
        }
        let Some((scheme, _)) = text.split_once(MARK) else {
            return Err(bad("it needs the form SCHEME://..., for example sm:// or sm://name"));
        };
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-;".contains(&byte);
        if scheme.is_empty() || !scheme.bytes().all(allowed) {
            return Err(bad("the scheme before :// takes only a-z, 0-9, '+', '-' and ';'"));
        }
        Ok(Self(Arc::from(text)))
    }

    /// What chooses the plugin: `sm`, `tcp`, `ofi+tcp`, ...
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.0[..self.mark()]
    }

    /// Everything after `://`; may be empty in a URL that is opened.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.0[self.mark() + MARK.len()..]
    }

    /// Where the mark begins: at the first colon, since a scheme has none. Asked for each transfer, so it is no
    /// search for the whole mark.
    fn mark(&self) -> usize {
        self.0.bytes().position(|byte| byte == b':').expect("checked when it was made")
    }

    /// The part for one transport, when this is an address of several ([`UID`]).
    #[must_use]
    pub fn part(&self, scheme: &str) -> Option<Self> {
        if self.scheme() != UID {
            return None;
        }
        let (_node, parts) = self.rest().split_once('#')?;
        let (parts, count) = parts.split_at(parts.find(TIMES).unwrap_or(parts.len()));
        let is_of = |part: &&str| part.strip_prefix(scheme).is_some_and(|it| it.starts_with("://"));
        let part = parts.split('#').find(is_of)?;
        Self::new(&format!("{part}{count}")).ok()
    }

    /// The address of the first of the contexts behind this one, and how many there are: of `tcp://host:7000*4` these are
    /// `tcp://host:7000` and 4, of any address of one context itself and 1.
    ///
    /// # Errors
    /// [`Error::BadAddress`] where what stands behind the `*` is no number from 1 to 256.
    pub fn contexts(&self) -> Result<(Self, usize), Error> {
        let Some((first, count)) = self.0.rsplit_once(TIMES) else { return Ok((self.clone(), 1)) };
        let is_plain = !count.starts_with(['0', '+']);
        match count.parse() {
            Ok(count @ 1..=CONTEXTS_MAX) if is_plain && !first.contains(TIMES) => {
                Ok((Self::new(first)?, count))
            }
            _ => {
                let why = format!(
                    "behind one '{TIMES}' stands how many contexts there are, 1 to {CONTEXTS_MAX}"
                );
                Err(Error::BadAddress { address: abridged(&self.0), why })
            }
        }
    }

    /// The address of an engine with so many contexts, of which this is the first one's.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when it is too long, or is that of several already.
    pub fn with_contexts(&self, count: usize) -> Result<Self, Error> {
        let all = Self::new(&format!("{self}{TIMES}{count}"))?;
        all.contexts().map(|_| all)
    }

    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn abridged(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

impl FromStr for Address {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_and_rest_are_split_at_the_first_mark() {
        let address = Address::new("ofi+tcp://a#b://c").unwrap();
        assert_eq!((address.scheme(), address.rest()), ("ofi+tcp", "a#b://c"));
    }

    #[test]
    fn parts_are_found_by_their_scheme() {
        let address = Address::new("uid://n#sm://a/0#tcp://[::1]:7").unwrap();
        assert_eq!(address.part("tcp").unwrap().as_str(), "tcp://[::1]:7");
        assert_eq!(address.part("sm").unwrap().as_str(), "sm://a/0");
        assert!(address.part("s").is_none() && address.part("ofi").is_none());
        assert!(Address::new("sm://n#tcp://b").unwrap().part("tcp").is_none());
    }

    #[test]
    fn the_number_of_contexts_stands_behind_the_first_ones_address() {
        for first in ["tcp://[::1]:7", "sm://a/0", "uid://n#sm://a/0#tcp://[::1]:7"] {
            let first = Address::new(first).unwrap();
            assert_eq!(first.contexts().unwrap(), (first.clone(), 1));
            for count in [1, 4, 256] {
                let all = first.with_contexts(count).unwrap();
                assert_eq!(all.as_str(), format!("{first}*{count}"));
                assert_eq!(all.contexts().unwrap(), (first.clone(), count));
                assert!(all.with_contexts(2).is_err(), "it is of several already");
            }
            assert!(Address::new(&format!("{first}*2*2")).unwrap().contexts().is_err(), "two");
            for count in [0, 257] {
                assert!(first.with_contexts(count).is_err(), "{count}");
            }
            for count in
                ["", "0", "04", "+4", "-1", "257", "999", "x", "4x", "99999999999999999999"]
            {
                let refused = Address::new(&format!("{first}*{count}")).unwrap().contexts();
                let why = refused.unwrap_err().to_string();
                assert!(why.contains("how many contexts there are, 1 to 256"), "{why}");
            }
        }
        assert!(Address::new(&"x://".repeat(128)).unwrap().with_contexts(2).is_err(), "too long");
    }

    #[test]
    fn parts_of_several_contexts_are_of_as_many() {
        let address = Address::new("uid://n#sm://a/0#tcp://[::1]:7*3").unwrap();
        assert_eq!(address.part("tcp").unwrap().as_str(), "tcp://[::1]:7*3");
        assert_eq!(address.part("sm").unwrap().as_str(), "sm://a/0*3");
    }

    #[test]
    fn malformed_addresses_are_refused_with_a_reason() {
        for text in ["", "sm", "sm:/x", "://x", "SM://x", "sm://a b", "sm://\u{7f}", "sm://\u{e9}"]
        {
            assert!(matches!(Address::new(text), Err(Error::BadAddress { .. })), "{text:?}");
        }
        assert!(Address::new(&format!("sm://{}", "x".repeat(ADDRESS_MAX))).is_err());
    }
}
