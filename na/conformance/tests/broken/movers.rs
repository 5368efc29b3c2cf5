//! Plugins whose movers do not keep their promise, and the tests that catch them.

use hg_na::{Address, Begun, Context, Error, Mover, Transit};
use hg_na_conformance::{
    Mem, Suite,
    layer::{Layer, Layered, Layers},
};

use crate::run;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Says that it is over, and has moved nothing.
    MovesNothing,
    /// Moves when it is begun: also what is dropped.
    MovesAtOnce,
    /// Says that what was taken back was moved.
    NeverFails,
}

#[derive(Debug)]
struct Broken(Flaw);

/// What is left to do, or nothing.
struct Late<'near>(Option<Box<dyn Mover + 'near>>);

impl Mover for Late<'_> {
    fn run(self: Box<Self>) -> Result<(), Error> {
        let _ignored = self.0.map(Mover::run);
        Ok(())
    }
}

impl Layer for Broken {
    fn begin<'near>(
        &mut self,
        inner: &mut dyn Context,
        transit: &Transit<'near, '_>,
    ) -> Begun<'near> {
        match (self.0, inner.begin(transit)) {
            (Flaw::MovesNothing, Begun::Ready(_)) => Begun::Over,
            (Flaw::MovesAtOnce, Begun::Ready(mover)) => {
                let _moved = mover.run();
                Begun::Ready(Box::new(Late(None)))
            }
            (Flaw::NeverFails, Begun::Ready(mover)) => Begun::Ready(Box::new(Late(Some(mover)))),
            (_, begun) => begun,
        }
    }
}

impl Layers for Broken {
    fn layer(&self, _address: &Address) -> Box<dyn Layer> {
        Box::new(Self(self.0))
    }
}

/// Every flaw, a test that catches it, and words of the verdict.
const CAUGHT_BY: &[(Flaw, &str, &str)] = &[
    (
        Flaw::MovesNothing,
        "transfers_that_were_begun_are_over_and_leave_rounds_their_turn",
        "went wrong",
    ),
    (
        Flaw::MovesAtOnce,
        "a_mover_that_is_dropped_moves_nothing_and_holds_nothing",
        "has moved bytes",
    ),
    (
        Flaw::NeverFails,
        "what_was_begun_does_not_touch_memory_that_its_owner_has_got_back",
        "says that it went well",
    ),
];

#[test]
fn movers_that_break_their_promise_are_caught() {
    for &(flaw, name, words) in CAUGHT_BY {
        let suite = |flaw| Suite::new(Layered::new(Mem::default(), Broken(flaw)), "mem://");
        run(&suite(Flaw::None), name).unwrap();
        let verdict = run(&suite(flaw), name).expect_err(name);
        assert!(verdict.contains(words), "{flaw:?}: {verdict}");
    }
}
