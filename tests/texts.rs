//! What a newcomer reads when something is written wrong: it says what to write instead.

#![cfg(all(feature = "ofi", feature = "sm-routing"))]

use hg::{
    CallError, Error,
    bulk::{Rights, TransferError},
};

fn open(url: &str) -> String {
    hg::open(url).expect_err("it cannot be opened").to_string()
}

fn lookup(address: &str) -> String {
    let engine = hg::open("sm://").expect("shared memory is there");
    engine.lookup(address).expect_err("it cannot be reached").to_string()
}

#[test]
fn a_url_as_mercury_writes_it_is_answered_with_the_one_to_write_here() {
    // Without libfabric between, where this build has that.
    let verbs = if cfg!(feature = "verbs") { "verbs" } else { "ofi+verbs" };
    // Of others, those that this build has.
    let others = [(cfg!(feature = "verbs"), "verbs"), (cfg!(feature = "visor"), "visor")];
    let others = others.into_iter().filter(|(is_there, _)| *is_there);
    let last = others.fold(", sm, tcp".to_owned(), |all, (_, name)| format!("{all}, {name}"));
    for (theirs, ours) in [
        ("na+sm://", "sm"),
        ("SM://name", "sm"),
        ("ofi+tcp;ofi_rxm://127.0.0.1", "ofi+tcp"),
        ("verbs;ofi_rxm://mlx5_0", verbs),
        ("TCP://127.0.0.1:1", "tcp"),
    ] {
        for said in [open(theirs), lookup(theirs)] {
            assert!(said.ends_with(&format!(": write `{ours}://` instead")), "{said}");
        }
    }
    for said in [open("http://x"), lookup("http://x")] {
        let start = "no transport of this build takes `http://`: there are: ofi+cxi, ";
        assert!(said.starts_with(start) && said.ends_with(&last), "{said}");
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

#[test]
fn an_address_of_several_contexts_is_answered_with_how_they_are_opened() {
    for (url, first) in [("sm://x*4", "sm://x"), ("tcp://127.0.0.1:0*4", "tcp://127.0.0.1:0")] {
        let how = format!("not opened: open `{first}` with `Builder::contexts(4)`");
        assert!(open(url).ends_with(&how), "{}", open(url));
    }
    for wrong in ["sm://x*0", "sm://x*2*2"] {
        assert!(lookup(wrong).ends_with("stands how many contexts there are, 1 to 256"));
    }
}

#[hg::rpc]
fn nothing();

#[test]
fn whatever_a_closed_engine_is_asked_it_says_so() {
    let engine = hg::listen("sm://").unwrap();
    let peer = engine.lookup(engine.address()).unwrap();
    let bulk = engine.expose(vec![7; 10_000], Rights::READ).unwrap();
    engine.close();
    let sentence = "the engine was closed: open a new one";
    for error in [
        engine.lookup(engine.address()).map(drop),
        engine.expose(vec![7], Rights::READ).map(drop),
        engine.event_loop().map(drop),
    ] {
        assert_eq!(format!("{:?}", error.unwrap_err()), format!("{sentence} [Closed]"));
    }
    let refused = engine.serve(nothing, |_, ()| Ok(())).unwrap_err().to_string();
    assert_eq!(refused, format!("`texts::nothing` cannot be registered: {sentence}"));
    let called = engine.call(nothing, &peer, ()).wait().unwrap_err();
    assert!(matches!(called, CallError::Closed), "{called:?}");
    let fetched = engine.fetch(&peer, bulk.descriptor()).wait().unwrap_err();
    assert!(matches!(fetched, TransferError::Closed), "{fetched:?}");
    assert_eq!([called.to_string(), fetched.to_string()], [sentence; 2]);
}

#[test]
fn an_engine_that_is_closed_before_it_accepts_anybody_is_no_process_that_has_ended() {
    let target = hg::builder().progress(hg::Progress::Own).listen(true).open("sm://").unwrap();
    let origin = hg::builder().progress(hg::Progress::Own).open("sm://").unwrap();
    let call = origin.call(nothing, &origin.lookup(target.address()).unwrap(), ());
    origin.progress(std::time::Duration::ZERO);
    target.close();
    let said = call.wait().unwrap_err().to_string();
    assert!(said.starts_with("the target is gone: it closed the connection; "), "{said}");
}

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
