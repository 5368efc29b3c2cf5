//! Nothing is left of hosts, whichever way a test ends; and words where there can be none.

use std::{
    collections::BTreeSet, env, fs, os::unix::fs::MetadataExt as _, panic, path::PathBuf,
    process::Command,
};

use crate::{
    common::{
        Child, Watchdog,
        child::{next_command, say},
        process::is_alive,
        until,
    },
    hosts::{Hosts, or_skip, skip},
    roles::Node,
};

/// What this machine shows of hosts outside of them: interfaces and mounts like theirs.
fn shown() -> (BTreeSet<String>, usize) {
    let read = |path: &str| fs::read_to_string(path).expect("/proc is mounted");
    let cards = read("/proc/net/dev");
    let names = cards.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    let ours = names.filter(|name| name.starts_with("net") || name.starts_with('p'));
    let mounts = read("/proc/self/mountinfo");
    (ours.map(str::to_owned).collect(), mounts.matches(" /etc/hosts ").count())
}

/// Network namespaces of processes.
fn namespaces(pids: &[u32]) -> BTreeSet<u64> {
    let inode = |pid: &u32| fs::metadata(format!("/proc/{pid}/ns/net")).map(|it| it.ino());
    pids.iter().map(inode).collect::<Result<_, _>>().expect("the processes live")
}

/// Names of these namespaces, if anybody has given them one.
fn names_of(namespaces: &BTreeSet<u64>) -> Vec<PathBuf> {
    let Ok(names) = fs::read_dir("/run/netns") else { return Vec::new() };
    let is_of = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| namespaces.contains(&it.ino()));
    names.flatten().map(|name| name.path()).filter(is_of).collect()
}

/// The role: builds two hosts with a process on each; says the ids of all that it has started, or why it cannot.
pub(crate) fn play_builder() {
    let hosts = match Hosts::new(2) {
        Ok(hosts) => hosts,
        Err(missing) => return say(&format!("error: {missing}")),
    };
    let nodes = [0, 1].map(|index| Node::on(hosts.host(index), ""));
    let mut pids: Vec<u32> = nodes.iter().map(|node| node.child.pid()).collect();
    pids.extend(hosts.keepers());
    say(&pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    while next_command().is_some() {}
}

#[test]
fn nothing_is_left_of_hosts_whose_test_is_killed() {
    let _watchdog = Watchdog::start();
    let before = shown();
    let Some(_can) = or_skip(Hosts::new(1)) else { return };
    let mut builder = Child::start("builder", "");
    let said = builder.hear();
    let pids: Vec<u32> = said.split(' ').map(|pid| pid.parse().expect(&said)).collect();
    assert_eq!(pids.len(), 5, "two nodes, two keepers, and that of the switch: {said}");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    let namespaces = namespaces(&pids);
    assert_eq!(namespaces.len(), 3);
    assert_eq!(shown(), before, "hosts are seen from outside");
    builder.kill();
    until(|| !pids.iter().any(|pid| is_alive(*pid)));
    assert_eq!(shown(), before);
    assert_eq!(names_of(&namespaces), Vec::<PathBuf>::new());
}

#[test]
fn nothing_is_left_of_hosts_whose_test_panics() {
    let _watchdog = Watchdog::start();
    let before = shown();
    let Some(hosts) = or_skip(Hosts::with_networks(2, 2)) else { return };
    let keepers = hosts.keepers();
    let namespaces = namespaces(&keepers);
    assert!(keepers.len() == 3 && keepers.iter().all(|pid| is_alive(*pid)));
    let result = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let _node = Node::on(hosts.host(1), "interface=eth1");
        panic!("as a failed assertion does");
    }));
    assert!(result.is_err());
    assert!(!keepers.iter().any(|pid| is_alive(*pid)));
    assert_eq!(shown(), before);
    assert_eq!(names_of(&namespaces), Vec::<PathBuf>::new());
}

#[test]
fn where_the_right_is_missing_the_words_say_so() {
    let _watchdog = Watchdog::start();
    let Some(_can) = or_skip(Hosts::new(1)) else { return };
    // Root of a user namespace that may have no network namespaces.
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--", "sh", "-c", script]);
    command.arg(env::current_exe().unwrap());
    let mut builder = Child::start_by(command, "builder", "", &[]);
    let said = builder.hear_or_end();
    let Some(said) = said else {
        return skip("no right to make user namespaces");
    };
    assert!(said.starts_with("error: no right to make network namespaces: unshare"), "{said}");
}
