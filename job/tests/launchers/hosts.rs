//! Ranks on two hosts that are network namespaces joined by a cable: two nodes, found without being told.

use std::process::Command;

use crate::common::{Folder, PROBE, assert_two_by_two, has, run};

/// Two namespaces with an address each; taken away at the end.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `Err`: what this machine lacks.
    fn new() -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self { names: [format!("hgjob-{id}-a"), format!("hgjob-{id}-b")] };
        let [a, b] = &hosts.names;
        let (one, two) = (format!("hj{id}a"), format!("hj{id}b"));
        for name in [a, b] {
            ip(&["netns", "add", name])
                .map_err(|why| format!("no right to make network namespaces: {why}"))?;
        }
        ip(&["link", "add", &one, "netns", a, "type", "veth", "peer", "name", &two, "netns", b])
            .map_err(|why| format!("the kernel joins no network namespaces: {why}"))?;
        for (name, link, address) in [(a, &one, "10.213.7.1/24"), (b, &two, "10.213.7.2/24")] {
            ip(&["-n", name, "addr", "add", address, "dev", link]).unwrap();
            ip(&["-n", name, "link", "set", link, "up"]).unwrap();
            ip(&["-n", name, "link", "set", "lo", "up"]).unwrap();
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One of them may never have been made.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let outcome = run("ip", arguments, &[]);
    if outcome.code == Some(0) { Ok(()) } else { Err(outcome.err.trim().replace('\n', " ")) }
}

/// Ranks 0 and 1 on the first host, 2 and 3 on the second.
fn four_ranks(hosts: &Hosts, at: &str, more: &str) -> crate::common::Outcome {
    let rank = |rank: usize| {
        let host = &hosts.names[rank / 2];
        let start = format!("env HG_JOB_RENDEZVOUS={at} HG_JOB_SIZE=4 HG_JOB_RANK={rank}");
        format!("(ip netns exec {host} {start} {PROBE} --timeout 20 {more}; echo ended $?) &")
    };
    let ranks: String = (0..4).map(rank).collect();
    run("sh", &["-c", &format!("{ranks} wait")], &[])
}

#[test]
fn two_hosts_are_two_nodes_and_a_death_crosses_the_cable() {
    const NAME: &str = "two_hosts_are_two_nodes_and_a_death_crosses_the_cable";
    if !has("ip", NAME) {
        return;
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => return println!("SKIPPED: {NAME}: {reason}"),
    };
    let folder = Folder::new("hosts");
    let at = format!("dir:{}", folder.text());
    assert_two_by_two(&four_ranks(&hosts, &at, "").ranks());
    let dead = four_ranks(&hosts, &at, "--die 3@joined");
    assert_eq!(dead.count("rank 3 ended without leaving the job"), 3, "{}", dead.all());
    assert_eq!(dead.ends(), [1, 1, 1, 137], "{}", dead.all());
}
