//! Cables that are cut and mended, hosts that are started again, and links that lose packets.
//!
//! A cut is as long as its test needs, not as long as a clock says: until kernels have sent again in vain, or
//! until everybody has noticed.

use std::time::{Duration, Instant};

use crate::{
    common::{
        Watchdog, falls_to,
        process::{fds, rss_kib},
        until,
    },
    hosts::{Hosts, or_skip, skip},
    roles::Node,
};

/// Silence that the tests of long cuts allow, and what it is without a setting.
const SHORT: &str = "silence-bound-ms=3000";
const DEFAULT: Duration = Duration::from_secs(30);
/// Bytes of one of the transfers that follow one another.
const LEN: usize = 4 << 20;
/// Bytes after which they are in full swing.
const SWING: u64 = 12 << 20;
const SEALED: &str = "key-env=HG_TEST_KEY";
const KEY: (&str, &str) =
    ("HG_TEST_KEY", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");

/// Waits until so many more bytes have crossed a host's cable.
fn let_flow(hosts: &Hosts, host: usize, bytes: u64) {
    let before = hosts.link(host).traffic();
    until(|| hosts.link(host).traffic() >= before + bytes);
}

/// Starts transfers both ways, and calls with large arguments, that follow one another without a pause.
fn start_loops(owner: &mut Node, user: &mut Node) {
    let memory = owner.ask(&format!("expose {LEN} 3"));
    let target = owner.ask(&format!("accept {LEN} 2"));
    for job in [
        format!("pull {memory} 1"),
        format!("pull {memory} 5"),
        format!("push {target} 2"),
        format!("echo {} {LEN}", owner.address),
        format!("call {}", owner.address),
    ] {
        assert_eq!(user.ask(&format!("start loop {job}")), "started");
    }
}

fn all_done(answers: &str) -> bool {
    answers.split(" | ").all(|answer| answer.starts_with("done ") && answer != "done 0")
}

#[test]
fn a_cut_within_the_bound_only_delays_what_is_under_way() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    for arguments in ["", SEALED] {
        let mut owner = Node::try_on(hosts.host(0), arguments, &[KEY]);
        let mut user = Node::try_on(hosts.host(1), arguments, &[KEY]);
        start_loops(&mut owner, &mut user);
        let_flow(&hosts, 0, SWING);
        hosts.link(0).down();
        // Whoever had something on its way repeats it, ever more rarely: for a second or two.
        let repeated = || (0..2).map(|host| hosts.host(host).retransmits()).sum::<u64>();
        let before = repeated();
        until(|| repeated() >= before + 3);
        hosts.link(0).up();
        let_flow(&hosts, 0, SWING);
        let answers = user.ask("stop");
        assert!(all_done(&answers), "{arguments}: {answers}");
        assert_eq!(user.ask(&format!("again {}", owner.address)), "tcp", "it is the same peer");
        assert_eq!(owner.ask("take"), "ok");
    }
}

#[test]
fn deadlines_hold_during_a_cut_and_the_connection_outlives_them() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    for arguments in ["", SEALED] {
        let mut owner = Node::try_on(hosts.host(0), arguments, &[KEY]);
        let mut user = Node::try_on(hosts.host(1), arguments, &[KEY]);
        let (source, target) = (owner.ask("expose 16000000 3"), owner.ask("accept 16000000 2"));
        let address = owner.address.clone();
        assert_eq!(user.ask(&format!("pull {source} 2")), "tcp");
        hosts.link(0).down();
        for command in [
            format!("pull {source} 2"),
            format!("push {target} 1"),
            format!("echo {address} 1000"),
            format!("echo {address} {LEN}"),
            format!("forever {address}"),
        ] {
            // Each gives its memory back, also what is half on its way.
            let answer = user.ask(&format!("within 100 {command}"));
            assert!(answer.starts_with("DeadlineExceeded: "), "{command}: {answer}");
        }
        hosts.link(0).up();
        assert_eq!(user.ask(&format!("again {address}")), "tcp", "it is the same peer");
        assert_eq!(user.ask(&format!("pull {source} 2")), "tcp");
        assert_eq!(user.ask(&format!("push {target} 1")), "tcp");
        assert_eq!(owner.ask("filled"), "yes");
        until(|| owner.ask("serving") == "0 0 0");
        assert_eq!(owner.ask("take"), "ok");
    }
}

#[test]
fn memory_is_taken_back_during_a_cut_and_is_stale_after_it() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut owner = Node::on(hosts.host(0), "");
    let mut user = Node::on(hosts.host(1), "");
    let (source, target) = (owner.ask("expose 4000000 3"), owner.ask("accept 4000000 2"));
    assert_eq!(user.ask(&format!("start loop pull {source} 1")), "started");
    assert_eq!(user.ask(&format!("start loop push {target} 1")), "started");
    let_flow(&hosts, 0, SWING);
    hosts.link(0).down();
    assert_eq!(owner.ask("take"), "ok");
    hosts.link(0).up();
    for answer in user.ask("join").split(" | ") {
        assert!(answer.starts_with("Stale: "), "{answer}");
    }
    assert_eq!(user.ask(&format!("call {}", owner.address)), "tcp");
}

