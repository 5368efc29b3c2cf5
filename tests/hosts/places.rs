//! Where an engine listens and what it announces: interfaces, subnets, names, IPv6.

use crate::{
    common::Watchdog,
    hosts::{Hosts, or_skip},
    roles::Node,
};

const MOVED: u64 = 4 << 20;

#[test]
fn interface_and_subnet_choose_among_several_networks() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::with_networks(2, 2)) else { return };
    let mut caller = Node::on(hosts.host(1), "routing=off");
    for (arguments, network) in [
        ("", 0),
        ("interface=eth0", 0),
        ("interface=eth1", 1),
        ("subnet=10.77.1.0/24", 1),
        ("subnet=10.77.0.0/24", 0),
        ("subnet=10.77.0.0/16 interface=eth1", 1),
        ("url=tcp://10.77.1.1", 1),
        ("url=tcp://10.77.1.1:7070", 1),
    ] {
        let mut node = Node::on(hosts.host(0), &format!("routing=off {arguments}"));
        let wanted = format!("tcp://{}:", hosts.host(0).ip4(network));
        assert!(node.address.starts_with(&wanted), "{arguments}: {}", node.address);
        let before = [0, 1].map(|network| hosts.link_of(0, network).traffic());
        assert_eq!(caller.ask(&format!("echo {} {MOVED}", node.address)), "tcp", "{arguments}");
        let moved = [0, 1].map(|network| hosts.link_of(0, network).traffic() - before[network]);
        let (chosen, other) = (moved[network], moved[1 - network]);
        assert!(chosen > 2 * MOVED && other < MOVED / 16, "{arguments}: {moved:?}");
        assert_eq!(node.ask(&format!("call {}", caller.address)), "tcp", "{arguments}");
    }
}

#[test]
fn routing_announces_the_chosen_network_too() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::with_networks(2, 2)) else { return };
    let node = Node::on(hosts.host(0), "interface=eth1");
    assert!(node.part("tcp").starts_with("tcp://10.77.1.1:"), "{}", node.address);
    let mut caller = Node::on(hosts.host(1), "");
    hosts.link(0).down();
    assert_eq!(caller.ask(&format!("call {}", node.address)), "tcp");
}

#[test]
fn interfaces_and_subnets_that_do_not_exist_are_named_beside_those_that_do() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(1)) else { return };
    for routing in ["routing=off", "routing=on"] {
        for (argument, name) in [
            ("interface=eth7", "interface"),
            ("subnet=10.99.0.0/16", "subnet"),
            ("interface=lo subnet=10.77.0.0/24", "subnet"),
        ] {
            let refused = Node::try_on(hosts.host(0), &format!("{routing} {argument}"), &[]);
            let error = refused.address;
            assert!(error.starts_with(&format!("error: setting `{name}`: ")), "{error}");
            assert!(error.contains("eth0 10.77.0.1"), "{error}");
        }
    }
    let elsewhere = Node::try_on(hosts.host(0), "url=tcp://10.77.0.9", &[]).address;
    assert!(elsewhere.contains("no address of this machine"), "{elsewhere}");
}

#[test]
fn hosts_are_found_by_name_and_unknown_names_end_in_words() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let name = hosts.host(0).name();
    let mut caller = Node::on(hosts.host(1), "");
    for routing in ["routing=off", "routing=on"] {
        let node = Node::on(hosts.host(0), &format!("{routing} url=tcp://{name}"));
        let (_, port) =
            node.part("tcp").rsplit_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert_eq!(node.part("tcp"), format!("tcp://{}:{port}", hosts.host(0).ip4(0)));
        assert_eq!(caller.ask(&format!("call tcp://{name}:{port}")), "tcp");
        assert_eq!(caller.ask(&format!("echo tcp://{name}:{port} {MOVED}")), "tcp");
    }
    let answer = caller.ask("call tcp://host9:7070");
    assert!(answer.starts_with("PeerGone: "), "{answer}");
    assert!(answer.contains("the name host9 has no address"), "{answer}");
    let answer = caller.ask(&format!("call tcp://{name}:9"));
    assert!(answer.contains("refused") && answer.contains("certainly not"), "{answer}");
    // Nobody has this address: the kernel says so after a while.
    let answer = caller.ask("call tcp://10.77.0.99:7070");
    assert!(answer.starts_with("PeerGone: ") && answer.contains("certainly not"), "{answer}");
    // No way leads there.
    let answer = caller.ask("call tcp://10.99.0.1:7070");
    assert!(answer.starts_with("PeerGone: ") && answer.contains("unreachable"), "{answer}");
}

#[test]
fn ipv6_is_listened_at_announced_and_reached() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let Some(()) = or_skip(hosts.host(0).has_ip6()) else { return };
    let six = hosts.host(0).ip6(0);
    let mut caller = Node::on(hosts.host(1), "");
    for arguments in [
        format!("routing=off url=tcp://[{six}]"),
        "routing=off subnet=fd00:77::/32".to_owned(),
        format!("url=tcp://[{six}]:7171"),
        "subnet=fd00:77::/64".to_owned(),
    ] {
        let mut node = Node::on(hosts.host(0), &arguments);
        assert!(node.part("tcp").starts_with(&format!("tcp://[{six}]:")), "{}", node.address);
        assert_eq!(caller.ask(&format!("call {}", node.address)), "tcp", "{arguments}");
        assert_eq!(caller.ask(&format!("echo {} {MOVED}", node.address)), "tcp", "{arguments}");
        let memory = node.ask("expose 3000000 3");
        assert_eq!(caller.ask(&format!("pull {memory} 2")), "tcp", "{arguments}");
    }
    // Both families at one port; what is announced is IPv4.
    let node = Node::on(hosts.host(0), "routing=off url=tcp://[::]:7272");
    assert_eq!(node.address, "tcp://10.77.0.1:7272");
    assert_eq!(caller.ask(&format!("call {}", node.address)), "tcp");
    assert_eq!(caller.ask(&format!("call tcp://[{six}]:7272")), "tcp");
}
