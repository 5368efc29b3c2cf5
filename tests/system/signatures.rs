//! Declarations of one name that differ: each call says how, and nobody reads what was not written for it.

use hg::CallError;
use serde::{Deserialize, Serialize};

use crate::{
    common::Watchdog,
    roles::add,
    transports::{open_over, urls},
};

/// What is served.
mod theirs {
    use super::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Place {
        pub(super) longitude: f64,
        pub(super) latitude: f64,
    }

    #[derive(Serialize, Deserialize)]
    pub(super) enum Refusal {
        Full,
        Closed,
    }

    #[hg::rpc(name = "mismatched::widths")]
    pub(super) fn widths(a: f64, b: f64) -> f64 {
        a + b
    }

    #[hg::rpc(name = "mismatched::fields")]
    pub(super) fn fields(place: Place) -> f64 {
        place.longitude - place.latitude
    }

    #[hg::rpc(name = "mismatched::result")]
    pub(super) fn result() -> u8 {
        1
    }

    #[hg::rpc(name = "mismatched::error")]
    pub(super) fn error() -> Result<u8, Refusal> {
        Err(Refusal::Full)
    }
}

/// What is called.
mod ours {
    use super::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Place {
        pub(super) latitude: f64,
        pub(super) longitude: f64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub(super) enum Refusal {
        Closed,
        Full,
    }

    #[hg::rpc(name = "mismatched::widths")]
    pub(super) fn widths(a: i64, b: u64) -> f64;

    #[hg::rpc(name = "mismatched::fields")]
    pub(super) fn fields(place: Place) -> f64;

    #[hg::rpc(name = "mismatched::result")]
    pub(super) fn result() -> Option<u8>;

    #[hg::rpc(name = "mismatched::error")]
    pub(super) fn error() -> Result<u8, Refusal>;
}

/// A declaration, and the function behind it with types of its own that are the same on the wire.
mod interface {
    use super::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Key(pub(super) u64);

    #[hg::rpc]
    pub(super) fn put(key: Key, value: &[u8], label: &str) -> Result<u64, String>;

    #[hg::rpc(name = "interface::owned")]
    pub(super) fn borrowed(key: u64, value: &[u8], label: &str) -> u64;

    #[hg::rpc(name = "interface::owned")]
    pub(super) fn owned(key: Key, value: Vec<u8>, label: String) -> u64 {
        key.0 + (value.len() + label.len()) as u64
    }
}

#[hg::rpc(implements = interface::put)]
fn put(key: interface::Key, value: &[u8], label: &str) -> Result<u64, String> {
    if value.is_empty() { Err(label.to_owned()) } else { Ok(key.0) }
}

/// What both sides are shown to mean.
fn both<E: std::fmt::Debug>(refused: CallError<E>) -> (String, String) {
    let said = format!("{refused:?}");
    let CallError::SignatureMismatch(mismatch) = refused else { panic!("{said}") };
    assert!(said.contains(mismatch.caller) && said.contains(&mismatch.target), "{said}");
    assert!(said.contains(mismatch.name), "{said}");
    (mismatch.caller.to_owned(), mismatch.target)
}

#[test]
fn declarations_that_differ_are_refused_with_both_of_them_in_words() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let target = open_over(hg::builder().listen(true), url).unwrap();
        target.register(add).unwrap();
        target.register(theirs::widths).unwrap();
        target.register(theirs::fields).unwrap();
        target.register(theirs::result).unwrap();
        target.register(theirs::error).unwrap();
        let origin = open_over(hg::builder(), url).unwrap();
        let peer = origin.lookup(target.address()).unwrap();
        for _ in 0..3 {
            let widths = both(origin.call(ours::widths, &peer, (3, 4)).wait().unwrap_err());
            assert_eq!(widths, ("(i64, u64) -> f64".to_owned(), "(f64, f64) -> f64".to_owned()));
            let place = ours::Place { latitude: 47.4, longitude: 8.5 };
            let (called, served) =
                both(origin.call(ours::fields, &peer, (place,)).wait().unwrap_err());
            assert_eq!(called, "({latitude: f64, longitude: f64}) -> f64");
            assert_eq!(served, "({longitude: f64, latitude: f64}) -> f64");
            let (called, served) = both(origin.call(ours::result, &peer, ()).wait().unwrap_err());
            assert_eq!((called.as_str(), served.as_str()), ("() -> option<u8>", "() -> u8"));
            let (called, served) = both(origin.call(ours::error, &peer, ()).wait().unwrap_err());
            assert_eq!(called, "() -> result<u8, enum{Closed, Full}>");
            assert_eq!(served, "() -> result<u8, enum{Full, Closed}>");
            origin.notify(ours::widths, &peer, (3, 4)).wait().unwrap();
        }
        assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    }
}

#[test]
fn a_declaration_and_the_function_behind_it_agree_whatever_owns_the_bytes() {
    let _watchdog = Watchdog::start();
    let target = hg::listen("sm://").unwrap();
    target.register(put).unwrap();
    target.register(interface::owned).unwrap();
    let origin = hg::open("sm://").unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let call = |bytes: &[u8]| {
        let arguments = (interface::Key(7), bytes, "empty");
        origin.call(interface::put, &peer, arguments).wait()
    };
    assert_eq!(call(b"x").unwrap(), 7);
    assert!(matches!(call(b""), Err(CallError::Handler(why)) if why == "empty"));
    let sum = origin.call(interface::borrowed, &peer, (1, b"23", "4")).wait();
    assert_eq!(sum.unwrap(), 4);
    assert!(target.deregister(put) && target.deregister(interface::borrowed));
    assert!(matches!(call(b"x"), Err(CallError::NoSuchRpc { .. })));
}