/// Descriptors of some processes.
fn fds_of(nodes: &[&Node]) -> Vec<usize> {
    nodes.iter().map(|node| fds(node.child.pid())).collect()
}

#[test]
fn a_cut_beyond_the_bound_ends_everything_across_it_and_nothing_else() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(3)) else { return };
    let mut target = Node::on(hosts.host(0), SHORT);
    let mut beside = Node::on(hosts.host(0), SHORT);
    let [mut busy, mut waits, mut idle, mut other] =
        [1, 2, 2, 2].map(|host| Node::on(hosts.host(host), SHORT));
    let [mut sealed, mut sealed_busy] =
        [0, 1].map(|host| Node::try_on(hosts.host(host), &format!("{SHORT} {SEALED}"), &[KEY]));
    let mut leaving = Node::on(hosts.host(1), SHORT);
    let call = format!("call {}", target.address);
    assert_eq!(beside.ask(&call), "sm");
    let before = fds_of(&[&target, &busy, &waits, &idle, &sealed, &sealed_busy]);

    assert_eq!(idle.ask(&call), "tcp");
    assert_eq!(leaving.ask(&call), "tcp");
    assert_eq!(waits.ask(&format!("start forever {}", target.address)), "started");
    assert_eq!(target.ask(&format!("start forever {}", busy.address)), "started");
    start_loops(&mut target, &mut busy);
    let_flow(&hosts, 0, SWING);
    assert!(all_done(&busy.ask("stop")));
    let memory = [&target, &busy].map(|node| rss_kib(node.child.pid()));
    assert_eq!(target.ask("take"), "ok");

    start_loops(&mut target, &mut busy);
    start_loops(&mut sealed, &mut sealed_busy);
    let_flow(&hosts, 0, 2 * SWING);
    hosts.link(0).down();
    let cut = Instant::now();
    assert_eq!(leaving.child.end().code(), Some(0), "a process can end during a cut");
    // Inside the host, and between the others, all goes on.
    assert_eq!(beside.ask(&call), "sm");
    assert_eq!(other.ask(&format!("call {}", busy.address)), "tcp");
    for node in [&mut busy, &mut waits, &mut target, &mut sealed_busy] {
        let answers = node.ask("join");
        for answer in answers.split(" | ") {
            assert!(answer.starts_with("PeerGone: "), "{answers}");
            assert!(answer.contains("it did not answer in time"), "{answers}");
        }
    }
    // Five times the bound is enough for any machine, and less than it takes without the setting.
    assert!(cut.elapsed() < DEFAULT / 2, "it took {:?}", cut.elapsed());
    assert_eq!(other.ask(&format!("call {}", busy.address)), "tcp");
    assert_eq!(beside.ask(&call), "sm");

    // Also those who did not ask have noticed, and all has been given back.
    until(|| {
        [&mut target, &mut busy, &mut sealed].iter_mut().all(|it| it.ask("serving") == "0 0 0")
    });
    drop(other);
    until(|| fds_of(&[&target, &busy, &waits, &idle, &sealed, &sealed_busy]) == before);
    for (node, before) in [&target, &busy].into_iter().zip(memory) {
        // Less than what one of the transfers needs.
        let bound = before + LEN as u64 / 1024 / 2;
        let kept = falls_to(bound, || rss_kib(node.child.pid()));
        assert!(kept <= bound, "{kept} KiB after the cut, {before} before");
    }

    hosts.link(0).up();
    for node in [&mut busy, &mut idle] {
        let again = node.ask(&format!("again {}", target.address));
        assert!(again.starts_with("PeerGone: ") && again.contains("certainly not"), "{again}");
        assert_eq!(node.ask(&call), "tcp", "a fresh lookup is a fresh peer");
    }
    let fresh = target.ask(&format!("expose {LEN} 1"));
    assert_eq!(idle.ask(&format!("pull {fresh} 2")), "tcp");
    assert_eq!(target.ask(&format!("call {}", busy.address)), "tcp");
    assert_eq!(target.ask("take"), "ok");
}

#[test]
fn a_cable_that_loses_one_direction_only_ends_everything_across_it() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut target = Node::on(hosts.host(0), SHORT);
    let [mut busy, mut waits] = [1, 1].map(|host| Node::on(hosts.host(host), SHORT));
    assert_eq!(waits.ask(&format!("start forever {}", target.address)), "started");
    start_loops(&mut target, &mut busy);
    let_flow(&hosts, 0, SWING);
    let cut = Instant::now();
    let Some(()) = or_skip(hosts.link(0).deafen()) else { return };
    for node in [&mut busy, &mut waits] {
        let answers = node.ask("join");
        assert!(answers.split(" | ").all(|it| it.starts_with("PeerGone: ")), "{answers}");
    }
    assert!(cut.elapsed() < DEFAULT / 2, "it took {:?}", cut.elapsed());
    until(|| target.ask("serving") == "0 0 0");
    hosts.link(0).shape("pfifo").expect("every kernel has it");
    until(|| busy.ask(&format!("call {}", target.address)) == "tcp");
    assert_eq!(target.ask("take"), "ok");
}

