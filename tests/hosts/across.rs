//! Calls and transfers between hosts over tcp alone, in the clear and with a pre-shared key.

use crate::{
    common::{Watchdog, falls_to, process::fds},
    hosts::{Hosts, or_skip},
    roles::Node,
};

const KEY: (&str, &str) =
    ("HG_TEST_KEY", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
const OTHER_KEY: (&str, &str) =
    ("HG_TEST_KEY", "ff112233445566778899aabbccddeeff00112233445566778899aabbccddee00");
const CLEAR: &str = "routing=off";
const SEALED: &str = "routing=off key-env=HG_TEST_KEY";

/// Without optimisation the sealed way is slow.
const WAYS: [(&str, usize); 2] = [(CLEAR, 64 << 20), (SEALED, 16 << 20)];

fn three(hosts: &Hosts, arguments: &str) -> [Node; 3] {
    [0, 1, 2].map(|index| {
        let node = Node::try_on(hosts.host(index), arguments, &[KEY]);
        let wanted = format!("tcp://{}:", hosts.host(index).ip4(0));
        assert!(node.address.starts_with(&wanted), "{}", node.address);
        node
    })
}

#[test]
fn calls_and_large_arguments_cross_three_hosts() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(3)) else { return };
    for (arguments, large) in WAYS {
        let mut nodes = three(&hosts, arguments);
        let addresses = nodes.each_ref().map(|node| node.address.clone());
        for node in &mut nodes {
            for address in &addresses {
                assert_eq!(node.ask(&format!("call {address}")), "tcp");
            }
        }
        assert_eq!(nodes[0].ask(&format!("echo {} {large}", addresses[1])), "tcp");
        assert_eq!(nodes[2].ask(&format!("echo {} 100000", addresses[1])), "tcp");
    }
}

#[test]
fn hosts_that_call_each_other_at_once_meet_on_one_connection_a_pair() {
    const NODES: usize = 6;
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(3)) else { return };
    for arguments in [CLEAR, SEALED, CLEAR, SEALED] {
        let mut nodes: Vec<_> =
            (0..NODES).map(|at| Node::try_on(hosts.host(at % 3), arguments, &[KEY])).collect();
        let before: Vec<_> = nodes.iter().map(|node| fds(node.child.pid())).collect();
        let all: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            let others = all[at + 1..].iter().chain(&all[..at]);
            others.for_each(|other| node.child.tell(&format!("start call {other}")));
        }
        for node in &mut nodes {
            (1..NODES).for_each(|_| assert_eq!(node.child.hear(), "started"));
            assert_eq!(node.ask("join"), ["tcp"; NODES - 1].join(" | "));
        }
        for (node, before) in nodes.iter().zip(before) {
            let bound = before + NODES - 1;
            assert!(falls_to(bound, || fds(node.child.pid())) <= bound, "{arguments}");
        }
    }
}

#[test]
fn bulk_moves_whole_cut_and_forwarded_across_three_hosts() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(3)) else { return };
    for (arguments, large) in WAYS {
        let mut nodes = three(&hosts, arguments);
        let third = nodes[2].address.clone();
        let [owner, user, other] = &mut nodes;
        let before = hosts.link(0).traffic();
        for (len, far, near) in [(0, 1, 1), (8, 1, 1), (1_000_003, 1024, 7), (large, 1, 1)] {
            let memory = owner.ask(&format!("expose {len} {far}"));
            assert_eq!(user.ask(&format!("pull {memory} {near}")), "tcp", "{len}");
            assert_eq!(user.ask(&format!("view {memory}")), "tcp", "{len}");
            let memory = owner.ask(&format!("accept {len} {far}"));
            assert_eq!(other.ask(&format!("push {memory} {near}")), "tcp", "{len}");
            assert_eq!(owner.ask("filled"), "yes", "{len}");
        }
        let moved = hosts.link(0).traffic() - before;
        assert!(moved > 3 * large as u64, "{moved} bytes crossed the cable");
        // The second host hands the first one's memory on to the third.
        let memory = owner.ask("expose 3000000 5");
        assert_eq!(user.ask(&format!("forward {third} {memory}")), "tcp");
        assert_eq!(owner.ask("take"), "ok");
    }
}

#[test]
fn without_the_same_key_nobody_on_another_host_is_served() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let target = Node::try_on(hosts.host(0), SEALED, &[KEY]);
    let call = format!("call {}", target.address);
    let mut wrong = Node::try_on(hosts.host(1), SEALED, &[OTHER_KEY]);
    let mut clear = Node::on(hosts.host(1), CLEAR);
    for node in [&mut wrong, &mut clear] {
        let answer = node.ask(&call);
        assert!(answer.starts_with("PeerGone: ") && answer.contains("key"), "{answer}");
        assert!(answer.contains("certainly not started"), "{answer}");
    }
    let mut right = Node::try_on(hosts.host(1), SEALED, &[KEY]);
    assert_eq!(right.ask(&call), "tcp");
}
