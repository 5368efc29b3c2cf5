//! Ranks on hosts that are network namespaces: nodes are found without being told, and hubs of hubs hold them together.

use std::{
    process::{Child, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use watchdog::Watchdog;

use crate::{
    common::{Folder, Outcome, PROBE, assert_one_node, assert_two_by_two},
    namespaces::{Hosts, or_skip},
};

/// Each host has as many ranks; they meet in a folder. What they said, and how each ended.
fn run(hosts: &Hosts, counts: (usize, usize), more: &[&str]) -> (Outcome, Vec<Option<i32>>) {
    run_with(hosts, counts, more, &[])
}

fn run_with(
    hosts: &Hosts,
    counts: (usize, usize),
    more: &[&str],
    variables: &[(&str, &str)],
) -> (Outcome, Vec<Option<i32>>) {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let (of_hosts, per_host) = counts;
    let folder = Folder::new(&format!("hosts-{}", FOLDERS.fetch_add(1, Ordering::Relaxed)));
    let size = of_hosts * per_host;
    let start = |rank: usize| -> Child {
        let mut command = hosts.host(rank / per_host).command("timeout");
        command.args(["-k", "2", "150", PROBE, "--timeout", "100"]).args(more);
        command.env("HG_JOB_RENDEZVOUS", format!("dir:{}", folder.text()));
        command.env("HG_JOB_RANK", rank.to_string()).env("HG_JOB_SIZE", size.to_string());
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("coreutils are installed")
    };
    let ranks: Vec<Child> = (0..size).map(start).collect();
    let mut all = Outcome { code: Some(0), out: String::new(), err: String::new() };
    let mut codes = Vec::new();
    for mut rank in ranks {
        let output = watchdog::ended(&mut rank);
        all.out += &String::from_utf8_lossy(&output.stdout);
        all.err += &String::from_utf8_lossy(&output.stderr);
        codes.push(output.status.code());
    }
    all.code = codes.iter().copied().find(|code| *code != Some(0)).unwrap_or(Some(0));
    (all, codes)
}

#[test]
fn two_hosts_are_two_nodes_and_a_death_crosses_the_cable() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    assert_two_by_two(&run(&hosts, (2, 2), &[]).0.ranks());
    let (dead, codes) = run(&hosts, (2, 2), &["--die", "3@joined"]);
    assert_eq!(dead.count("rank 3 ended without leaving the job"), 3, "{}", dead.all());
    assert_eq!(codes.iter().filter(|code| **code == Some(1)).count(), 3, "{}", dead.all());
}

#[test]
fn rank_0_listens_where_it_is_told_to_and_no_other_hub_wants_its_port() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(1)) else { return };
    let at = format!("{}:4477", hosts.host(0).ip4(0));
    // Of 35 ranks, 0 and 1 have hubs.
    for count in [2, 35] {
        let (said, _) =
            run_with(&hosts, (1, count), &["--timeout", "20"], &[("HG_JOB_LISTEN", &at)]);
        assert_one_node(&said.ranks(), count, "rendezvous");
    }
}

#[test]
fn a_rank_that_comes_before_rank_0_does_not_meet_itself() {
    let _watchdog = Watchdog::start();
    let Some(hosts) = or_skip(Hosts::new(1)) else { return };
    // Every port that the system gives is one that is knocked at.
    let script =
        "echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range && exec \"$0\" --timeout 1";
    let mut command = hosts.host(0).command("sh");
    command.args(["-c", script, PROBE]).env("HG_JOB_RENDEZVOUS", "tcp:127.0.0.1:40000");
    command.env("HG_JOB_RANK", "1").env("HG_JOB_SIZE", "2");
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = watchdog::ended(&mut command.spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("connecting to rank 0 at 127.0.0.1:40000: "), "{said}");
}

/// 256 ranks: below rank 0 there are eight hubs of 33 ranks, the last one of fewer.
#[test]
fn on_64_hosts_of_4_ranks_all_meet_exchange_and_hear_of_deaths_and_aborts_through_hubs() {
    let _watchdog = Watchdog::within(4 * watchdog::LIMIT);
    let Some(hosts) = or_skip(Hosts::new(64)) else { return };
    let ranks = run(&hosts, (64, 4), &["--exchange", "--rounds", "2"]).0.ranks();
    assert_eq!(ranks.len(), 256);
    for (at, rank) in ranks.iter().enumerate() {
        assert_eq!(rank["node"], at / 4);
        assert!(rank["gathered"] == true && rank["nodes"] == 64 && rank["local_size"] == 4);
        // Counted in the kernel's list of this process's descriptors.
        assert!(
            rank["sockets"].as_u64().is_some_and(|count| count <= u64::from(hg_job::SOCKETS_MAX)),
            "{rank}"
        );
    }
    // A rank below another's hub; then one that has a hub itself.
    for dies in ["200@joined", "34@joined"] {
        let (dead, codes) = run(&hosts, (64, 4), &["--exchange", "--die", dies]);
        let rank = dies.trim_end_matches("@joined");
        let said = format!("rank {rank} ended without leaving the job");
        assert_eq!(dead.count(&said), 255, "{}", dead.all());
        let failed = codes.iter().filter(|code| **code == Some(1)).count();
        assert_eq!(failed, 255, "{}", dead.all());
    }
    let (aborted, codes) = run(&hosts, (64, 4), &["--abort", "200"]);
    assert_eq!(aborted.count("rank 200 aborted the job: asked to"), 255, "{}", aborted.all());
    assert!(codes.iter().all(|code| *code == Some(7)), "{}", aborted.all());
}
