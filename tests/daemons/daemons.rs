//! Daemons `hg-visor` in threads of a test, which stand for nodes: who opens `visor://` with the name of one goes through it.
//!
//! This file stands alone, so that tests of several packages can take it in by `#[path]`.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use hg_visor::{Config, Daemon, Question, Stopper, ask};
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Daemons that reach one another over tcp.
pub(crate) struct Daemons(Vec<Node>);

struct Node {
    name: String,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Daemons {
    pub(crate) fn start(count: u32) -> Self {
        Self((0..count).map(|_| Node::start()).collect())
    }

    /// The name of a node's daemon; where there are fewer daemons, they take turns.
    pub(crate) fn name(&self, node: u32) -> &str {
        &self.0[node as usize % self.0.len()].name
    }

    /// Waits until no daemon knows an application or a connection any more, nor has anything to send. Nobody was sent away. What each has
    /// counted by then.
    pub(crate) fn until_nothing_is_left(&self) -> Vec<Value> {
        let ended = |node: &Node| {
            let mut status = Value::Null;
            watchdog::until("nothing is left at a daemon", || {
                status = node.status();
                ["applications", "connections", "bytes_waiting"].iter().all(|it| status[it] == 0)
            });
            assert_eq!(status["disconnected"], 0, "{status}");
            status
        };
        self.0.iter().map(ended).collect()
    }
}

impl Node {
    fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: all that counts is that no two are the same.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut config = Config::over("tcp://127.0.0.1:0");
        config.name = format!("daemon-{}-{number}", std::process::id());
        let name = config.name.clone();
        let mut daemon = Daemon::open(config).expect("a daemon opens");
        let stopper = daemon.stopper();
        let thread = thread::spawn(move || daemon.run().expect("it goes on until it is stopped"));
        Self { name, stopper, thread: Some(thread) }
    }

    fn status(&self) -> Value {
        let answer = ask(&self.name, Question::Status, PATIENCE).expect("a daemon answers");
        serde_json::from_str(&answer.text).expect("a status is JSON")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopper.stop();
        // Its panic was said; a second one would hide it.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
