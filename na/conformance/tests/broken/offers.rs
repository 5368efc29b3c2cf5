//! Plugins that say something else of themselves than is true.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, Offer, OpenOptions, Plugin};
use hg_na_conformance::{Mem, Suite};

use super::run;

const TEST: &str = "what_is_offered_opens_and_what_is_missing_says_why";

/// Sound but for what it offers.
#[derive(Debug)]
struct Boastful {
    inner: Mem,
    offers: Offers,
}

impl Plugin for Boastful {
    fn schemes(&self) -> &[&str] {
        &["mem"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        self.inner.open(url, options)
    }

    fn offers(&self) -> Vec<Offer> {
        (self.offers)()
    }
}

fn offer(url: &str) -> Offer {
    Offer::new("mem", Address::new(url).expect("an address"))
}

type Offers = fn() -> Vec<Offer>;

fn verdict(offers: Offers) -> Result<(), String> {
    run(&Suite::new(Boastful { inner: Mem::default(), offers }, "mem://"), TEST)
}

#[test]
fn each_untrue_offer_is_caught() {
    let cases: [(Offers, &str); 8] = [
        (Vec::new, "nothing is offered"),
        (|| vec![offer("mem://a/b")], "does not open"),
        (|| vec![offer("mem://").with("speed", "high")], "does not open"),
        (|| vec![offer("tcp://")], "not taken"),
        (|| vec![offer("mem://"), offer("mem://")], "twice"),
        (|| vec![offer("mem://").missing("install more memory")], "opens, and is said"),
        (|| vec![offer("mem://a/b").missing(" ")], "not one sentence"),
        (|| vec![Offer::new("", Address::new("mem://").unwrap())], "nobody's"),
    ];
    for (offers, words) in cases {
        let verdict = verdict(offers);
        assert!(verdict.as_ref().is_err_and(|why| why.contains(words)), "{words}: {verdict:?}");
    }
}

#[test]
fn true_offers_pass() {
    let offers = || {
        let taken = "the slash is taken: choose a name without one";
        vec![offer("mem://"), offer("mem://x"), offer("mem://a/b").missing(taken)]
    };
    assert_eq!(verdict(offers), Ok(()));
}
