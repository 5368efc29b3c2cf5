//! Ranks that the local runner started.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::{Folder, Outcome, PROBE, all_at_once, assert_one_node, assert_two_by_two, run};

fn local(size: &str, arguments: &[&str]) -> Outcome {
    run(PROBE, &[&["--local", size], arguments].concat(), &[])
}

#[test]
fn the_runner_s_ranks_see_one_another() {
    assert_one_node(&local("4", &["--rounds", "5"]).ranks(), 4, "local");
    assert_one_node(&local("1", &[]).ranks(), 1, "local");
    assert_two_by_two(&local("4", &["--nodes", "2x2"]).ranks());
    let uneven = local("4", &["--nodes", "3+1"]).ranks();
    assert_eq!((&uneven[3]["node"], &uneven[3]["local_size"]), (&1.into(), &1.into()));
    assert_eq!(uneven[1]["mates"], serde_json::json!([0, 1, 2]));
}

#[test]
fn values_of_a_mebibyte_and_of_nothing_arrive() {
    assert_one_node(&local("4", &["--bytes", "1048576", "--rounds", "2"]).ranks(), 4, "local");
    assert_one_node(&local("3", &["--bytes", "0"]).ranks(), 3, "local");
}

#[test]
fn who_joins_again_is_told_not_to_and_breaks_nothing() {
    let outcome = local("2", &["--again"]);
    assert_one_node(&outcome.ranks(), 2, "local");
    let said = "this process has told its runner before which rank it is, and a rank does that once: keep its `Job`";
    assert_eq!(outcome.count(said), 4, "{}", outcome.all());
}

#[test]
fn ends_are_known_where_sigchld_is_ignored() {
    let ignoring = ["--ignore-signal=CHLD", PROBE, "--local", "2"];
    let start = |act: &[&str]| run("env", &[&ignoring, act].concat(), &[]);
    assert_one_node(&start(&[]).ranks(), 2, "local");
    let dead = start(&["--die", "1@joined"]);
    assert_eq!(dead.count("signal: 9 (SIGKILL)"), 1, "{}", dead.all());
}

#[test]
fn no_bound_is_too_long() {
    for how in [&[][..], &["--exchange"]] {
        let bounds = ["--timeout", "1e19", "--wait", "1e19", "--grace", "1e19"];
        assert_one_node(&local("2", &[&bounds, how].concat()).ranks(), 2, "local");
    }
}

#[test]
fn a_variable_that_is_no_text_is_refused_by_its_name() {
    let script = "HG_JOB_TOKEN=$(printf '\\377') exec \"$0\"";
    let outcome = run("sh", &["-c", script, PROBE], &[]);
    assert_eq!(outcome.err, "job-probe: HG_JOB_TOKEN: the value is no UTF-8\n");
}

#[test]
fn a_thousand_ranks_meet() {
    let outcome = local("1000", &["--nodes", "100x10"]);
    let ranks = outcome.ranks();
    assert_eq!(ranks.len(), 1000);
    assert!(ranks.iter().all(|rank| rank["gathered"] == true));
    assert_eq!(ranks[999]["mates"], serde_json::json!((990..1000).collect::<Vec<_>>()));
}

#[test]
fn a_rank_that_dies_is_named_by_the_others_who_exit_with_1() {
    let cases = [
        ("--die", "1@start", "rank 1 ended before it joined the job"),
        ("--die", "0@start", "rank 0 ended before it joined the job"),
        ("--quit", "2@start", "rank 2 ended before it joined the job"),
        ("--die", "2@joined", "rank 2 ended without leaving the job"),
        ("--die", "0@round", "rank 0 ended without leaving the job"),
    ];
    for (act, what, sentence) in cases {
        let outcome = local("3", &[act, what, "--rounds", "3"]);
        assert_eq!(outcome.count(sentence), 2, "{what}: {}", outcome.all());
        assert_eq!(outcome.code, Some(1), "{what}: {}", outcome.all());
        let end = if act == "--die" { "signal: 9 (SIGKILL)" } else { "exit status: 1" };
        assert_eq!(outcome.count(end), 1, "{what}: {}", outcome.all());
    }
}

