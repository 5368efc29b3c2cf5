//! What every plugin promises: through one daemon, and through two.

use std::{
    os::unix::process::parent_id,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_visor::{Config, Daemon, VisorPlugin};

/// Set in a process that the suite starts: its daemons are its parent's.
const CHILD: &str = "HG_CONFORMANCE_PARENT";

/// The name of one of the test's daemons.
fn name(which: u64) -> String {
    let pid = if std::env::var(CHILD).is_ok() { parent_id() } else { std::process::id() };
    format!("visor-test-{pid}-{which}")
}

/// Starts both daemons, each in a thread of this process.
fn start() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        if std::env::var(CHILD).is_ok() {
            return;
        }
        for which in 0..2 {
            let mut config = Config::over("tcp://127.0.0.1:0");
            config.name = name(which);
            let mut daemon = Daemon::open(config).expect("a daemon opens on loopback");
            std::thread::spawn(move || daemon.run().expect("it goes on"));
        }
    });
}

/// Every domain is another node's than the last; a name's is always the same.
#[derive(Debug, Clone, Copy)]
struct Nodes(u64);

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
        VisorPlugin::through(&name(which % self.0)).open(url, options)
    }
}

mod inside_a_node {
    use super::*;

    hg_na_conformance::suite!(Nodes(1), "visor://", report = watchdog::report);
}

mod between_nodes {
    use super::*;

    hg_na_conformance::suite!(Nodes(2), "visor://", report = watchdog::report);
}
