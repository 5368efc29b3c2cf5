//! What can be opened and looked up.

use hg_na::{Error, GoneReason};

use crate::end::{End, LOOPBACK, Server, gone, skipped};

fn reaches(url: &str, settings: &[(&str, &str)], starts: &str) {
    let server = Server::start(url, settings);
    assert!(server.address.starts_with(starts), "{url}: {}", server.address);
    let mut end = End::open(LOOPBACK, &[]);
    let peer = end.lookup(&server.address);
    assert_eq!(end.call(peer, 1, b"here").unwrap(), b"here");
}

fn refusal(url: &str, settings: &[(&str, &str)]) -> Error {
    match End::try_open(url, settings) {
        Ok(end) => panic!("{url} {settings:?} opened {}", end.text()),
        Err(error) => error,
    }
}

#[test]
fn every_form_of_a_host_is_listened_at_and_reached() {
    reaches("tcp://127.0.0.1", &[], "tcp://127.0.0.1:");
    reaches("tcp://127.0.0.1:0", &[], "tcp://127.0.0.1:");
    reaches("tcp://localhost", &[], "tcp://");
    reaches("tcp://", &[("interface", "lo")], "tcp://127.0.0.1:");
    reaches("tcp://0.0.0.0", &[("subnet", "127.0.0.0/8")], "tcp://127.0.0.1:");
    reaches("tcp://", &[], "tcp://");
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        let name = "every_form_of_a_host_is_listened_at_and_reached";
        skipped(name, "the kernel has no IPv6: [::1] cannot be bound");
        return;
    }
    reaches("tcp://[::1]", &[], "tcp://[::1]:");
    reaches("tcp://[::]", &[("subnet", "::1/128")], "tcp://[::1]:");
    // One socket for both families: what is announced is reached.
    reaches("tcp://[::]", &[("subnet", "127.0.0.0/8")], "tcp://127.0.0.1:");
}

#[test]
fn a_name_is_reached_and_one_that_nobody_has_is_named() {
    let server = Server::start(LOOPBACK, &[]);
    let mut end = End::open(LOOPBACK, &[("connect-timeout-ms", "5000")]);
    let peer = end.lookup(&server.address.replace("127.0.0.1", "localhost"));
    assert_eq!(end.call(peer, 1, b"here").unwrap(), b"here");
    let nobody = end.lookup("tcp://nobody.invalid:4000");
    end.send(1, nobody, b"knock");
    let (peer, reason) = end.until(gone);
    assert!(peer == nobody && matches!(reason, GoneReason::Unreachable(_)), "{reason}");
    assert!(reason.to_string().contains("name"), "{reason}");
}

#[test]
fn a_fixed_port_is_ones_own_and_free_again_at_once() {
    let first = End::open(LOOPBACK, &[]);
    let at = first.text();
    assert!(matches!(refusal(&at, &[]), Error::AddressInUse(_)));
    drop(first);
    let again = End::open(&at, &[]);
    assert_eq!(again.text(), at);
}

#[test]
fn what_cannot_be_listened_at_is_refused_with_the_reason() {
    // TEST-NET-3: for documents.
    let refused = refusal("tcp://203.0.113.1", &[]);
    assert!(matches!(&refused, Error::BadAddress { why, .. } if why.contains("no address of")));
    let refused = refusal("tcp://lo", &[]).to_string();
    let instead = "lo is no host but an interface: leave the host empty and give the setting `interface`, `lo`";
    assert!(refused.contains(instead), "{refused}");
    for (settings, names) in
        [([("interface", "hg-none-9")], "interface"), ([("subnet", "203.0.113.0/24")], "subnet")]
    {
        let refused = refusal("tcp://", &settings);
        let Error::BadSetting { name, why } = &refused else { panic!("{refused}") };
        assert!(name == names && why.contains("lo 127.0.0.1"), "it says what there is: {refused}");
        let refused = refusal(LOOPBACK, &settings);
        let Error::BadSetting { name, why } = &refused else { panic!("{refused}") };
        assert!(name == names && why.contains("URL names a host"), "{refused}");
    }
    for url in ["tcp://a b", "tcp://::1", "tcp://127.0.0.1:65536", "tcp://x?key=1", "tcp://k@x"] {
        let refused = hg_na::Address::new(url).and_then(|_| Err::<(), _>(refusal(url, &[])));
        assert!(matches!(refused, Err(Error::BadAddress { .. })), "{url}: {refused:?}");
    }
}
