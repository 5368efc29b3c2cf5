//! Reads the settings of a domain: every name is known, every value is taken, or both are named in the error.

use std::{collections::BTreeMap, time::Duration};

use hg_na::Error;

use crate::{
    Subnet,
    key::{KEY_FILE, KEYS},
};

/// The settings of one domain, all of whose names are known.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a BTreeMap<String, String>);

impl<'a> Reader<'a> {
    /// Refuses names that are not among `known`.
    ///
    /// # Errors
    /// [`Error::UnknownSetting`], with what `transport` knows.
    pub fn new(
        transport: &str,
        known: &[&str],
        settings: &'a BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        for (name, value) in settings.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            match (name.as_str(), value.as_str()) {
                // So that a program need not know which of its URLs has more than one way.
                (ROUTING, "off") => {}
                (ROUTING, _) => {
                    let why = format!("{transport} is one way, so there is nothing but `off`");
                    return Err(Self::bad(name, &why));
                }
                _ if known.contains(&KEY_FILE) && KEYS.contains(&name.as_str()) => {
                    let why = "a key is never passed itself: give the name of its file as `key-file`, or \
                        of its environment variable as `key-env`";
                    return Err(Self::bad(name, why));
                }
                _ => {
                    let known = format!("{transport} knows only {}", known.join(", "));
                    return Err(Error::UnknownSetting { name: name.clone(), known });
                }
            }
        }
        Ok(Self(settings))
    }

    /// That a setting is not taken, and why.
    #[must_use]
    pub fn bad(name: &str, why: &str) -> Error {
        Error::BadSetting { name: name.to_owned(), why: why.to_owned() }
    }

    /// The text of a setting.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    /// A positive number.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when it is none.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        let parse = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let wrong = || Self::bad(name, "it takes a positive number");
        self.text(name).map(|text| parse(text).ok_or_else(wrong)).transpose()
    }

    /// A count, at most what memory can hold.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when it is no positive number.
    pub fn count(&self, name: &str, default: usize) -> Result<usize, Error> {
        let number = self.number(name)?;
        Ok(number.map_or(default, |number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    /// What the setting [`MAX_HELD_MIB`] allows, in bytes.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when it is no positive number.
    pub fn held(&self) -> Result<u64, Error> {
        Ok(self.number(MAX_HELD_MIB)?.unwrap_or(HELD_MIB).saturating_mul(1 << 20))
    }

    /// A time in milliseconds.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when it is no positive number.
    pub fn milliseconds(&self, name: &str, default: Duration) -> Result<Duration, Error> {
        Ok(self.number(name)?.map_or(default, Duration::from_millis))
    }

    /// One of two words; `default` when neither is given.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for any other text.
    pub fn switch(&self, name: &str, yes: &str, no: &str, default: bool) -> Result<bool, Error> {
        match self.text(name) {
            None => Ok(default),
            Some(text) if text == yes => Ok(true),
            Some(text) if text == no => Ok(false),
            Some(_) => Err(Self::bad(name, &format!("it takes `{yes}` or `{no}`"))),
        }
    }

    /// `ADDRESS/BITS`.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for any other text.
    pub fn subnet(&self, name: &str) -> Result<Option<Subnet>, Error> {
        let wrong = || Self::bad(name, "it takes ADDRESS/BITS, as 10.1.0.0/16");
        self.text(name).map(|text| Subnet::parse(text).ok_or_else(wrong)).transpose()
    }
}

/// Setting: MiB that messages which wait for admission take at most, of all peers of a context.
pub const MAX_HELD_MIB: &str = "max-held-mib";
/// 1 GiB: 256 short requests of each of 16,000 peers.
const HELD_MIB: u64 = 1024;

/// Setting of what chooses between several ways; with `off` it means nothing where there is but one.
const ROUTING: &str = "routing";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_taken_or_refused_with_what_would_be() {
        let of = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let known = ["pace", "size", "wide"];
        let unknown = Reader::new("ink", &known, &of("colour", "red")).unwrap_err().to_string();
        assert!(unknown.contains("colour") && unknown.contains("pace, size, wide"), "{unknown}");
        assert!(Reader::new("ink", &known, &of("routing", "off")).is_ok());
        let on = Reader::new("ink", &known, &of("routing", "on")).unwrap_err().to_string();
        assert!(on.contains("ink is one way"), "{on}");
        let of_itself =
            Reader::new("ink", &["key-file"], &of("key", "0011")).unwrap_err().to_string();
        assert!(of_itself.contains("key-file") && !of_itself.contains("0011"), "{of_itself}");
        for (value, number) in [("7", Some(7)), ("0", None), ("-1", None), ("many", None)] {
            let settings = of("size", value);
            let reader = Reader::new("ink", &known, &settings).unwrap();
            assert_eq!(reader.number("size").ok().flatten(), number);
            assert_eq!(reader.count("pace", 3).unwrap(), 3);
            let time = reader.milliseconds("size", Duration::ZERO).ok();
            assert_eq!(time, number.map(Duration::from_millis));
        }
        let settings = of("wide", "off");
        let reader = Reader::new("ink", &known, &settings).unwrap();
        assert!(!reader.switch("wide", "on", "off", true).unwrap());
        assert!(reader.switch("wide", "auto", "never", true).is_err());
        assert!(reader.switch("pace", "on", "off", true).unwrap());
        assert!(reader.subnet("wide").is_err() && reader.subnet("pace").unwrap().is_none());
    }
}
