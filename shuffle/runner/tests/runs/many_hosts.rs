//! A shuffle on hosts of 4 ranks, each host a network namespace: real processes, connected to their neighbours and to the ranks of
//! other hosts that they represent their own towards.
//!
//! 64 hosts, or as many as `HG_HOSTS` says: 256 processes, which meet through hubs.

use std::process::{Child, Stdio};

use watchdog::Watchdog;

use crate::{
    RUNNER,
    common::{File, Outcome},
    hosts::{Hosts, or_skip},
};

const PER_HOST: usize = 4;
const MESSAGES: u64 = 200;

/// Gives each host the hardware addresses of all others, for good: the kernel's table of neighbours, which all hosts of a machine share,
/// counts those that it has learnt only (`gc_thresh3`, 1,024 by default).
fn introduce(hosts: &Hosts, count: usize) {
    let said = |host: usize, words: &[&str]| {
        let mut command = hosts.host(host).command(words[0]);
        let ended = command.args(&words[1..]).stdin(Stdio::null()).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap()
    };
    let card = |host: usize| {
        let shown = said(host, &["ip", "-brief", "link", "show", "eth0"]);
        shown.split_whitespace().nth(2).unwrap().to_owned()
    };
    let cards: Vec<String> = (0..count).map(card).collect();
    for host in 0..count {
        let others = (0..count).filter(|other| *other != host);
        let line = |other: usize| {
            let ip = hosts.host(other).ip4(0);
            format!("neigh add {ip} lladdr {} dev eth0 nud permanent\n", cards[other])
        };
        let lines: String = others.map(line).collect();
        said(host, &["sh", "-c", "printf %s \"$0\" | ip -batch -", &lines]);
    }
}

#[test]
fn on_many_hosts_every_message_arrives_once_by_at_most_three_hops() {
    let count = std::env::var("HG_HOSTS").map_or(64, |text| text.parse().unwrap());
    let _watchdog = Watchdog::within(10 * watchdog::LIMIT);
    let Some(hosts) = or_skip(Hosts::new(count)) else { return };
    introduce(&hosts, count);
    let (size, folder) = (count * PER_HOST, File::new("many-hosts"));
    std::fs::create_dir(&folder.0).unwrap();
    let start = |rank: usize| -> Child {
        let mut command = hosts.host(rank / PER_HOST).command("timeout");
        command.args(["-k", "2", "590", RUNNER, "--json", "--url", "tcp://", "--warm-up", "10"]);
        command.args(["--count", &MESSAGES.to_string()]);
        // Many processes to a processor greet late.
        command.args(["--setting", "connect-timeout-ms=300000"]);
        command.args(["--setting", "silence-bound-ms=300000"]);
        command.env("HG_JOB_RENDEZVOUS", format!("dir:{}", folder.text()));
        command.env("HG_JOB_RANK", rank.to_string()).env("HG_JOB_SIZE", size.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..size).map(start).collect();
    let mut all = Outcome { code: Some(0), out: String::new(), err: String::new() };
    for rank in ranks {
        let ended = rank.wait_with_output().unwrap();
        all.out.push_str(&String::from_utf8_lossy(&ended.stdout));
        all.err.push_str(&String::from_utf8_lossy(&ended.stderr));
        all.code = all.code.filter(|code| *code != 0).or(ended.status.code());
    }
    let total = all.total(size as u64);
    let hops: Vec<u64> = (0..4).filter_map(|hops| total["hops"][hops].as_u64()).collect();
    assert_eq!(hops.iter().sum::<u64>(), MESSAGES * size as u64, "{total}");
    // Most messages cross hosts, most of them by three hops.
    assert!(hops[3] > hops[2] && hops[2] > hops[0], "{total}");
}
