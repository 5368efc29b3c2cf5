//! What can be opened and looked up.

use hg_na::{Error, GoneReason, Identity, OpenOptions, Plugin as _};
use hg_na_tcp::TcpPlugin;

use crate::{
    end::{End, LOOPBACK, Server, address, arrived, ended, gone, skipped},
    log::Log,
};

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
fn who_announces_one_address_is_reached_at_that_one_unless_every_one_was_asked_for() {
    let is_reached_elsewhere = |url: &str, settings: &[(&str, &str)]| {
        let end = End::open(url, settings);
        let port: u16 = end.text().rsplit(':').next().unwrap().parse().unwrap();
        std::net::TcpStream::connect(("127.0.0.2", port)).is_ok()
    };
    assert!(!is_reached_elsewhere("tcp://", &[("interface", "lo")]));
    assert!(!is_reached_elsewhere("tcp://", &[("subnet", "127.0.0.0/8")]));
    assert!(!is_reached_elsewhere(LOOPBACK, &[]));
    assert!(is_reached_elsewhere("tcp://0.0.0.0", &[("subnet", "127.0.0.0/8")]));
}

#[test]
fn who_listens_beyond_this_machine_without_a_key_says_so_once() {
    // At every interface, under a loopback name: it works on any machine.
    let anywhere = ("tcp://0.0.0.0", &[("subnet", "127.0.0.0/8")][..]);
    for ((url, settings), listens, times) in
        [(anywhere, true, 1), (anywhere, false, 0), ((LOOPBACK, &[]), true, 0)]
    {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let mut options =
                if listens { OpenOptions::listening() } else { OpenOptions::default() };
            options.settings.extend(settings.iter().map(|(k, v)| ((*k).into(), (*v).into())));
            let domain = TcpPlugin.open(&address(url), &options).unwrap();
            (0..2).for_each(|id| drop(domain.context(id).unwrap()));
        });
        let said = log.text();
        assert_eq!(said.matches("whoever reaches this address").count(), times, "{url}: {said}");
    }
}

#[cfg(feature = "tcp-key")]
#[test]
fn who_has_a_key_listens_beyond_this_machine_without_a_word() {
    let file = crate::keys::KeyFile::new("listens", &"5a".repeat(32));
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || {
        End::open("tcp://0.0.0.0", &[("subnet", "127.0.0.0/8"), ("key-file", file.path())])
    });
    assert!(!log.text().contains("whoever reaches"), "{}", log.text());
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

#[test]
fn a_peer_is_known_by_the_other_end_of_its_socket() {
    let [mut one, mut other] = [End::open(LOOPBACK, &[]), End::open("tcp://127.0.0.2", &[])];
    let listens = |end: &End| end.text().strip_prefix("tcp://").unwrap().parse().unwrap();
    let to_other = one.lookup(&other.text());
    assert_eq!(one.context.identity(to_other), Identity::default(), "nobody was asked yet");
    one.send(1, to_other, b"from one");
    let to_one = loop {
        one.round();
        other.round();
        if let Some((from, _)) = other.take(arrived) {
            break from;
        }
    };
    one.until(ended(1)).unwrap();
    assert_eq!(one.context.identity(to_other), Identity::network(listens(&other)));
    let seen = other.context.identity(to_one);
    let address = seen.address.unwrap();
    assert_eq!((seen.uid, seen.pid), (None, None));
    // It was not told where the other one's listener is; what the socket came from is no listener.
    assert!(address.ip().is_loopback() && address != listens(&one), "{address}");
    assert!(std::net::TcpStream::connect(address).is_err());
    // Looked up, it is reached over the same connection.
    let looked_up = other.lookup(&one.text());
    other.send(2, looked_up, b"from the other");
    let from = loop {
        one.round();
        other.round();
        if let Some((from, _)) = one.take(arrived) {
            break from;
        }
    };
    assert_eq!(other.context.identity(looked_up), seen);
    assert_eq!(one.context.identity(from), Identity::network(listens(&other)));
    // Gone, it is nobody.
    drop(one);
    for _ in 0..2 {
        let (peer, _) = other.until(gone);
        assert!(peer == to_one || peer == looked_up);
        assert_eq!(other.context.identity(peer), Identity::default());
    }
}
