//! Which schemes the transports of a build take, for those who write another one.

use std::sync::Arc;

use hg_na::{Address, Error, Plugin, UID};

/// What to write instead of a scheme that no transport takes, given those that one takes: a sentence.
pub type Advice = fn(&str, &[String]) -> Option<String>;

/// The schemes that can be opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Schemes {
    known: Arc<[String]>,
    advice: Option<Advice>,
}

impl Schemes {
    pub(crate) fn new(plugins: &[Arc<dyn Plugin>], advice: Option<Advice>) -> Self {
        let all = plugins.iter().flat_map(|plugin| plugin.schemes()).copied();
        let mut known: Vec<String> =
            all.filter(|scheme| *scheme != UID).map(str::to_owned).collect();
        known.sort_unstable();
        known.dedup();
        Self { known: known.into(), advice }
    }

    /// The error for a scheme that nobody takes.
    pub(crate) fn none_for(&self, scheme: &str) -> Error {
        let is_known = |name: &str| self.known.iter().any(|known| known == name);
        // `sm+tcp` goes without saying where there are both.
        let is_pair = |name: &&String| {
            !name.split_once('+').is_some_and(|(first, second)| is_known(first) && is_known(second))
        };
        let single: Vec<&str> = self.known.iter().filter(is_pair).map(String::as_str).collect();
        let known =
            self.advise(scheme).unwrap_or_else(|| format!("there are: {}", single.join(", ")));
        Error::NoPlugin { scheme: scheme.to_owned(), known }
    }

    /// What can be said beside an error of an address: what its scheme is called here, or who takes it.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let Error::BadAddress { address, why } = error else { return error };
        let Some((scheme, _)) = address.split_once("://") else {
            return Error::BadAddress { address, why };
        };
        let is_known = scheme == UID || self.known.iter().any(|known| known == scheme);
        if is_known {
            return Error::BadAddress { address, why };
        }
        if Address::new(&format!("{scheme}://")).is_ok() {
            return self.none_for(scheme);
        }
        let why = self.advise(scheme).unwrap_or(why);
        Error::BadAddress { address, why }
    }

    fn advise(&self, scheme: &str) -> Option<String> {
        self.advice.and_then(|advice| advice(scheme, &self.known))
    }
}
