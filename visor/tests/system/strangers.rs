//! Who speaks to a daemon otherwise than applications do.

use std::{
    io::{ErrorKind, Read as _},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Message, Op, OpenOptions, Peer, Plugin as _,
    QUIET, Rejected,
};
use hg_na_sm::SmPlugin;
use hg_visor::VisorPlugin;
use watchdog::{Watchdog, until};

use crate::common::{Daemon, echo, engine, listening};

/// A process of its own kind: an `sm` context that says what it likes.
struct Liar {
    context: Box<dyn Context>,
    daemon: Peer,
    heard: Vec<Vec<u8>>,
    gone: Option<GoneReason>,
}

impl Liar {
    fn new(daemon: &Daemon) -> Self {
        let url = Address::new("sm://").unwrap();
        let mut context = SmPlugin.open(&url, &OpenOptions::default()).unwrap().context(0).unwrap();
        let there = Address::new(&format!("sm://{}", daemon.name)).unwrap();
        let daemon = context.lookup(&there).unwrap();
        Self { context, daemon, heard: Vec::new(), gone: None }
    }

    fn progress(&mut self) {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).unwrap();
        for completion in done {
            match completion {
                Completion::Unexpected { message, .. } => self.heard.push(message.into_vec()),
                Completion::Gone { reason, .. } => self.gone = Some(reason),
                _ => {}
            }
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        let mut message = Message::copied(bytes);
        while self.gone.is_none() {
            let op = Op::SendUnexpected { to: self.daemon, message };
            match self.context.post(QUIET, op) {
                Ok(_) => return,
                Err(Rejected { op: Op::SendUnexpected { message: back, .. }, error }) => {
                    assert!(matches!(error, Error::Again | Error::PeerGone(_)), "{error}");
                    message = back;
                }
                Err(other) => panic!("{other:?}"),
            }
            self.progress();
        }
    }

    fn hears(&mut self, count: usize) {
        until("the daemon answers", || {
            self.progress();
            self.heard.len() >= count
        });
    }

    fn is_sent_away(&mut self) {
        until("the liar is sent away", || {
            self.progress();
            self.gone.is_some()
        });
    }

    /// As an application of this name.
    fn greeted(daemon: &Daemon, name: &str) -> Self {
        let mut liar = Self::new(daemon);
        let mut hello = frame(1, 0, 0);
        hello.extend([4, 0, 0, 0, 1]);
        hello.extend(name.as_bytes());
        liar.say(&hello);
        liar.hears(1);
        assert_eq!(liar.heard[0][0], 2, "welcome");
        liar
    }
}

/// A header, as `wire.rs` has it.
fn frame(kind: u8, id: u32, word: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(word.to_le_bytes());
    bytes
}

const OPEN: u8 = 4;
const DATA: u8 = 7;
const WINDOW: u8 = 8;
const CLOSE: u8 = 9;

#[test]
fn whoever_lies_forges_or_floods_is_sent_away_and_nobody_else_notices() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    let honest = |number: u64| {
        assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
    };
    honest(0);
    let before = daemon.status();
    for bytes in
        [&b"rubbish"[..], &[0xFF; 16], &[0xFF; 300], &frame(OPEN, 1, 0), &frame(DATA, 1, 0)]
    {
        let mut liar = Liar::new(&daemon);
        liar.say(bytes);
        liar.is_sent_away();
        honest(1);
    }
    let mut liar = Liar::greeted(&daemon, "forger/0");
    // Ids of connections that are others'.
    for id in (0..64).flat_map(|it| [it, it | 1 << 31]) {
        liar.say(&[frame(DATA, id, 0), vec![7; 100]].concat());
        liar.say(&frame(WINDOW, id, 1 << 16));
    }
    honest(2);
    let text = target.address().to_string();
    liar.say(&[frame(OPEN, 5, 0), text.clone().into_bytes()].concat());
    liar.hears(2);
    let mut flood = [frame(DATA, 5, 0), vec![7; 16_000]].concat();
    flood[1] = 77; // Of no sort that its target knows: the target closes, and nothing worse.
    liar.say(&flood);
    liar.hears(3);
    honest(3);
    drop(liar);
    let mut liar = Liar::greeted(&daemon, "flooder/0");
    liar.say(&[frame(OPEN, 5, 0), text.into_bytes()].concat());
    liar.hears(2);
    // Its target takes what comes, but not at once; nor does this one wait for it.
    let flood = [frame(DATA, 5, 0), vec![7; 16_000]].concat();
    for _ in 0..4000 {
        liar.say(&flood);
    }
    until("the flooder is closed by its target, or sent away", || {
        liar.progress();
        liar.gone.is_some() || liar.heard.iter().any(|it| it[0] == CLOSE)
    });
    honest(4);
    drop(liar);
    daemon.until("nothing is left of them", |status| {
        status["applications"] == before["applications"] && status["connections"] == 1
    });
}

