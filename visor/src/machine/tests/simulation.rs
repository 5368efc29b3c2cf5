//! Several daemons with applications, in random order: applications come, open, send, stop, close, lie and die, and ways between nodes
//! are cut, and daemons are drained by a deadline, after which others take their places. Time passes, and ways that carry nothing end. Some
//! daemons do not answer. Daemons own one network or two, which take frames of different lengths. Several contexts are of one process. Each frame says who has sent it over what, and which one it is there.
//!
//! - What one application sends over a connection comes to one other, in order, each once; nothing is lost but by a death or a cut.
//! - An honest application is never disconnected, whatever others do, and is told the end of each connection exactly once.
//! - No frame is longer than both networks take, and whoever sends a longer one is ended.
//! - A daemon that is drained takes no connection, tells both ends of those that are left, and whoever wanted it how many there were.
//! - A way that carries nothing for long is ended by whoever has called there, and nobody is told anything by that.
//! - An application has so many daemons called at a time that do not answer; its other connections wait, and are opened once it may call.
//! - The contexts of a process have one quota among them.
//! - What a daemon keeps is bounded by the connections that there are; in the end nothing is left, no way to another daemon either.

mod drains;
mod idle;
mod networks;
mod processes;
mod silent;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use drains::Drain;
use hg_na::{GoneReason, Message};

use crate::{
    machine::{Effect, IDLE, PartyKey, Quota, Switch},
    wire::{
        FRAME_MAX, HEADER_LEN, Header, Hello, Kind, RETURN_MIN, WINDOW, YOURS, cost, frame_len,
    },
};

const QUOTA: Quota = Quota { weight: 1, connections: 6 };
/// Frames that a leg takes before it is read.
const LEG: usize = 4;
const NODES: usize = 3;
const APPLICATIONS: usize = 4;
/// What passes in a step.
const STEP: Duration = Duration::from_millis(500);
/// Who may drain daemons.
const OWNER: u32 = 7;
/// Bytes of a frame that say what it is.
const MARK: usize = HEADER_LEN + 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// Who has sent: an application's number and its id of the connection.
type Sender = (u64, u32);

#[derive(Default)]
struct Conn {
    is_open: bool,
    /// This side has closed it.
    is_closed: bool,
    /// Longest frame, once it is open.
    frame_max: usize,
    /// May be sent; is to be given back.
    left: u32,
    owed: u32,
    sent: u64,
    /// Who sends over it, and how much has come.
    from: Option<Sender>,
    seen: u64,
}

struct App {
    serial: u64,
    node: usize,
    key: PartyKey,
    name: String,
    inbox: VecDeque<Message>,
    is_welcome: bool,
    /// Its daemon takes nobody; it asks again.
    is_refused: bool,
    is_honest: bool,
    is_stopped: bool,
    last_id: u32,
    conns: BTreeMap<u32, Conn>,
}

/// One way between two daemons: frames to the key at the node.
struct Leg {
    to: (usize, PartyKey),
    /// Longest frame that both networks take.
    most: usize,
    frames: VecDeque<Message>,
    /// Something has come this way, and was heard.
    is_heard: bool,
}

/// What happens besides.
#[derive(Clone, Copy, Default)]
struct Trouble {
    cuts: bool,
    drains: bool,
    /// There are addresses at which no daemon answers.
    silent: bool,
}

struct World {
    random: Random,
    switches: Vec<Switch>,
    drains: [Option<Drain>; NODES],
    apps: Vec<App>,
    /// By the party that sends on it.
    legs: BTreeMap<(usize, PartyKey), Leg>,
    serial: u64,
    /// What each sender has sent that was taken by its daemon, and what of it has come.
    sent: HashMap<Sender, u64>,
    came: HashMap<Sender, u64>,
    /// Ends that were told by others, or that died: what was sent may be lost.
    excused: HashMap<Sender, ()>,
    trouble: Trouble,
    now: Instant,
    /// Ways that were ended since they carried nothing.
    left: usize,
    /// Times that a process of several contexts was found with as many connections as it may open.
    full: usize,
    /// Daemons that were called and do not answer: by whom, and what he calls them.
    silent: Vec<(usize, PartyKey)>,
}

