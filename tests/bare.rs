//! A build without libfabric and with the other codec: `cargo test --no-default-features --features
//! sm,tcp,sm-routing,postcard --test bare`, a step of `./check`. With the default features there is nothing here.

#![cfg(all(not(feature = "ofi"), feature = "sm-routing", feature = "postcard"))]

use hg::Engine;

#[hg::rpc]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Longer than one message.
#[hg::rpc]
fn reversed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

#[test]
fn calls_and_bulk_go_over_every_transport_of_the_build() {
    let long: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    let back: Vec<u8> = long.iter().rev().copied().collect();
    for (url, routing, way) in
        [("sm://", "off", "sm"), ("tcp://127.0.0.1", "off", "tcp"), ("tcp://127.0.0.1", "on", "sm")]
    {
        let open = |listen: bool| {
            let builder = hg::builder().listen(listen);
            let builder =
                if routing == "off" { builder.setting("routing", "off") } else { builder };
            builder.open(url).expect("it can be opened anywhere")
        };
        let (target, origin) = (open(true), open(false));
        target.register(add).expect("a fresh engine");
        target.register(reversed).expect("a fresh engine");
        let peer = origin.lookup(target.address()).expect("its own address");
        assert_eq!(origin.call(add, &peer, (2, -3)).wait().expect("an answer"), -1);
        assert_eq!(origin.call(reversed, &peer, (long.clone(),)).wait().expect("an answer"), back);
        assert_eq!(origin.way_of(&peer), way, "{url}");
    }
}

#[test]
fn what_needs_libfabric_names_the_feature_and_is_not_offered() {
    let said = hg::open("ofi+tcp://127.0.0.1").expect_err("nobody takes it").to_string();
    assert!(said.ends_with("this build is without the feature `ofi` of `hydrargyrum`"), "{said}");
    assert!(hg::offers().iter().all(|offer| offer.plugin != "ofi"), "{:?}", hg::offers());
}

#[cfg(not(feature = "tcp-key"))]
#[test]
fn a_key_names_the_feature_that_it_needs() {
    for name in ["key-file", "key-env"] {
        let builder = hg::builder().setting("routing", "off").setting(name, "KEY");
        let said = builder.open("tcp://127.0.0.1").expect_err("it cannot encrypt").to_string();
        assert!(
            said.contains(name) && said.contains("the feature `tcp-key` of `hydrargyrum`"),
            "{said}"
        );
    }
}
