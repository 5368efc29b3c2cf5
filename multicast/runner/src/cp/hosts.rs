//! The hosts that are copied to: how their receivers are started, and since when they give no sign of life.

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use hg_job_runner::say::say;
use hg_multicast_copy::{offer::one_line, path::Below};

use crate::{
    NAME,
    arguments::{Arguments, Target},
    key::Key,
    started::Started,
};

/// A host that is copied to.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) into: Option<Below>,
    pub(crate) address: Option<String>,
    /// Kept until the copy is over.
    started: Option<Started>,
    /// `None`: under way.
    pub(crate) outcome: Option<Result<(), String>>,
}

impl Host {
    pub(crate) fn fail(&mut self, why: &dyn std::fmt::Display) {
        // Much of it another host has said.
        let why = one_line(&why.to_string());
        say(&format!("{NAME}: {}: {why}", self.name));
        self.outcome = Some(Err(why));
        if let Some(started) = &mut self.started {
            started.kill();
        }
    }

    /// Whether its receiver was started for this copy.
    pub(crate) fn is_started(&self) -> bool {
        self.started.is_some()
    }

    /// The copy is over.
    pub(crate) fn release(&mut self) {
        if let Some(started) = &mut self.started {
            started.release();
        }
    }

    /// It gives no sign of life, and is not waited for.
    pub(crate) fn give_up(&mut self) {
        self.fail(&"has given no sign of life for too long, and is left out (--give-up)");
    }
}

/// All at a time: most of it is waiting.
pub(crate) fn start_all(arguments: &Arguments, key: Option<Key>, targets: &[Target]) -> Vec<Host> {
    let start = |target: &Target| match target {
        Target::Address { address, folder } => Host {
            name: address.clone(),
            into: folder.clone(),
            address: Some(address.clone()),
            started: None,
            outcome: None,
        },
        Target::Host { host, folder } => {
            let key = key.expect("there is one where a receiver is started");
            let started = Started::start(arguments, key, host, folder);
            let mut this = Host {
                name: host.clone(),
                into: None,
                address: None,
                started: None,
                outcome: None,
            };
            match started {
                Ok((started, address)) => {
                    this.address = Some(address);
                    this.started = Some(started);
                }
                Err(why) => this.fail(&why),
            }
            this
        }
    };
    let (done, ended) = mpsc::channel();
    let mut hosts: Vec<Option<Host>> = targets.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for (at, target) in targets.iter().enumerate() {
            let (start, done) = (&start, done.clone());
            scope.spawn(move || done.send((at, start(target))));
        }
        drop(done);
        let mut is_said = false;
        loop {
            match ended.recv_timeout(PATIENCE) {
                Ok((at, host)) => hosts[at] = Some(host),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if is_said => {}
                Err(RecvTimeoutError::Timeout) => {
                    is_said = true;
                    let late = targets.iter().zip(&hosts).filter(|(_, host)| host.is_none());
                    late.for_each(|(target, _)| {
                        say(&format!("{NAME}: {target}: is still being started"))
                    });
                }
            }
        }
    });
    hosts.into_iter().map(|host| host.expect("starting does not panic")).collect()
}

/// Since when nothing has moved.
pub(crate) struct Stall {
    moved: u64,
    looked: Instant,
    /// Who was named since then; `None`: nobody was to be named.
    pub(crate) said: HashSet<Option<usize>>,
    /// Since when those who gave no sign of life the last time have given none.
    silent: HashMap<usize, Instant>,
}

impl Default for Stall {
    fn default() -> Self {
        let now = Instant::now();
        Self { moved: 0, looked: now, said: HashSet::new(), silent: HashMap::new() }
    }
}

impl Stall {
    /// Whether nothing has moved for so long, and nobody has looked after it for as long.
    pub(crate) fn is_due(&mut self, moved: u64, patience: Duration) -> bool {
        if moved != self.moved {
            *self = Self { moved, ..Self::default() };
        }
        let is_due = self.looked.elapsed() >= patience;
        if is_due {
            self.looked = Instant::now();
        }
        is_due
    }

    /// These have given no sign of life, and all others one, since `asked`; gives those who have given none for so long.
    pub(crate) fn silent_for(
        &mut self,
        silent: &[usize],
        asked: Instant,
        give_up: Option<Duration>,
    ) -> Vec<usize> {
        self.silent.retain(|host, _| silent.contains(host));
        let mut since = |host: &usize| *self.silent.entry(*host).or_insert(asked);
        let quiet: Vec<_> = silent.iter().map(|host| (*host, since(host))).collect();
        let is_lost = |since: Instant| give_up.is_some_and(|it| since.elapsed() >= it);
        quiet.into_iter().filter(|it| is_lost(it.1)).map(|it| it.0).collect()
    }
}

/// Who does not answer for so long is named.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_says_is_said_on_one_line_without_what_a_terminal_obeys() {
        let mut host = Host {
            name: "host".to_owned(),
            into: None,
            address: None,
            started: None,
            outcome: None,
        };
        host.fail(&"\u{1b}[2Jtwo\nlines \u{e9}");
        assert_eq!(host.outcome, Some(Err("\\u{1b}[2Jtwo\\nlines \u{e9}".to_owned())));
    }
}
