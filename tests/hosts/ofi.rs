//! libfabric between hosts: calls and transfers, shared memory inside a host under the same address, and a cable
//! that is cut.

use crate::{
    common::{Watchdog, until},
    hosts::{Hosts, or_skip},
    roles::Node,
};

const LARGE: usize = 8 << 20;

fn node(hosts: &Hosts, index: usize, settings: &str) -> Node {
    let url = format!("url=ofi+tcp://{}", hosts.host(index).ip4(0));
    Node::on(hosts.host(index), &format!("{url} {settings}"))
}

#[test]
fn calls_and_transfers_cross_hosts_over_libfabric() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let [mut one, mut neighbour, mut far] =
        [(0, ""), (0, ""), (1, "")].map(|(host, settings)| node(&hosts, host, settings));
    assert_eq!(one.ask(&format!("call {}", neighbour.address)), "sm");
    for (from, to) in [(&mut one, far.address.clone()), (&mut neighbour, far.address.clone())] {
        assert_eq!(from.ask(&format!("call {to}")), "ofi+tcp");
        assert_eq!(from.ask(&format!("echo {to} {LARGE}")), "ofi+tcp");
    }
    assert_eq!(far.ask(&format!("echo {} {LARGE}", one.address)), "ofi+tcp");
}

#[test]
fn a_cut_cable_ends_calls_over_libfabric_within_the_bound() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let target = node(&hosts, 0, "routing=off");
    let mut asks = node(&hosts, 1, "routing=off silence-bound-ms=3000");
    assert_eq!(asks.ask(&format!("call {}", target.address)), "ofi+tcp");
    assert_eq!(asks.ask(&format!("start forever {}", target.address)), "started");
    hosts.link(0).down();
    let ended = asks.ask("join");
    assert!(ended.starts_with("PeerGone: "), "{ended}");
    // Mended, it is a new peer at the old address.
    hosts.link(0).up();
    assert_eq!(asks.ask(&format!("call {}", target.address)), "ofi+tcp");
}

#[test]
fn deadlines_hold_during_a_cut_over_libfabric_and_whoever_is_looked_up_after_it_is_reached_in_the_end()
 {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut target = node(&hosts, 0, "routing=off silence-bound-ms=3000");
    let mut asks = node(&hosts, 1, "routing=off silence-bound-ms=3000");
    let (address, memory) = (target.address.clone(), target.ask(&format!("expose {LARGE} 1")));
    assert_eq!(asks.ask(&format!("pull {memory} 1")), "ofi+tcp");
    assert_eq!(asks.ask(&format!("start forever {address}")), "started");
    hosts.link(0).down();
    for command in [
        format!("echo {address} 1000"),
        format!("echo {address} {LARGE}"),
        format!("pull {memory} 1"),
        format!("forever {address}"),
    ] {
        let answer = asks.ask(&format!("within 100 {command}"));
        assert!(answer.starts_with("DeadlineExceeded: "), "{command}: {answer}");
    }
    let ended = asks.ask("join");
    assert!(ended.starts_with("PeerGone: "), "{ended}");
    hosts.link(0).up();
    // libfabric may go on with its old connection, and its kernel be slow to repeat: each call is a fresh lookup, and ends.
    until(|| {
        let answer = asks.ask(&format!("within 1000 echo {address} 1000"));
        assert!(
            ["ofi+tcp", "DeadlineExceeded: ", "PeerGone: "].iter().any(|it| answer.starts_with(it)),
            "{answer}"
        );
        answer == "ofi+tcp"
    });
    assert_eq!(asks.ask(&format!("pull {memory} 1")), "ofi+tcp");
    assert_eq!(target.ask("take"), "ok");
}
