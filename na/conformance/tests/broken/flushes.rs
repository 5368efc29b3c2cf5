//! Flaws of flushes, and of who is connected.

use hg_na::{Address, Context, Error, Op, OpId, Peer, Rejected, Token};
use hg_na_conformance::{
    Mem, Patience, Suite,
    layer::{Layer, Layered, Layers},
};

use crate::{IMPATIENT, run};

/// More questions than there are wake-ups in a test.
const ASKED_MIN: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    EndsAtOnce,
    NeverEnds,
    WaitsForAll,
    EndsUnheard,
    KnowsNobody,
    KnowsWhoeverWasLookedUp,
}

#[derive(Debug)]
struct Flawed {
    flaw: Flaw,
    /// Something was posted since the last question.
    has_posted: bool,
    /// Questions since it has ended.
    asked: usize,
    known: Vec<Peer>,
}

impl Layer for Flawed {
    fn lookup(&mut self, inner: &mut dyn Context, address: &Address) -> Result<Peer, Error> {
        let peer = inner.lookup(address)?;
        self.known.push(peer);
        Ok(peer)
    }

    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.has_posted = true;
        inner.post(token, op)
    }

    fn flush(&mut self, inner: &mut dyn Context) -> bool {
        let is_over = inner.flush();
        match self.flaw {
            Flaw::EndsAtOnce => true,
            Flaw::NeverEnds => false,
            Flaw::WaitsForAll => !std::mem::take(&mut self.has_posted) && is_over,
            // Only who asks again and again learns of it.
            Flaw::EndsUnheard if is_over => {
                self.asked += 1;
                self.asked > ASKED_MIN
            }
            _ => is_over,
        }
    }

    fn connected(&mut self, inner: &mut dyn Context) -> Vec<Peer> {
        match self.flaw {
            Flaw::KnowsNobody => Vec::new(),
            Flaw::KnowsWhoeverWasLookedUp => self.known.clone(),
            _ => inner.connected(),
        }
    }
}

impl Layers for Flaw {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(Flawed { flaw: *self, has_posted: false, asked: 0, known: Vec::new() })
    }
}

#[test]
fn a_plugin_that_loses_what_was_flushed_or_does_not_know_who_is_connected_is_caught() {
    let [arrives, beside, connected, ends_sleep] = [
        "what_was_flushed_arrives_although_its_sender_closes",
        "a_flush_does_not_wait_for_what_comes_later_or_for_who_is_gone",
        "who_is_connected_is_known_and_nobody_else",
        "a_flush_that_ends_ends_a_sleep",
    ];
    for (flaw, test, words) in [
        (Flaw::EndsAtOnce, arrives, "were untaken"),
        (Flaw::EndsAtOnce, ends_sleep, "beside a full queue"),
        (Flaw::NeverEnds, arrives, "never happened that a flush ended"),
        (Flaw::WaitsForAll, beside, "never happened that a flush ended"),
        (Flaw::EndsUnheard, ends_sleep, "slept through"),
        (Flaw::KnowsNobody, connected, "[] are said"),
        (Flaw::KnowsWhoeverWasLookedUp, connected, "are said to be connected"),
    ] {
        // New messages move for ever: there a time ends it.
        let patience = Patience { time: std::time::Duration::from_secs(3), ..IMPATIENT };
        let suite = Suite::new(Layered::new(Mem::default(), flaw), "mem://").patience(patience);
        let verdict = run(&suite, test);
        assert!(verdict.as_ref().is_err_and(|why| why.contains(words)), "{flaw:?}: {verdict:?}");
    }
}
