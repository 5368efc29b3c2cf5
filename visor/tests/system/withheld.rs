//! Requests that wait for admission while their senders end with the daemon.

use std::time::Instant;

use hg_na::{Address, Completion, Context, Message, Op, OpenOptions, Peer, Plugin as _};
use hg_visor::VisorPlugin;
use watchdog::{Watchdog, until};

use crate::common::Daemon;

/// Applications that call, and requests of each. A round admits 256: the last one's are left over, and were so many that it was to be
/// given credits back.
const CALLERS: usize = 5;
const REQUESTS: usize = 60;
const ADMITTED: usize = 256;

/// One endpoint, and what it has heard.
struct Application {
    context: Box<dyn Context>,
    /// Of the latest round.
    now: Instant,
    sent: usize,
    requests: usize,
    notices: Vec<Peer>,
    hung_up: usize,
}

impl Application {
    fn new(daemon: &Daemon, url: &str) -> Self {
        let url = Address::new(url).unwrap();
        let plugin = VisorPlugin::through(&daemon.name);
        let context = plugin.open(&url, &OpenOptions::listening()).unwrap().context(0).unwrap();
        let (now, notices) = (Instant::now(), Vec::new());
        Self { context, now, sent: 0, requests: 0, notices, hung_up: 0 }
    }

    fn progress(&mut self) {
        self.progress_at(Instant::now());
    }

    fn progress_at(&mut self, now: Instant) {
        self.now = now;
        let mut done = Vec::new();
        self.context.progress(now, &mut done).unwrap();
        for completion in done {
            match completion {
                Completion::Unexpected { .. } => self.requests += 1,
                Completion::Control { from, .. } => self.notices.push(from),
                Completion::HungUp { .. } => self.hung_up += 1,
                Completion::Done(done) => {
                    done.result.unwrap();
                    self.sent += 1;
                }
                _ => {}
            }
        }
    }

    fn notify(&mut self, to: Peer) {
        self.context.post(0, Op::SendControl { to, message: Message::copied(b"hello") }).unwrap();
    }

    /// Sends so many requests, and then a notice, which the target hears: all of them are there.
    fn call(&mut self, target: &mut Self, requests: usize) {
        let to = self.context.lookup(target.context.address()).unwrap();
        for _ in 0..requests {
            let message = Message::copied(b"please");
            self.context.post(0, Op::SendUnexpected { to, message }).unwrap();
        }
        until("the requests have left", || {
            self.progress();
            self.sent == requests
        });
        self.notify(to);
        let before = target.notices.len();
        until("the target hears of them", || {
            self.progress();
            target.progress();
            target.notices.len() > before
        });
    }
}

/// A target that withholds the requests of callers which have ended with their daemon.
fn withholding(mut daemon: Daemon) -> Application {
    let mut target = Application::new(&daemon, "visor://store");
    target.context.set_admission(false);
    let callers = (0..CALLERS).map(|_| {
        let mut caller = Application::new(&daemon, "visor://");
        caller.call(&mut target, REQUESTS);
        caller
    });
    let callers: Vec<_> = callers.collect();
    daemon.process.kill();
    drop(callers);
    until("the callers have ended", || {
        target.progress();
        target.hung_up == CALLERS
    });
    assert_eq!(target.requests, 0);
    target
}

#[test]
fn what_callers_that_have_ended_were_to_be_given_back_keeps_nobody_awake() {
    let _watchdog = Watchdog::start();
    let mut target = withholding(Daemon::start("one", 0));
    // It is not yet time to look for another daemon.
    let now = target.now;
    target.context.set_admission(true);
    target.progress_at(now);
    assert_eq!(target.requests, ADMITTED);
    target.context.set_admission(false);
    until("it may sleep", || {
        target.progress_at(now);
        target.context.may_sleep()
    });
}

#[test]
fn what_callers_that_have_ended_were_to_be_given_back_is_not_given_to_others() {
    let _watchdog = Watchdog::start();
    let first = Daemon::start("one", 0);
    let port = first.address.rsplit(':').next().unwrap().parse().unwrap();
    let mut target = withholding(first);
    // The daemon's successor gives its callers the same numbers.
    let second = Daemon::start("one", port);
    until("the target has found it", || {
        target.progress();
        second.status()["applications"] == 1
    });
    let callers = (0..CALLERS).map(|_| {
        let mut caller = Application::new(&second, "visor://");
        caller.call(&mut target, 0);
        caller
    });
    let mut callers: Vec<_> = callers.collect();
    target.context.set_admission(true);
    target.progress();
    assert_eq!(target.requests, ADMITTED);
    for peer in target.notices.split_off(CALLERS) {
        target.notify(peer);
    }
    for caller in &mut callers {
        until("it is answered, or its connection has ended", || {
            target.progress();
            caller.progress();
            caller.notices.len() + caller.hung_up > 0
        });
        assert_eq!(caller.hung_up, 0);
    }
}