impl World {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let switches = (0..NODES).map(|at| networks::switch(at, &mut random)).collect();
        Self {
            random,
            switches,
            drains: [const { None }; NODES],
            apps: Vec::new(),
            legs: BTreeMap::new(),
            serial: 0,
            sent: HashMap::new(),
            came: HashMap::new(),
            excused: HashMap::new(),
            trouble,
            now: Instant::now(),
            left: 0,
            full: 0,
            silent: Vec::new(),
        }
    }

    fn arrive(&mut self) {
        self.serial += 1;
        let (serial, node) = (self.serial, self.random.below(NODES));
        let (identity, quota) = processes::arrival(&mut self.random);
        let key = self.switches[node].arrived(identity, quota);
        let name = format!("app{serial}/0");
        self.switches[node].handle(key, Hello { listens: true, name: &name }.frame());
        self.apps.push(App {
            serial,
            node,
            key,
            name,
            inbox: VecDeque::new(),
            is_welcome: false,
            is_refused: false,
            is_honest: self.random.below(4) > 0,
            is_stopped: false,
            last_id: 0,
            conns: BTreeMap::new(),
        });
    }

    /// Something that an application does.
    fn act(&mut self, at: usize) {
        let Self { random, switches, apps, .. } = self;
        let app = &mut apps[at];
        let switch = &mut switches[app.node];
        if std::mem::take(&mut app.is_refused) {
            switch.handle(app.key, Hello { listens: true, name: &app.name }.frame());
        }
        if !app.is_welcome || app.is_stopped {
            return;
        }
        match random.below(10) {
            0 => {
                let opened = app.conns.keys().filter(|id| **id & YOURS == 0).count();
                if opened < usize::try_from(QUOTA.connections).unwrap() {
                    let other = &self.apps[random.below(self.apps.len())];
                    let there = match self.trouble.silent && random.below(2) > 0 {
                        true => silent::address(random).to_string(),
                        false => networks::address(other.node, random),
                    };
                    let target = format!("visor://{}@{there}", other.name);
                    let app = &mut self.apps[at];
                    app.last_id += 1;
                    let id = app.last_id;
                    app.conns.insert(id, Conn { left: WINDOW, ..Conn::default() });
                    let frame = Header::new(Kind::Open, id, 0).frame(target.as_bytes());
                    switch.handle(app.key, frame);
                }
            }
            1 => {
                let open = app.conns.iter_mut().filter(|(_, conn)| !conn.is_closed);
                if let Some((id, conn)) = open.last() {
                    conn.is_closed = true;
                    switch.handle(app.key, Header::new(Kind::Close, *id, 0).frame(&[]));
                }
            }
            2 if !app.is_honest => {
                let mut bytes = vec![0; random.below(40)];
                bytes.fill_with(|| u8::try_from(random.below(256)).unwrap());
                if let (Some(kind), true) = (bytes.first_mut(), random.below(2) > 0) {
                    *kind %= 13;
                }
                if let (Some(rest), true) = (bytes.get_mut(1..4), random.below(2) > 0) {
                    rest.fill(0);
                }
                if let (Some(id), true) = (bytes.get_mut(4..8), random.below(2) > 0) {
                    let high = if random.below(2) > 0 { YOURS } else { 0 };
                    id.copy_from_slice(
                        &(high | u32::try_from(random.below(6)).unwrap()).to_le_bytes(),
                    );
                }
                self.excuse(at);
                let app = &self.apps[at];
                self.switches[app.node].handle(app.key, Message::copied(&bytes));
            }
            3 if !app.is_honest => self.send_too_much(at),
            _ => self.send(at),
        }
    }

    /// What it has sent may be spoilt.
    fn excuse(&mut self, at: usize) {
        let app = &self.apps[at];
        for id in app.conns.keys() {
            self.excused.insert((app.serial, *id), ());
        }
    }

    fn send(&mut self, at: usize) {
        let Self { random, switches, apps, .. } = self;
        let app = &mut apps[at];
        let kind = random.below(3);
        let pick = random.below(app.conns.len().max(1));
        let Some((id, conn)) = app.conns.iter_mut().nth(pick) else { return };
        let len = [MARK, MARK + 100, conn.frame_max.max(MARK)][kind];
        let spent = cost(len);
        if !conn.is_open || conn.is_closed || conn.left < spent {
            return;
        }
        conn.left -= spent;
        let mut body = vec![0; len - HEADER_LEN];
        body[..8].copy_from_slice(&app.serial.to_le_bytes());
        body[8..12].copy_from_slice(&id.to_le_bytes());
        body[12..20].copy_from_slice(&conn.sent.to_le_bytes());
        conn.sent += 1;
        self.sent.insert((app.serial, *id), conn.sent);
        switches[app.node].handle(app.key, Header::new(Kind::Data, *id, 0).frame(&body));
    }

    /// A liar sends a frame that is longer than was agreed.
    fn send_too_much(&mut self, at: usize) {
        self.excuse(at);
        let Self { random, switches, apps, .. } = self;
        let app = &apps[at];
        let pick = random.below(app.conns.len().max(1));
        let Some((id, conn)) = app.conns.iter().nth(pick).filter(|(_, conn)| conn.is_open) else {
            return;
        };
        let body = vec![0; conn.frame_max + 1 - HEADER_LEN];
        let switch = &mut switches[app.node];
        switch.handle(app.key, Header::new(Kind::Data, *id, 0).frame(&body));
        let is_live = matches!(switch.live(app.key, *id), Ok(Some(_)));
        assert!(!is_live, "it has ended before, or does now");
    }

    /// An application takes the next frame.
    fn read(&mut self, at: usize) -> bool {
        let app = &mut self.apps[at];
        if app.is_stopped {
            return false;
        }
        let Some(frame) = app.inbox.pop_front() else { return false };
        let switch = &mut self.switches[app.node];
        switch.has_room(app.key);
        let (header, body) = Header::decode(frame.as_slice()).unwrap();
        let (id, sender) = (header.id ^ YOURS, (app.serial, header.id ^ YOURS));
        match header.kind {
            Kind::Welcome => app.is_welcome = true,
            Kind::Refused => app.is_refused = true,
            Kind::Incoming => {
                let frame_max = frame_len(header.word, FRAME_MAX).unwrap();
                let fresh = Conn { is_open: true, frame_max, left: WINDOW, ..Conn::default() };
                assert!(app.conns.insert(id, fresh).is_none(), "an id is used twice at a time");
            }
            Kind::Opened => {
                let conn = app.conns.get_mut(&id).expect("opened once it was asked for");
                assert!(!std::mem::replace(&mut conn.is_open, true), "opened twice");
                conn.frame_max = frame_len(header.word, FRAME_MAX).unwrap();
            }
            Kind::Close => {
                let conn = app.conns.remove(&id).expect("closed once");
                if !conn.is_closed {
                    self.excused.insert(sender, ());
                    switch.handle(app.key, Header::new(Kind::Close, id, 0).frame(&[]));
                }
            }
            Kind::Window => {
                let conn = app.conns.get_mut(&id).expect("of a connection that is there");
                conn.left += u32::try_from(header.word).unwrap();
                assert!(conn.left <= WINDOW);
            }
            Kind::Data => {
                let conn = app.conns.get_mut(&id).expect("of a connection that is there");
                let number = |range: std::ops::Range<usize>| {
                    let mut bytes = [0; 8];
                    bytes[..range.len()].copy_from_slice(&body[range]);
                    u64::from_le_bytes(bytes)
                };
                assert!(frame.len() <= conn.frame_max, "longer than was agreed");
                conn.owed += cost(frame.len());
                if body.len() >= 20 {
                    let from = (number(0..8), u32::try_from(number(8..12)).unwrap());
                    if !self.excused.contains_key(&from) || conn.from.is_some_and(|it| it == from) {
                        assert_eq!(*conn.from.get_or_insert(from), from, "two senders");
                        assert_eq!(number(12..20), conn.seen, "in order, each once");
                        conn.seen += 1;
                        if conn.is_closed {
                            self.excused.insert(from, ());
                        }
                        self.came.insert(from, conn.seen);
                    }
                }
                if conn.owed >= RETURN_MIN && !conn.is_closed {
                    let owed = u64::from(std::mem::take(&mut conn.owed));
                    switch.handle(app.key, Header::new(Kind::Window, id, owed).frame(&[]));
                }
            }
            other => panic!("{other:?} comes to an application"),
        }
        true
    }

    /// A daemon does what it is to do.
    fn do_effects(&mut self, at: usize) -> bool {
        let mut moved = false;
        while let Some(effect) = self.switches[at].next_effect() {
            moved = true;
            match effect {
                Effect::Dial(key, address) => {
                    if silent::is_one(&address) {
                        self.silent.push((at, key));
                        continue;
                    }
                    let there = networks::reached(&self.switches, at, &address);
                    let there = there.filter(|_| !self.trouble.cuts || self.random.below(4) > 0);
                    let Some((there, network, most)) = there else {
                        let why = GoneReason::Unreachable("nobody there".into());
                        self.switches[at].gone(key, &why);
                        continue;
                    };
                    let far = self.switches[there].node_arrived(network);
                    for (from, to) in [((at, key), (there, far)), ((there, far), (at, key))] {
                        let frames = VecDeque::new();
                        self.legs.insert(from, Leg { to, most, frames, is_heard: false });
                    }
                }
                Effect::HangUp(key, why) => self.hung_up(at, key, why),
                Effect::Leave(key) => self.leave(at, key),
                Effect::EndWithin(ms) => {
                    let drain = self.drains[at].as_mut().expect("nobody else may drain it");
                    drain.steps = Some(usize::try_from(ms).unwrap());
                }
            }
        }
        moved
    }

    /// The same, and it sends one frame.
    fn step(&mut self, at: usize) -> bool {
        let moved = self.do_effects(at);
        let Some(to) = self.switches[at].next_ready() else { return moved };
        let Some(outgoing) = self.switches[at].pop(to) else { return true };
        if let Some(drain) = self.drains[at].as_mut().filter(|drain| drain.by == to) {
            assert!(drain.report.replace(outgoing.frame).is_none(), "told twice");
            return true;
        }
        if let Some(leg) = self.legs.get(&(at, to)) {
            assert!(outgoing.frame.len() <= leg.most, "longer than a network takes");
        }
        let app = self.apps.iter_mut().find(|app| (app.node, app.key) == (at, to));
        let queue = match app {
            Some(app) => Some(&mut app.inbox),
            None => self.legs.get_mut(&(at, to)).map(|leg| &mut leg.frames),
        };
        match queue {
            Some(queue) if queue.len() >= LEG => self.switches[at].put_back(to, outgoing),
            queue => {
                if let Some(queue) = queue {
                    queue.push_back(outgoing.frame);
                }
                self.switches[at].left(outgoing.follows);
                self.switches[at].list(to);
            }
        }
        true
    }

    fn hung_up(&mut self, at: usize, key: PartyKey, why: &str) {
        let place = self.apps.iter().position(|app| (app.node, app.key) == (at, key));
        assert!(!self.legs.contains_key(&(at, key)), "a daemon was disconnected: {why}");
        // It may have died since.
        let Some(place) = place else { return };
        assert!(!self.apps[place].is_honest, "an honest application was disconnected: {why}");
        self.excuse(place);
        self.apps.remove(place);
    }

    /// An application ends, in good order or not: what its daemon has taken is not lost.
    fn die(&mut self, at: usize) {
        let app = self.apps.remove(at);
        // Those that it had not read are nobody's business: its peers' are told that it is gone.
        self.switches[app.node].gone(app.key, &GoneReason::Exited);
    }

    fn round(&mut self) -> bool {
        let mut moved = false;
        for at in 0..NODES {
            moved |= self.step(at);
        }
        for from in self.legs.keys().copied().collect::<Vec<_>>() {
            moved |= self.deliver(from);
        }
        for at in 0..self.apps.len() {
            moved |= self.read(at);
        }
        moved
    }

    fn check_bounds(&mut self) {
        for switch in &self.switches {
            let a_connection = 2 * (u64::from(WINDOW) + 16 * 512);
            let all = (switch.connections.len() as u64) * a_connection + 64 * 512;
            assert!(switch.bytes() <= all, "{} bytes wait", switch.bytes());
            let is_there = |key| switch.parties.contains_key(key);
            assert!(
                switch.ready.iter().all(is_there),
                "somebody who is gone is to be sent something"
            );
        }
        self.check_calls();
        self.check_processes();
    }

    /// So many steps, and the end; gives how many ways were ended before since they carried nothing, and how often a process was full.
    fn run(mut self, steps: usize) -> [usize; 2] {
        for _ in 0..steps {
            match self.random.below(200) {
                0 if self.apps.len() < NODES * APPLICATIONS => self.arrive(),
                1 if !self.apps.is_empty() => {
                    let at = self.random.below(self.apps.len());
                    self.die(at);
                }
                2..=4 if !self.apps.is_empty() => {
                    let at = self.random.below(self.apps.len());
                    self.apps[at].is_stopped ^= true;
                }
                5 if self.trouble.cuts && !self.legs.is_empty() => {
                    let pick = self.random.below(self.legs.len());
                    let from = *self.legs.keys().nth(pick).unwrap();
                    self.cut(from);
                }
                6 if self.trouble.drains && self.random.below(2) == 0 => {
                    let at = self.random.below(NODES);
                    self.drain(at);
                }
                7 if !self.silent.is_empty() => {
                    let pick = self.random.below(self.silent.len());
                    self.give_up(pick);
                }
                6..=90 if !self.apps.is_empty() => {
                    let at = self.random.below(self.apps.len());
                    self.act(at);
                }
                91..=130 if !self.apps.is_empty() => {
                    let at = self.random.below(self.apps.len());
                    self.read(at);
                }
                131..=160 if !self.legs.is_empty() => {
                    let pick = self.random.below(self.legs.len());
                    let from = *self.legs.keys().nth(pick).unwrap();
                    self.deliver(from);
                }
                _ if self.apps.is_empty() => self.arrive(),
                _ => {
                    let at = self.random.below(NODES);
                    self.step(at);
                }
            }
            self.pass(STEP);
            self.check_bounds();
        }
        let counts = [self.left, self.full];
        self.ends();
        counts
    }

    fn ends(mut self) {
        while self.drains.iter().any(Option::is_some) {
            self.round();
            self.pass(STEP);
        }
        // Those that are stopped hold up nobody else.
        while self.round() {}
        self.check_arrivals(true);
        for app in &mut self.apps {
            app.is_stopped = false;
        }
        while self.round() {}
        self.check_arrivals(false);
        self.give_all_up();
        while !self.apps.is_empty() {
            self.die(0);
        }
        while self.round() {}
        self.leave_silent();
        for switch in &self.switches {
            assert!(switch.connections.is_empty() && switch.names.is_empty());
            assert_eq!(switch.bytes(), 0);
            for party in switch.parties.values() {
                assert!(party.is_node() && party.ends.is_empty() && party.chosen == [0; 2]);
            }
        }
        for _ in 0..3 {
            self.pass(IDLE);
            while self.round() {}
        }
        for switch in &self.switches {
            assert!(switch.parties.is_empty() && switch.nodes.is_empty() && switch.daemons == 0);
            assert!(switch.processes.is_empty() && switch.known.is_empty());
            assert_eq!(switch.next_deadline(), None);
        }
        assert!(self.legs.is_empty());
    }

    /// Everything that was sent has come, but where somebody may have spoilt it or stands still.
    fn check_arrivals(&self, some_stand: bool) {
        if self.trouble.cuts {
            return;
        }
        let reader = |from: Sender| {
            self.apps.iter().find(|app| app.conns.values().any(|conn| conn.from == Some(from)))
        };
        for app in self.apps.iter().filter(|app| !app.is_stopped) {
            for (id, conn) in app.conns.iter().filter(|(_, conn)| conn.sent > 0 && !conn.is_closed)
            {
                let from = (app.serial, *id);
                if self.excused.contains_key(&from) {
                    continue;
                }
                let reader = reader(from);
                let stands = reader.is_none_or(|app| app.is_stopped) && some_stand;
                let came = self.came.get(&from).copied().unwrap_or_default();
                assert!(stands || came == conn.sent, "{from:?}: {came} of {} came", conn.sent);
            }
        }
    }
}

#[test]
fn with_applications_that_lie_stop_and_die_each_connection_s_fate_is_its_own() {
    let runs = (0..60).map(|seed| World::new(seed, Trouble::default()).run(3000));
    let [left, full] = runs.fold([0, 0], |sum, run| [0, 1].map(|at| sum[at] + run[at]));
    assert!(left > 0, "no way was ended since it carried nothing");
    assert!(full > 0, "no process had as many connections as it may");
}

#[test]
fn with_ways_that_are_cut_too_every_end_is_told_once_and_nothing_is_left() {
    for seed in 0..60 {
        World::new(seed, Trouble { cuts: true, ..Trouble::default() }).run(3000);
    }
}
