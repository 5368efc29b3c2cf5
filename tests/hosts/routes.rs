//! One address for both ways: shared memory inside a host, tcp across.

use crate::{
    common::{Watchdog, until},
    hosts::{Hosts, or_skip},
    roles::Node,
};

const LARGE: usize = 16 << 20;

/// The node that an address names.
fn node_id(address: &str) -> &str {
    address
        .strip_prefix("uid://")
        .and_then(|rest| rest.split('#').next())
        .expect("a routed address")
}

#[test]
fn calls_and_bulk_go_by_sm_inside_a_host_and_by_tcp_across() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut first = Node::on(hosts.host(0), "");
    let mut second = Node::on(hosts.host(0), "");
    let mut far = Node::on(hosts.host(1), "");
    // The kernel, the file system and the processes are the same: only the network is not.
    assert_eq!(node_id(&first.address), node_id(&second.address));
    assert_ne!(node_id(&first.address), node_id(&far.address));

    let memory = first.ask(&format!("expose {LARGE} 3"));
    for (node, way) in [(&mut second, "sm"), (&mut far, "tcp")] {
        let before = hosts.link(0).traffic();
        assert_eq!(node.ask(&format!("call {}", first.address)), way);
        assert_eq!(node.ask(&format!("echo {} {LARGE}", first.address)), way);
        assert_eq!(node.ask(&format!("pull {memory} 2")), way);
        assert_eq!(node.ask(&format!("view {memory}")), way);
        let target = first.ask(&format!("accept {LARGE} 1"));
        assert_eq!(node.ask(&format!("push {target} 4")), way);
        assert_eq!(first.ask("filled"), "yes");
        let (moved, large) = (hosts.link(0).traffic() - before, LARGE as u64);
        assert!(if way == "sm" { moved < large / 16 } else { moved > 5 * large }, "{way}: {moved}");
    }
    // And in the other direction, by connections of the other side's own.
    assert_eq!(first.ask(&format!("call {}", second.address)), "sm");
    assert_eq!(first.ask(&format!("call {}", far.address)), "tcp");
}

#[test]
fn forwarded_memory_is_reached_by_the_way_that_its_user_has() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut owner = Node::on(hosts.host(0), "");
    let mut beside = Node::on(hosts.host(0), "");
    let mut far = Node::on(hosts.host(1), "");
    let memory = owner.ask("expose 2000000 2");
    // From the far one to the one beside the owner, and the other way round.
    assert_eq!(far.ask(&format!("forward {} {memory}", beside.address)), "sm");
    assert_eq!(beside.ask(&format!("forward {} {memory}", far.address)), "tcp");
}

#[test]
fn a_node_id_of_this_host_that_is_not_its_own_leads_to_tcp() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut here = Node::on(hosts.host(0), "");
    let far = Node::on(hosts.host(1), "");
    // The far one's parts under the id of this host: sm is tried, finds nobody, and gives way.
    let mixed = far.address.replace(node_id(&far.address), node_id(&here.address));
    assert_eq!(here.ask(&format!("call {mixed}")), "tcp");
    assert_eq!(here.ask(&format!("echo {mixed} {LARGE}")), "tcp");
}

#[test]
fn where_neither_way_leads_calls_end_and_a_later_lookup_works() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut here = Node::on(hosts.host(0), "silence-bound-ms=3000 connect-timeout-ms=1000");
    let mut far = Node::on(hosts.host(1), "silence-bound-ms=3000");
    let mixed = far.address.replace(node_id(&far.address), node_id(&here.address));
    hosts.link(0).down();
    for _ in 0..3 {
        assert_eq!(here.ask(&format!("start call {mixed}")), "started");
    }
    let answers = here.ask("join");
    for answer in answers.split(" | ") {
        assert!(answer.starts_with("PeerGone: ") && answer.contains("certainly not"), "{answers}");
    }
    hosts.link(0).up();
    until(|| here.ask(&format!("call {mixed}")) == "tcp");

    // The same for one that has taken the network already.
    for job in [format!("loop echo {mixed} {LARGE}"), format!("forever {mixed}")] {
        assert_eq!(here.ask(&format!("start {job}")), "started");
    }
    let before = hosts.link(0).traffic();
    until(|| hosts.link(0).traffic() > before + LARGE as u64);
    hosts.link(0).down();
    let answers = here.ask("join");
    assert!(answers.split(" | ").all(|it| it.starts_with("PeerGone: ")), "{answers}");
    until(|| here.ask("serving") == "0 0 0" && far.ask("serving") == "0 0 0");
    hosts.link(0).up();
    until(|| here.ask(&format!("call {mixed}")) == "tcp");
}
