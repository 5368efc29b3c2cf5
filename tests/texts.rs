//! What a newcomer reads when something is written wrong: it says what to write instead.

#![cfg(all(feature = "ofi", feature = "sm-routing"))]

use hg::{CallError, Error};

fn open(url: &str) -> String {
    hg::open(url).expect_err("it cannot be opened").to_string()
}

fn lookup(address: &str) -> String {
    let engine = hg::open("sm://").expect("shared memory is there");
    engine.lookup(address).expect_err("it cannot be reached").to_string()
}

#[test]
fn a_url_as_mercury_writes_it_is_answered_with_the_one_to_write_here() {
    for (theirs, ours) in [
        ("na+sm://", "sm"),
        ("SM://name", "sm"),
        ("ofi+tcp;ofi_rxm://127.0.0.1", "ofi+tcp"),
        ("verbs;ofi_rxm://mlx5_0", "ofi+verbs"),
        ("TCP://127.0.0.1:1", "tcp"),
    ] {
        for said in [open(theirs), lookup(theirs)] {
            assert!(said.ends_with(&format!(": write `{ours}://` instead")), "{said}");
        }
    }
    for said in [open("http://x"), lookup("http://x")] {
        let start = "no transport of this build takes `http://`: there are: ofi+cxi, ";
        assert!(said.starts_with(start) && said.ends_with(", sm, tcp"), "{said}");
    }
}

#[test]
fn an_address_of_another_transport_names_the_engine_to_open() {
    for (own, other) in [
        ("sm://", "tcp://127.0.0.1:1"),
        ("sm://", "ofi+tcp://127.0.0.1:1"),
        ("tcp://", "ofi+shm://a"),
    ] {
        let said = hg::open(own).unwrap().lookup(other).unwrap_err().to_string();
        let (scheme, _) = other.split_once("://").unwrap();
        assert!(said.contains("this engine reaches "), "{said}");
        assert!(said.ends_with(&format!("; open one with {scheme}://")), "{said}");
    }
}

#[test]
fn routing_can_be_off_where_nothing_is_routed() {
    let open = |value: &str| hg::builder().setting("routing", value).open("sm://");
    assert_eq!(open("off").unwrap().address().scheme(), "sm");
    let said = open("on").unwrap_err().to_string();
    assert_eq!(said, "setting `routing`: sm is one way, so there is nothing but `off`");
}

#[hg::rpc]
fn nothing();

#[test]
fn where_nobody_is_it_is_said_when_to_look_the_address_up_again() {
    for (engine, address) in
        [("sm://", "sm://nobody-has-ever-been-here"), ("tcp://", "tcp://127.0.0.1:1")]
    {
        let engine = hg::open(engine).unwrap();
        let peer = engine.lookup(address).unwrap();
        let failure = engine.call(nothing, &peer, ()).wait().unwrap_err();
        assert!(matches!(failure, CallError::PeerGone { .. }), "{failure}");
        let said = failure.to_string();
        assert!(said.starts_with("no connection to the target: it cannot be reached ("), "{said}");
        assert!(said.ends_with("look the address up again once somebody is there"), "{said}");
    }
}

#[test]
fn what_main_prints_of_an_error_can_be_read() {
    let main = || -> Result<(), Error> { hg::open("tcp://127.0.0.1:99999").map(drop) };
    // As the runtime prints it.
    let said = format!("Error: {:?}", main().unwrap_err());
    let sentence = "address `tcp://127.0.0.1:99999`: a port is a number from 0 to 65535";
    assert_eq!(said, format!("Error: {sentence} [BadAddress]"));
    let main = || -> Result<(), hg::Failure> { Ok(hg::open("tcp://127.0.0.1:99999").map(drop)?) };
    let said = format!("{:?}", main().unwrap_err());
    assert_eq!(said, format!("the call could not be made: {sentence} [NotMade: BadAddress]"));
}
