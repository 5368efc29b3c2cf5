//! Offers for programs: one JSON object a line. `hydrargyrum info --help` documents the keys; they stay.

use std::collections::BTreeMap;

use hg::{
    Availability, Offer,
    na::{Caps, Sleep},
};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Line<'a> {
    plugin: &'a str,
    url: &'a str,
    settings: &'a BTreeMap<String, String>,
    provider: Option<&'a str>,
    domain: Option<&'a str>,
    address: Option<&'a str>,
    state: &'static str,
    missing: Option<&'a str>,
    caps: Option<CapsLine>,
    facts: &'a BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct CapsLine {
    max_message: usize,
    max_segments: usize,
    one_sided: bool,
    views: bool,
    sleep: &'static str,
}

impl From<&Caps> for CapsLine {
    fn from(caps: &Caps) -> Self {
        Self {
            max_message: caps.max_unexpected,
            max_segments: caps.max_segments,
            one_sided: caps.one_sided,
            views: caps.views,
            sleep: sleep(caps.sleep),
        }
    }
}

fn sleep(sleep: Sleep) -> &'static str {
    match sleep {
        Sleep::Descriptor => "descriptor",
        Sleep::Private => "private",
        Sleep::Steps(_) => "steps",
        _ => "poll",
    }
}

/// What is missing, if anything is, and what to do about it.
pub(crate) fn missing(offer: &Offer) -> Option<&str> {
    match &offer.availability {
        Availability::Available => None,
        // Where else to look is of no use here: this is the list.
        Availability::Missing { why, .. } => Some(why),
        _ => Some("this version of hydrargyrum does not know this state"),
    }
}

/// All offers.
pub(crate) fn lines(offers: &[Offer]) -> String {
    let mut text = String::new();
    for offer in offers {
        let missing = missing(offer);
        let line = Line {
            plugin: &offer.plugin,
            url: offer.url.as_str(),
            settings: &offer.settings,
            provider: offer.provider.as_deref(),
            domain: offer.domain.as_deref(),
            address: offer.address.as_deref(),
            state: if missing.is_none() { "available" } else { "missing" },
            missing,
            caps: offer.caps.as_ref().map(CapsLine::from),
            facts: &offer.facts,
        };
        text += &serde_json::to_string(&line).expect("texts, numbers and maps of texts");
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use hg::Address;

    use super::*;

    #[test]
    fn every_key_is_there_in_its_order() {
        let offer = Offer::new("ofi", Address::new("ofi+cxi://").unwrap()).with("domain", "cxi0");
        let expected = r#"{"plugin":"ofi","url":"ofi+cxi://","settings":{"domain":"cxi0"},"provider":null,"domain":null,"address":null,"state":"available","missing":null,"caps":null,"facts":{}}"#;
        assert_eq!(lines(std::slice::from_ref(&offer)), format!("{expected}\n"));
        let missing = lines(&[offer.missing("no \"card\"")]);
        assert!(missing.contains(r#""state":"missing","missing":"no \"card\"""#), "{missing}");
        assert_eq!(missing.lines().count(), 1);
    }
}