#[test]
fn a_rank_s_death_is_noticed_at_once_though_its_forked_child_lives_on() {
    // Longer than the bounds lives the child: its copy of the connection would make the others name them.
    let cases = [
        ("1@joined", "1@round", "rank 1 ended without leaving the job"),
        ("1@start", "1@round", "rank 1 ended without leaving the job"),
        ("1@start", "1@start", "rank 1 ended before it joined the job"),
    ];
    all_at_once(&cases, |(fork, die, sentence)| {
        let arguments =
            ["--fork", fork, "--die", die, "--rounds", "2", "--wait", "8", "--timeout", "9"];
        let outcome = local("3", &arguments);
        assert_eq!(outcome.count(sentence), 2, "{}", outcome.all());
        assert_eq!(outcome.count("signal: 9 (SIGKILL)"), 1, "{}", outcome.all());
    });
}

#[test]
fn a_rank_that_hangs_is_named_after_the_bound_and_killed_after_the_grace() {
    let outcome = local("3", &["--stop", "1@start", "--timeout", "3", "--grace", "0.2"]);
    assert_eq!(outcome.count("rank 1 of 3 did not join within 3s"), 2, "{}", outcome.all());
    assert_eq!(outcome.count("ranks 0 and 2: exit status: 1; rank 1: signal: 9 (SIGKILL)"), 1);
    assert_eq!(outcome.code, Some(1));
    let outcome = local("3", &["--stop", "1@joined", "--wait", "2", "--grace", "0.2"]);
    let late = "all-gather number 1 did not end within 2s: waiting for rank 1";
    assert!(outcome.count(late) >= 1, "{}", outcome.all());
    assert_eq!(outcome.code, Some(1), "{}", outcome.all());
}

#[test]
fn an_abort_ends_every_rank_with_its_status() {
    let outcome = local("4", &["--abort", "2"]);
    assert_eq!(outcome.code, Some(7), "{}", outcome.all());
    assert_eq!(outcome.count("rank 2 aborted the job: asked to"), 3, "{}", outcome.all());
    assert_eq!(outcome.count("rank 2 aborts the job: asked to"), 1, "{}", outcome.all());
    assert_eq!(outcome.count("ranks 0-3: exit status: 7"), 1, "{}", outcome.all());
}