/// Whether the kernel gives up in time what it asks for space in vain.
fn has_bounded_probes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

#[test]
fn a_peer_without_space_is_waited_for_until_it_is_cut_off() {
    let _watchdog = Watchdog::start();
    if !has_bounded_probes() {
        return skip(
            "the kernel is older than 6.15: it asks a full peer for space ever more rarely",
        );
    }
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let mut target = Node::on(hosts.host(0), SHORT);
    let mut busy = Node::on(hosts.host(1), SHORT);
    let memory = target.ask("accept 30000000 1");
    // Together more than any socket holds, also when one of them is just over.
    for _ in 0..3 {
        assert_eq!(busy.ask(&format!("start loop push {memory} 1")), "started");
    }
    let_flow(&hosts, 0, SWING);
    target.child.stop();
    until(|| hosts.host(1).has_full_peer());
    // More than the bound, and no cut: its kernel answers.
    let full = Instant::now();
    until(|| full.elapsed() > Duration::from_secs(4));
    assert!(hosts.host(1).has_full_peer());
    hosts.link(0).down();
    let cut = Instant::now();
    let ended = busy.ask("join");
    let is_silence = |it: &str| it.starts_with("PeerGone: ") && it.contains("in time");
    assert!(ended.split(" | ").all(is_silence), "{ended}");
    assert!(cut.elapsed() < DEFAULT / 2, "it took {:?}", cut.elapsed());
}

#[test]
fn a_host_that_was_started_again_is_another_peer_at_the_old_address() {
    let _watchdog = Watchdog::start();
    let Some(mut hosts) = or_skip(Hosts::new(3)) else { return };
    let on_port = "url=tcp://10.77.0.1:7000";
    let mut target = Node::on(hosts.host(0), on_port);
    let old = target.address.clone();
    let [mut asks, mut idle] =
        [1, 2].map(|host| Node::on(hosts.host(host), "silence-bound-ms=6000"));
    let before = fds_of(&[&asks, &idle]);
    assert_eq!(idle.ask(&format!("call {old}")), "tcp");
    assert_eq!(asks.ask(&format!("call {old}")), "tcp");
    assert_eq!(asks.ask(&format!("start forever {old}")), "started");
    until(|| target.ask("serving") == "1 0 0");

    hosts.link(0).down();
    target.child.kill();
    hosts.restart(0);
    let target = Node::on(hosts.host(0), on_port);
    // Its kernel knows nothing of the connection, and says so when it is spoken to.
    let again = asks.ask(&format!("again {old}"));
    assert!(again.starts_with("PeerGone: "), "{again}");
    let waited = asks.ask("join");
    assert!(waited.starts_with("PeerGone: ") && waited.contains("unknown"), "{waited}");
    // The kernel of the idle one asks by itself.
    until(|| fds_of(&[&asks, &idle]) == before);

    for address in [&old, &target.address] {
        assert_eq!(asks.ask(&format!("call {address}")), "tcp");
        assert_eq!(idle.ask(&format!("echo {address} {LEN}")), "tcp");
    }
}

#[test]
fn a_call_to_a_host_that_is_cut_off_already_was_certainly_not_started() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let target = Node::on(hosts.host(0), "");
    let mut origin = Node::on(hosts.host(1), "connect-timeout-ms=1000");
    hosts.link(0).down();
    let failed = origin.ask(&format!("call {}", target.address));
    assert!(failed.starts_with("PeerGone: ") && failed.contains("certainly not"), "{failed}");
    hosts.link(0).up();
    // The kernel may still be asking who has the address, once a second: each try is a fresh lookup.
    until(|| origin.ask(&format!("call {}", target.address)) == "tcp");
}

#[test]
fn a_narrow_link_that_drops_packets_delivers_everything() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let narrow = "tbf rate 400mbit burst 32k limit 48k";
    let Some(()) = or_skip(hosts.link(0).shape(narrow)) else { return };
    everything_arrives(&hosts);
    assert!(hosts.link(0).dropped() > 0, "the link has dropped nothing");
}

#[test]
fn a_slow_link_that_loses_packets_delivers_everything() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let slow = hosts.link(0).shape("netem delay 2ms 1ms loss 1% limit 10000");
    let Some(()) = or_skip(slow) else { return };
    everything_arrives(&hosts);
    assert!(hosts.link(0).dropped() > 0, "the link has lost nothing");
}

fn everything_arrives(hosts: &Hosts) {
    let mut owner = Node::on(hosts.host(0), "");
    let mut user = Node::on(hosts.host(1), "");
    start_loops(&mut owner, &mut user);
    let_flow(hosts, 0, SWING);
    let answers = user.ask("stop");
    assert!(all_done(&answers), "{answers}");
    assert_eq!(owner.ask("filled"), "yes");
}
