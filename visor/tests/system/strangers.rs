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

use crate::common::{Daemon, echo, engine, listening, through};

/// Applications of the daemon where many others connect; its places besides, and how many of all those it keeps free.
const APPLICATIONS: usize = 2;
const SPARE: usize = 256;
const RESERVE: usize = 64;

/// A process of its own kind: an `sm` context that says what it likes.
pub(crate) struct Liar {
    context: Box<dyn Context>,
    daemon: Peer,
    pub(crate) heard: Vec<Vec<u8>>,
    pub(crate) gone: Option<GoneReason>,
}

impl Liar {
    /// To the daemon of this name.
    fn new(daemon: &str) -> Self {
        let url = Address::new("sm://").unwrap();
        let options = OpenOptions::default().with("allow-uid", "0");
        let mut context = SmPlugin.open(&url, &options).unwrap().context(0).unwrap();
        let daemon = context.lookup(&Address::new(&format!("sm://{daemon}")).unwrap()).unwrap();
        Self { context, daemon, heard: Vec::new(), gone: None }
    }

    /// One that is connected, and says nothing to the daemon.
    fn silent(daemon: &str) -> Self {
        let mut liar = Self::new(daemon);
        let message = Message::copied(b"of no sort that daemons take");
        let op = Op::SendExpected { to: liar.daemon, tag: 1, message };
        liar.context.post(QUIET, op).unwrap();
        liar.until("it is connected", |it| it.context.is_connected(it.daemon));
        liar
    }

    pub(crate) fn progress(&mut self) {
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

    /// Says it if it can be said now.
    pub(crate) fn tries(&mut self, bytes: &[u8]) {
        let op = Op::SendUnexpected { to: self.daemon, message: Message::copied(bytes) };
        let _accepted_or_not = self.context.post(QUIET, op);
        self.progress();
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
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

    /// What it said has left: accepted words may wait in its own context, which nobody drives for it.
    pub(crate) fn flush(&mut self) {
        self.until("what it said has left", |it| it.context.flush());
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        until(what, || {
            self.progress();
            is_so(self)
        });
    }

    pub(crate) fn hears(&mut self, count: usize) {
        self.until("the daemon answers", |it| it.heard.len() >= count);
    }

    fn is_sent_away(&mut self) {
        self.until("the liar is sent away", |it| it.gone.is_some());
    }

    /// As an application of this name.
    pub(crate) fn greeted(daemon: &str, name: &str) -> Self {
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
pub(crate) fn frame(kind: u8, id: u32, word: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(word.to_le_bytes());
    bytes
}

pub(crate) const OPEN: u8 = 4;
pub(crate) const INCOMING: u8 = 5;
pub(crate) const DATA: u8 = 7;
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
    let plugin = VisorPlugin::through(&daemon.name);
    let url = Address::new("visor://still").unwrap();
    let domain = plugin.open(&url, &OpenOptions::listening()).unwrap();
    let mut still = domain.context(0).unwrap();
    for bytes in
        [&b"rubbish"[..], &[0xFF; 16], &[0xFF; 300], &frame(OPEN, 1, 0), &frame(DATA, 1, 0)]
    {
        let mut liar = Liar::new(&daemon.name);
        liar.say(bytes);
        liar.is_sent_away();
        honest(1);
    }
    // Ids of connections that are others', or nobody's.
    for (number, id) in [0, 1, 1 | 1 << 31, 77].into_iter().enumerate() {
        for bytes in [[frame(DATA, id, 0), vec![7; 100]].concat(), frame(WINDOW, id, 1 << 16)] {
            let mut liar = Liar::greeted(&daemon.name, &format!("forger/{number}"));
            (0..64).for_each(|_| liar.say(&bytes));
            liar.is_sent_away();
            honest(2);
        }
    }
    let mut liar = Liar::greeted(&daemon.name, "talker/0");
    liar.say(&[frame(OPEN, 5, 0), target.address().as_str().into()].concat());
    liar.hears(2);
    let mut flood = [frame(DATA, 5, 0), vec![7; 16_000]].concat();
    flood[1] = 77; // Of no sort that its target knows: the target closes, and nothing worse.
    liar.say(&flood);
    liar.hears(3);
    honest(3);
    drop(liar);
    let mut liar = Liar::greeted(&daemon.name, "flooder/0");
    liar.say(&[frame(OPEN, 5, 0), still.address().as_str().into()].concat());
    liar.hears(2);
    // Its target takes nothing meanwhile.
    let mut flood = [frame(DATA, 5, 0), vec![7; 16_000]].concat();
    flood[1] = 2; // An expected message.
    for _ in 0..4000 {
        liar.say(&flood);
    }
    liar.is_sent_away();
    honest(4);
    let mut said = None;
    until("its target hears why", || {
        let mut done = Vec::new();
        still.progress(Instant::now(), &mut done).unwrap();
        said = done.into_iter().find_map(|it| match it {
            Completion::Gone { reason, .. } => Some(reason.to_string()),
            _ => None,
        });
        said.is_some()
    });
    assert!(said.as_ref().is_some_and(|it| it.contains("window")), "{said:?}");
    drop((liar, still, domain));
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
        let mut liar = Liar::greeted(&daemon.name, &format!("long/{number}"));
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

#[test]
fn processes_that_say_nothing_keep_out_nobody_and_the_oldest_make_room() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::with("one", 0, &format!("max-applications = {APPLICATIONS}\n"));
    let some = APPLICATIONS + SPARE - RESERVE;
    let mut silent: Vec<_> = (0..some).map(|_| Liar::silent(&daemon.name)).collect();
    // There are more of them in the end than places: each time the oldest make room for as many as come.
    for round in 1..=3 {
        silent.extend((0..RESERVE / 2).map(|_| Liar::silent(&daemon.name)));
        let old = round * RESERVE / 2;
        silent[..old].iter_mut().for_each(Liar::is_sent_away);
        silent.iter_mut().for_each(Liar::progress);
        assert!(silent[old..].iter().all(|it| it.gone.is_none()), "no more than have to");
    }
    assert!(silent.len() > APPLICATIONS + SPARE);
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    assert_eq!(daemon.status()["applications"], APPLICATIONS);
    let said = through(&daemon.name, "visor://", false).unwrap_err().to_string();
    assert!(said.contains("max-applications"), "{said}");
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
    let mut liar = Liar::greeted(&daemon.name, "caller/0");
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
