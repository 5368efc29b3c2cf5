//! What a plugin offers on this machine, for people and scripts that choose.

use std::{collections::BTreeMap, sync::Arc};

use crate::{Address, Caps, Domain, Error, OpenOptions};

/// Something that a plugin can open on this machine, or could if what it lacks were there.
///
/// [`crate::Plugin::offers`] lists them, the command `hydrargyrum info` prints them.
///
/// ```
/// use hg_na::{Address, Availability, Offer};
///
/// let offer = Offer::new("mine", Address::new("mine://card0")?).on("card0").fact("lanes", "4");
/// assert!(offer.is_available() && offer.domain.as_deref() == Some("card0"));
/// let offer = offer.missing("the driver is not loaded: modprobe mine");
/// assert!(matches!(offer.availability, Availability::Missing { .. }));
/// # Ok::<(), hg_na::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The plugin's name: `sm`, `tcp`, `ofi`, ...
    pub plugin: String,
    /// What opens it.
    pub url: Address,
    /// The settings that it takes besides; usually none.
    pub settings: BTreeMap<String, String>,
    /// Who does the work, where a plugin has several: libfabric's provider.
    pub provider: Option<String>,
    /// On what: an interface, a card.
    pub domain: Option<String>,
    /// The address that peers would connect to, as far as it is known before it is opened.
    pub address: Option<String>,
    /// Whether it can be opened now.
    pub availability: Availability,
    /// What it can do, where that is known.
    pub caps: Option<Caps>,
    /// Whatever else helps to choose, by name: a version, a subnet, a limit.
    pub facts: BTreeMap<String, String>,
}

/// Whether an offer can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Availability {
    /// Yes.
    Available,
    /// No.
    Missing {
        /// What is missing, and what to install or do about it, in one sentence.
        why: String,
        /// Where to look for what there is instead: of no use to whoever has this list.
        see: Option<String>,
    },
}

impl Offer {
    /// Available, and nothing else is known.
    #[must_use]
    pub fn new(plugin: &str, url: Address) -> Self {
        Self {
            plugin: plugin.to_owned(),
            url,
            settings: BTreeMap::new(),
            provider: None,
            domain: None,
            address: None,
            availability: Availability::Available,
            caps: None,
            facts: BTreeMap::new(),
        }
    }

    /// What came of opening it: available with its capabilities, or missing with the error's sentence.
    #[must_use]
    pub fn tried(mut self, opened: Result<Arc<dyn Domain>, Error>) -> Self {
        match opened {
            Ok(domain) => self.caps = Some(domain.caps().clone()),
            Err(Error::Missing { why, see }) => {
                let (why, see) = (why.to_string(), see.map(str::to_owned));
                (self.availability, self.caps) = (Availability::Missing { why, see }, None);
            }
            Err(error) => self = self.missing(error.to_string()),
        }
        self
    }

    /// It cannot be opened: one sentence that says what is missing and what to do.
    #[must_use]
    pub fn missing(mut self, why: impl Into<String>) -> Self {
        self.availability = Availability::Missing { why: why.into(), see: None };
        self.caps = None;
        self
    }

    /// Adds a setting that it is opened with.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Names the provider.
    #[must_use]
    pub fn by(mut self, provider: &str) -> Self {
        self.provider = Some(provider.to_owned());
        self
    }

    /// Names the interface or the card.
    #[must_use]
    pub fn on(mut self, domain: &str) -> Self {
        self.domain = Some(domain.to_owned());
        self
    }

    /// Names the address that peers would connect to.
    #[must_use]
    pub fn at(mut self, address: &str) -> Self {
        self.address = Some(address.to_owned());
        self
    }

    /// Adds something else that is worth knowing; lower case, words joined by `-`.
    #[must_use]
    pub fn fact(mut self, name: &str, value: impl Into<String>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Whether it can be opened.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.availability == Availability::Available
    }

    /// How it is opened to be connected to.
    #[must_use]
    pub fn options(&self) -> OpenOptions {
        OpenOptions { listen: true, settings: self.settings.clone(), key: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_where_else_to_look_come_apart() {
        let error =
            Error::Missing { why: "no card: buy one".into(), see: Some("`x` lists others") };
        assert_eq!(error.to_string(), "no card: buy one; `x` lists others");
        let offer = Offer::new("mine", Address::new("mine://").unwrap()).tried(Err(error));
        let (why, see) = ("no card: buy one".to_owned(), Some("`x` lists others".to_owned()));
        assert_eq!(offer.availability, Availability::Missing { why, see });
        assert_eq!(Error::missing("no card").to_string(), "no card");
    }
}