#[test]
fn a_message_that_is_longer_than_any_may_be_costs_its_sender_the_connection() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let url = Address::new("visor://target").unwrap();
    let plugin = VisorPlugin::through(&daemon.name);
    let domain = plugin.open(&url, &OpenOptions::listening()).unwrap();
    let mut target = domain.context(0).unwrap();
    let longest = domain.caps().max_unexpected;
    let mut honest = Vec::new();
    for (number, len) in [(1, longest), (2, longest + 1)] {
        let mut liar = Liar::greeted(&daemon, &format!("long/{number}"));
        liar.say(&[frame(OPEN, 5, 0), target.address().as_str().into()].concat());
        liar.hears(2);
        let mut long = [frame(DATA, 5, 0), vec![7; len]].concat();
        long[1] = 3; // An unexpected message.
        liar.say(&long);
        let (mut came, mut gone) = (None, None);
        until("the message comes, or its sender is gone", || {
            let mut done = Vec::new();
            target.progress(Instant::now(), &mut done).unwrap();
            for completion in done {
                match completion {
                    Completion::Unexpected { message, .. } => came = Some(message.len()),
                    Completion::Gone { reason, .. } => gone = Some(reason),
                    _ => {}
                }
            }
            came.is_some() || gone.is_some()
        });
        if len == longest {
            assert_eq!((came, gone), (Some(len), None));
            honest.push(liar); // Which does not go meanwhile.
            continue;
        }
        assert!(matches!(gone, Some(GoneReason::Misbehaved(_))), "{came:?} {gone:?}");
        liar.hears(3);
        assert_eq!(liar.heard[2][0], CLOSE);
    }
}

/// Daemons that are called at a time for one application, and have not answered.
const UNANSWERED_MAX: usize = 16;

/// Addresses at which somebody listens and says nothing.
struct Silent {
    listeners: Vec<TcpListener>,
    callers: Vec<TcpStream>,
}

impl Silent {
    fn new(count: usize) -> Self {
        let listeners: Vec<_> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        for listener in &listeners {
            listener.set_nonblocking(true).unwrap();
        }
        Self { listeners, callers: Vec::new() }
    }

    /// Who calls there now.
    fn callers(&mut self) -> usize {
        for listener in &self.listeners {
            self.callers.extend(listener.accept().map(|(stream, _)| stream));
        }
        self.callers.retain_mut(|caller| {
            caller.set_nonblocking(true).unwrap();
            loop {
                match caller.read(&mut [0; 4096]) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
        });
        self.callers.len()
    }
}

#[test]
fn an_application_has_so_many_daemons_called_that_say_nothing_and_others_call_meanwhile() {
    let _watchdog = Watchdog::start();
    let (daemon, far) = (Daemon::start("one", 0), Daemon::start("far", 0));
    let mut silent = Silent::new(3 * UNANSWERED_MAX);
    let mut liar = Liar::greeted(&daemon, "caller/0");
    for (id, listener) in (1..).zip(&silent.listeners) {
        let target = format!("visor://x/0@tcp://{}", listener.local_addr().unwrap());
        liar.say(&[frame(OPEN, id, 0), target.into_bytes()].concat());
    }
    until("as many are called as may be", || {
        liar.progress();
        silent.callers() >= UNANSWERED_MAX
    });
    let (target, origin) = (listening(&far, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    assert!(silent.callers() <= UNANSWERED_MAX, "more are called");
    // They end, and the next ones are called.
    silent.listeners.drain(..UNANSWERED_MAX);
    silent.callers.clear();
    until("the next ones have their turn", || {
        liar.progress();
        silent.callers() == UNANSWERED_MAX
    });
}