#[test]
fn ranks_die_with_their_runner() {
    // One rank never joins, so that nobody ends by himself; one hangs before it knows its runner.
    let mut runner = Command::new(PROBE)
        .args(["--local", "3", "--pids", "--stop", "2@joined", "--timeout", "60"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(runner.stderr.take().unwrap()).lines();
    let pids: Vec<i32> = (0..3)
        .map(|_| {
            let line = lines.next().unwrap().unwrap();
            line.split_once(' ').unwrap().1.parse().unwrap()
        })
        .collect();
    runner.kill().unwrap();
    runner.wait().unwrap();
    let begun = Instant::now();
    for pid in pids {
        // Ends when the process is gone, or nobody's child any more and not reaped yet.
        while is_running(pid) {
            if begun.elapsed() > Duration::from_secs(60) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                panic!("rank {pid} lives on");
            }
            std::thread::yield_now();
        }
    }
}

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn a_bad_environment_gives_one_clear_sentence() {
    let said = |variables: &[(&str, &str)]| {
        let outcome = run(PROBE, &[], variables);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""));
        assert_eq!(outcome.err.lines().count(), 1, "{}", outcome.err);
        outcome.err
    };
    let half = said(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert!(half.contains("neither PMI_FD nor PMI_PORT"), "{half}");
    let closed = said(&[("PMI_FD", "77"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert_eq!(closed, "job-probe: PMI_FD 77: Bad file descriptor (os error 9)\n");
    let file = said(&[("PMI_FD", "0"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert!(file.starts_with("job-probe: PMI-1: sending `init` to the server failed"), "{file}");
    let outside = said(&[("PMIX_NAMESPACE", "none"), ("PMIX_RANK", "0")]);
    assert!(outside.starts_with("job-probe: PMIx: "), "{outside}");
    let map = said(&[("HG_JOB_NODES", "0,2")]);
    assert!(map.contains("nodes are numbered from 0 without gaps"), "{map}");
    let none = said(&[("HG_JOB_VIA", "local")]);
    assert!(none.contains("HG_JOB_FD is missing"), "{none}");
    let map = local("3", &["--nodes", "2x2"]);
    assert_eq!(map.err, "job-probe: the node map is for 4 ranks, but the job has 3\n");
}

/// A script that starts such ranks, and says how each ended.
fn ranks_that_meet(at: &str, size: u32, more: &str) -> String {
    let rank = |rank: u32| {
        format!(
            "(HG_JOB_RENDEZVOUS={at} HG_JOB_SIZE={size} HG_JOB_RANK={rank} {PROBE} --timeout 30 {more}; echo ended $?) &"
        )
    };
    let ranks: String = (0..size).rev().map(rank).collect();
    format!("{ranks} wait")
}

#[test]
fn ranks_that_met_in_a_folder_all_end_with_the_status_of_an_abort() {
    let folder = Folder::new("abort");
    let at = format!("dir:{}", folder.text());
    for aborts in ["0", "5"] {
        let script = ranks_that_meet(&at, 6, &format!("--abort {aborts}"));
        let outcome = run("sh", &["-c", &script], &[("HG_JOB_TOKEN", "secret")]);
        assert_eq!(outcome.ends(), [7; 6], "{}", outcome.all());
        let said = format!("rank {aborts} aborted the job: asked to");
        assert_eq!(outcome.count(&said), 5, "{}", outcome.all());
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left");
    }
}

#[test]
fn a_rank_0_that_waits_for_others_to_leave_aborts_at_once() {
    let folder = Folder::new("leave-abort");
    // `exec`: what is killed at the end is the stopped rank itself, which rank 0 would wait for.
    let script = format!(
        "(HG_JOB_RANK=1 exec {PROBE} --stop 1@leaving) & HG_JOB_RANK=0 timeout 20 {PROBE} --leave-abort 0; echo ended $?; kill -9 $!"
    );
    let at = format!("dir:{}", folder.text());
    let outcome = run("sh", &["-c", &script], &[("HG_JOB_RENDEZVOUS", &at), ("HG_JOB_SIZE", "2")]);
    assert_eq!(outcome.ends(), [7], "{}", outcome.all());
    assert_eq!(outcome.count("rank 0 aborts the job: asked to"), 1, "{}", outcome.all());
}

#[test]
fn ranks_meet_in_a_folder_and_at_an_address() {
    let folder = Folder::new("meet");
    let at = format!("dir:{}", folder.text());
    let script = |at: &str| ranks_that_meet(at, 3, "");
    let outcome = run("sh", &["-c", &script(&at)], &[("HG_JOB_TOKEN", "secret")]);
    assert_one_node(&outcome.ranks(), 3, "rendezvous");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is left behind");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let outcome = run("sh", &["-c", &script(&format!("tcp:127.0.0.1:{port}"))], &[]);
    assert_one_node(&outcome.ranks(), 3, "rendezvous");
}

#[test]
fn a_rank_0_that_hangs_is_named_by_those_who_wait_for_it() {
    let folder = Folder::new("hang");
    // `exec`: what is killed at the end is the stopped rank itself.
    let script = format!(
        "(HG_JOB_RANK=0 exec {PROBE} --stop 0@joined) & HG_JOB_RANK=1 {PROBE} --timeout 20 --wait 0.5; echo ended $?; kill -9 $!"
    );
    let at = format!("dir:{}", folder.text());
    let outcome = run("sh", &["-c", &script], &[("HG_JOB_RENDEZVOUS", &at), ("HG_JOB_SIZE", "2")]);
    // Of the all-gather; or of joining, where rank 0 stands still before its hub has told rank 1 that all are here.
    let silent = ", and rank 0, which holds the job together, does not answer";
    let of = |what: &str| outcome.count(&format!("{what}{silent}"));
    let said = of("all-gather did not end within 500ms") + of("joining did not end within 20s");
    assert_eq!(said, 1, "{}", outcome.all());
    assert_eq!(outcome.ends(), [1], "{}", outcome.all());
}
