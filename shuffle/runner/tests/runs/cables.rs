//! Ranks on two hosts that are network namespaces, and a cable between them that is cut in the middle of the work.

use std::{
    collections::BTreeSet,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use watchdog::Watchdog;

use crate::{
    RUNNER,
    accounts::Accounts,
    common::{File, Outcome},
    hosts::{Hosts, or_skip},
};

/// Four ranks, 0 and 1 on the first host. Ranks 1 and 2 represent their hosts towards one another.
const RANKS: usize = 4;

struct Ranks(Vec<Child>, #[expect(dead_code, reason = "dropping it is what it is for")] Watchdog);

impl Ranks {
    /// They meet in a folder, as those of any launcher that only numbers them.
    fn start(hosts: &Hosts, folder: &File, more: &[&str]) -> Self {
        std::fs::create_dir(&folder.0).unwrap();
        let own = ["-k", "2", "150", RUNNER, "--json", "--url", "tcp://", "--warm-up", "10"];
        let rank = |rank: usize| {
            let mut command = hosts.host(rank / 2).command("timeout");
            command.args(own).args(more).env("HG_JOB_RANK", rank.to_string());
            command.env("HG_JOB_SIZE", RANKS.to_string());
            command.env("HG_JOB_RENDEZVOUS", format!("dir:{}", folder.text()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        Self((0..RANKS).map(rank).collect(), Watchdog::start())
    }

    fn has_ended(&mut self) -> bool {
        self.0.iter_mut().any(|rank| rank.try_wait().unwrap().is_some())
    }

    /// Waits for something that happens while all of them run.
    fn until(&mut self, is_so: impl Fn() -> bool) {
        while !is_so() {
            if self.has_ended() {
                self.0.iter_mut().for_each(|rank| drop(rank.kill()));
                let (outcome, codes) = Self(std::mem::take(&mut self.0), Watchdog::start()).end();
                panic!("ended too early: {codes:?}, {}", outcome.all());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// What all said, and how each ended.
    fn end(self) -> (Outcome, Vec<Option<i32>>) {
        let ended = self.0.into_iter().map(|mut rank| watchdog::ended(&mut rank));
        let mut all = Outcome { code: None, out: String::new(), err: String::new() };
        let mut codes = Vec::new();
        for ended in ended {
            codes.push(ended.status.code());
            all.out.push_str(&String::from_utf8_lossy(&ended.stdout));
            all.err.push_str(&String::from_utf8_lossy(&ended.stderr));
        }
        (all, codes)
    }
}

/// Waits until the work between the hosts is in full swing.
fn let_flow(ranks: &mut Ranks, hosts: &Hosts) {
    let before = hosts.link(1).traffic();
    ranks.until(|| hosts.link(1).traffic() >= before + (2 << 20));
}

#[test]
fn a_cable_that_is_cut_for_good_or_mended_too_late_ends_the_run_and_every_message_is_accounted_for()
{
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    for is_mended in [false, true] {
        let folder = File::new(&format!("cut-{is_mended}"));
        let work = ["--duration", "600", "--setting", "silence-bound-ms=3000"];
        let mut ranks = Ranks::start(&hosts, &folder, &work);
        let_flow(&mut ranks, &hosts);
        hosts.link(1).down();
        let begun = Instant::now();
        if is_mended {
            // The others may not have noticed yet.
            while !ranks.has_ended() {
                thread::sleep(Duration::from_millis(5));
            }
            hosts.link(1).up();
        }
        let (outcome, codes) = ranks.end();
        hosts.link(1).up();
        let said = format!("{codes:?} after {:?}: {}", begun.elapsed(), outcome.all());
        assert_eq!(codes, [Some(1); RANKS], "{said}");
        let accounts = Accounts::of(&outcome, "2x2");
        assert_eq!(accounts.ranks(), [0, 1, 2, 3], "{said}");
        // Each host misses the representative of the other one.
        assert_eq!(accounts.failed(), BTreeSet::from([1, 2]), "{said}");
        accounts.assert_exact();
        assert_eq!(
            outcome.err.matches(" failed (the hop between nodes): ").count(),
            RANKS,
            "{said}"
        );
    }
}

#[test]
fn a_cable_that_is_mended_in_time_only_delays_the_messages() {
    let Some(hosts) = or_skip(Hosts::new(2)) else { return };
    let folder = File::new("mended");
    let mut ranks = Ranks::start(&hosts, &folder, &["--duration", "3"]);
    let_flow(&mut ranks, &hosts);
    hosts.link(1).down();
    // Whoever had something on its way repeats it, ever more rarely.
    let repeated = || (0..2).map(|host| hosts.host(host).retransmits()).sum::<u64>();
    let before = repeated();
    ranks.until(|| repeated() >= before + 3);
    hosts.link(1).up();
    let (mut outcome, codes) = ranks.end();
    assert_eq!(codes, [Some(0); RANKS], "{}", outcome.all());
    outcome.code = codes[0];
    outcome.total(RANKS as u64);
}
