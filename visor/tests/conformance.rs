//! What every plugin promises: through one daemon, through two over tcp, and through two over an imitation of RDMA cards.

#[path = "../../na/verbs/tests/imitated/imitation/mod.rs"]
#[expect(dead_code, reason = "a part of it is used")]
mod imitation;

use std::{
    os::unix::process::parent_id,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_verbs::VerbsPlugin;
use hg_visor::{Config, Daemon, VisorPlugin};

/// Set in a process that the suite starts: its daemons are its parent's.
const CHILD: &str = "HG_CONFORMANCE_PARENT";

/// The name of one of the test's daemons.
fn name(which: u64) -> String {
    let pid = if std::env::var(CHILD).is_ok() { parent_id() } else { std::process::id() };
    format!("visor-test-{pid}-{which}")
}

/// Starts the daemons, each in a thread of this process: two over tcp, and two over RDMA cards.
fn start() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        if std::env::var(CHILD).is_ok() {
            return;
        }
        for (which, url) in
            ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "verbs://imitated0", "verbs://imitated1"]
                .into_iter()
                .enumerate()
        {
            let mut config = Config::over(url);
            config.name = name(which as u64);
            let opened = match url.starts_with("verbs") {
                true => Daemon::open_over(&VerbsPlugin::over(&imitation::LIBRARY), config),
                false => Daemon::open(config),
            };
            let mut daemon = opened.expect("a daemon opens");
            std::thread::spawn(move || daemon.run().expect("it goes on"));
        }
    });
}

/// Every domain is another node's than the last, of so many from this one on; a name's is always the same.
#[derive(Debug, Clone, Copy)]
struct Nodes(u64, u64);

impl Plugin for Nodes {
    fn schemes(&self) -> &[&str] {
        &["visor"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        start();
        let which = match url.rest().bytes().last() {
            Some(byte) => u64::from(byte),
            // Relaxed: only the number counts. A child's first one is the parent's second.
            None => LAST.fetch_add(1, Ordering::Relaxed) + u64::from(std::env::var(CHILD).is_ok()),
        };
        VisorPlugin::through(&name(self.1 + which % self.0)).open(url, options)
    }
}

mod inside_a_node {
    use super::*;

    hg_na_conformance::suite!(Nodes(1, 0), "visor://", report = watchdog::report);
}

mod between_nodes {
    use super::*;

    hg_na_conformance::suite!(Nodes(2, 0), "visor://", report = watchdog::report);
}

mod between_nodes_with_cards {
    use super::*;

    hg_na_conformance::suite!(Nodes(2, 2), "visor://", report = watchdog::report);
}
