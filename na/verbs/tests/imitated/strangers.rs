//! Hostile clients: at the lifeline, half a greeting, silence, crowds, questions whose answers are not read, a greeting that is said again; over a
//! queue pair, another's line, rubbish, and floods of what is refused. Each time a good client goes on, and nothing is left.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::Arc,
    time::Instant,
};

use hg_na::{
    Address, Completion, Context, Domain, Error, Memory, Message, Op, OpenOptions, Peer,
    Plugin as _, Rights,
};
use hg_na_link::{
    Header,
    frame::{HEADER, Kind, LANES},
    transfer::ACCESS_LEN,
};
use hg_na_verbs::VerbsPlugin;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use watchdog::{alone, in_time};

use crate::imitation::{LIBRARY, hold, left, lend_to, pairs, say_to, tell_of_write};

/// The victim's card, and that of all others.
const CARD: usize = 5;
const URL: &str = "verbs://imitated5";
const OTHERS: &str = "verbs://imitated6";
/// The victim's number of the good client's line, and of the next one.
const GOOD: u32 = 16;
const BAD: u32 = 17;

struct End {
    domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
}

fn open(url: &str, settings: &[(&str, &str)]) -> End {
    let options = settings
        .iter()
        .fold(OpenOptions::listening(), |options, (name, value)| options.with(name, value));
    let domain = VerbsPlugin::over(&LIBRARY).open(&Address::new(url).unwrap(), &options).unwrap();
    let context = domain.context(0).unwrap();
    End { domain, context }
}

impl End {
    fn step(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).unwrap();
        done
    }

    fn place(&self) -> SocketAddr {
        self.context.address().as_str().split_once('@').unwrap().1.parse().unwrap()
    }

    fn post(&mut self, to: Peer, text: &[u8]) {
        self.context.post(1, Op::SendUnexpected { to, message: Message::copied(text) }).unwrap();
    }
}

/// The victim, and a client that is in touch with it.
struct Scene {
    victim: End,
    good: End,
    there: Peer,
    back: Peer,
}

impl Scene {
    fn new(settings: &[(&str, &str)]) -> Self {
        let (mut victim, mut good) = (open(URL, settings), open(OTHERS, &[]));
        let there = good.context.lookup(victim.context.address()).unwrap();
        let back = greet(&mut good, there, &mut victim);
        Self { victim, good, there, back }
    }

    /// The good client's call and its answer.
    fn goes_on(&mut self) {
        assert_eq!(greet(&mut self.good, self.there, &mut self.victim), self.back);
        assert_eq!(greet(&mut self.victim, self.back, &mut self.good), self.there);
    }

    /// Progresses the victim until something holds of all that it is told.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&[Completion]) -> bool) {
        let (start, mut told) = (Instant::now(), Vec::new());
        while !holds(&told) {
            in_time!(start, "{what}: {told:?}");
            told.extend(self.victim.step());
            self.good.step();
        }
    }
}

/// One message, and who it came from.
fn greet(from: &mut End, there: Peer, to: &mut End) -> Peer {
    from.post(there, b"good");
    let start = Instant::now();
    loop {
        in_time!(start, "a good client is not served");
        from.step();
        for it in to.step() {
            if let Completion::Unexpected { from, message, .. } = it {
                assert_eq!(message.as_slice(), b"good", "nobody has said that");
                return from;
            }
        }
    }
}

/// A frame, as its sender would write it.
fn frame(kind: Kind, tag: u64, content: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER];
    Header { kind, more: false, tag, taken: [0; LANES] }.encode(0, &mut head);
    [&head[..], content].concat()
}

/// A client on a queue pair of its own with the victim, which then speaks by hand.
fn turn_bad(scene: &mut Scene) -> (End, u32) {
    let mut bad = open(OTHERS, &[]);
    let there = bad.context.lookup(scene.victim.context.address()).unwrap();
    greet(&mut bad, there, &mut scene.victim);
    (bad, *pairs(CARD).last().unwrap())
}

fn is_gone(it: &Completion) -> bool {
    matches!(it, Completion::Gone { .. })
}

/// Resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn what_a_peer_says_for_another_s_line_reaches_nobody() {
    alone(|| {
        let mut scene = Scene::new(&[]);
        let (_bad, pair) = turn_bad(&mut scene);
        let forged = frame(Kind::Unexpected, 1, b"forged");
        for word in (2..40).filter(|word| *word != BAD) {
            assert!(say_to(pair, word, &forged));
            for it in (0..50).flat_map(|_| scene.victim.step()).collect::<Vec<_>>() {
                assert!(!matches!(it, Completion::Unexpected { .. }), "{word} is believed: {it:?}");
            }
        }
        scene.goes_on();
        assert_eq!(left(CARD).0, 2);
        // The words of a pair itself say that it is to be closed, and that it is: no other is meant.
        assert!(say_to(pair, 0, &forged) && say_to(pair, 1, &forged));
        scene.until("a pair that was closed stays", |_| left(CARD).0 == 1);
        scene.goes_on();
    });
}

#[test]
fn frames_that_make_no_sense_cost_their_sender_the_connection_and_no_other() {
    alone(|| {
        let mut scene = Scene::new(&[]);
        let mut unknown = frame(Kind::Credit, 0, b"");
        unknown[0] = 99;
        let mut ahead = frame(Kind::Credit, 0, b"");
        ahead[16..].fill(0x77);
        let all = [
            vec![0],
            vec![0xFF; HEADER - 1],
            vec![0xFF; 4096],
            unknown,
            ahead,
            frame(Kind::Get, 1, b"short"),
            frame(Kind::GetLent, 1, &[0; ACCESS_LEN]),
            frame(Kind::PutData, 7, b"nobody announced it"),
            frame(Kind::GetData, 7, b"nobody asked for it"),
            frame(Kind::Ended, 7, &[0; 12]),
            frame(Kind::Control, 0, &[0; 2000]),
        ];
        // Lines are given out in order.
        for (line, rubbish) in (BAD..).zip(all) {
            let (bad, pair) = turn_bad(&mut scene);
            assert!(say_to(pair, line, &rubbish));
            scene.until("it is not sent away", |told| told.iter().any(is_gone));
            scene.goes_on();
            drop(bad);
            scene.until("its queue pair stays", |_| left(CARD).0 == 1);
        }
    });
}

#[test]
fn a_flood_of_forged_transfers_costs_its_sender_alone() {
    const FLOOD: u64 = 10_000;
    alone(|| {
        let mut scene = Scene::new(&[]);
        let (_bad, pair) = turn_bad(&mut scene);
        let (mut before, mut ends, mut refused) = (0, 0, 0);
        for tag in 1..=FLOOD {
            // By then each place of the receive queue was used.
            if tag == FLOOD / 2 {
                before = resident_kib();
            }
            // An answer is never taken: no credit comes back.
            if !say_to(pair, BAD, &frame(Kind::Get, tag, &[0x55; ACCESS_LEN])) {
                refused += 1;
            }
            ends += scene.victim.step().iter().filter(|it| is_gone(it)).count();
        }
        assert_eq!(ends, 1, "{refused} of {FLOOD} found no room");
        let grown = resident_kib().saturating_sub(before);
        assert!(grown < 512, "{grown} KiB more");
        scene.goes_on();
        scene.until("its queue pair stays", |_| left(CARD).0 == 1);
    });
}

#[test]
fn thousands_of_refused_operations_end_by_name_and_cost_no_memory() {
    const ROUNDS: usize = 50;
    const EACH: usize = 100;
    alone(|| {
        let mut scene = Scene::new(&[]);
        let mut bad = open(OTHERS, &[]);
        let there = bad.context.lookup(scene.victim.context.address()).unwrap();
        greet(&mut bad, there, &mut scene.victim);
        let far =
            scene.victim.domain.register(Memory::from(vec![1; 100_000]), Rights::all()).unwrap();
        let stale = far.descriptor().clone();
        drop(far);
        let near = bad.domain.register(Memory::from(vec![0; 100_000]), Rights::all()).unwrap();
        let mut early = 0;
        for round in 0..ROUNDS {
            // Short ones travel in frames, long ones are lent.
            let len = if round % 2 == 0 { 100 } else { 100_000 };
            for _ in 0..EACH {
                let remote = stale.slice(0, len).unwrap();
                let op = Op::Get { from: there, local: near.slice(0, len).unwrap(), remote };
                bad.context.post(2, op).unwrap();
            }
            let (start, mut ended) = (Instant::now(), 0);
            while ended < EACH {
                in_time!(start, "{ended}");
                scene.victim.step();
                for it in bad.step() {
                    let Completion::Done(done) = it else { continue };
                    let failed = done.result.as_ref().err().filter(|_| done.token == 2);
                    let Some(failed) = failed else { continue };
                    assert!(matches!(failed.error, Error::StaleDescriptor), "{failed:?}");
                    ended += 1;
                }
            }
            if round == ROUNDS / 2 {
                early = resident_kib();
            }
        }
        let grown = resident_kib().saturating_sub(early);
        assert!(grown < 1024, "{grown} KiB more");
        scene.goes_on();
    });
}

#[test]
fn pairs_that_end_before_all_is_taken_keep_no_place_of_the_receive_queue() {
    alone(|| {
        let mut scene = Scene::new(&[]);
        // Lines are given out in order.
        for line in (BAD..).take(20) {
            let (bad, pair) = turn_bad(&mut scene);
            // The first one costs him the connection, before the others are taken.
            for _ in 0..100 {
                assert!(say_to(pair, line, &[0]), "there is no room, after {} pairs", line - BAD);
            }
            scene.victim.step();
            drop(bad);
            scene.until("its queue pair stays", |_| left(CARD).0 == 1);
        }
        scene.goes_on();
    });
}

#[test]
fn a_write_that_a_peer_tells_of_shows_nothing_that_another_one_has_said() {
    alone(|| {
        let mut scene = Scene::new(&[]);
        let (_bad, pair) = turn_bad(&mut scene);
        // What the good client's card has sent lies in each place of the receive queue.
        let secret = frame(Kind::Unexpected, 1, b"secret");
        for _ in 0..1_100 {
            assert!(say_to(pairs(CARD)[0], 2, &secret));
            scene.victim.step();
        }
        assert!(tell_of_write(pair, BAD, u32::try_from(secret.len()).unwrap()));
        let mut heard = false;
        scene.until("it is not sent away", |told| {
            heard |= told.iter().any(|it| matches!(it, Completion::Unexpected { .. }));
            heard || told.iter().any(is_gone)
        });
        assert!(!heard, "it has what another one has said");
        scene.goes_on();
        scene.until("its queue pair stays", |_| left(CARD).0 == 1);
    });
}

/// The writes of the first one end while the reads of the second one are under way.
#[test]
fn transfers_of_one_number_after_the_other_are_told_apart() {
    const GOT: usize = 110;
    // More than there is room for behind them.
    const PUT: usize = 400;
    alone(|| {
        let mut scene = Scene::new(&[]);
        let (_bad, pair) = turn_bad(&mut scene);
        let pieces: Vec<_> = (0..PUT).map(|_| vec![0; 1]).collect();
        let own = scene.victim.domain.register(Memory::from(pieces), Rights::all()).unwrap();
        let mut lent = vec![7; 1000];
        let (address, key) = (lent.as_mut_ptr().expose_provenance(), lend_to(pair, &mut lent));
        let lend = |kind, offset: u64, len: u64| {
            let access = [offset, len].map(u64::to_le_bytes).concat();
            let grant = [address as u64, key.into()].map(u64::to_le_bytes).concat();
            frame(kind, 5, &[own.descriptor().opaque(), &access, &grant].concat())
        };
        let steps = |scene: &mut Scene| {
            (0..50).for_each(|_| assert!(!scene.victim.step().iter().any(is_gone)));
        };
        hold(CARD, true);
        assert!(say_to(pair, BAD, &lend(Kind::GetLent, 0, GOT as u64)));
        steps(&mut scene);
        assert!(say_to(pair, BAD, &lend(Kind::PutLent, 0, PUT as u64)));
        steps(&mut scene);
        hold(CARD, false);
        let mut bytes = [7; PUT];
        scene.until("it is not read", |_| {
            own.read(0, &mut bytes).unwrap();
            bytes[GOT..].iter().all(|byte| *byte == 7)
        });
        assert_eq!(bytes, [&[0; GOT][..], &[7; PUT - GOT]].concat()[..]);
        scene.goes_on();
    });
}

#[test]
fn a_flood_for_one_who_does_not_look_is_cut_short_and_costs_no_memory() {
    const FLOOD: u32 = 20_000;
    alone(|| {
        let mut scene = Scene::new(&[]);
        let mut neighbour = End {
            domain: Arc::clone(&scene.victim.domain),
            context: scene.victim.domain.context(1).unwrap(),
        };
        let there = scene.good.context.lookup(neighbour.context.address()).unwrap();
        greet(&mut scene.good, there, &mut neighbour);
        // From now on only the neighbour looks.
        let (pair, before) = (pairs(CARD)[0], resident_kib());
        for _ in 0..FLOOD {
            assert!(say_to(pair, GOOD, &[0x55; 4096]));
            neighbour.step();
        }
        let grown = resident_kib().saturating_sub(before);
        assert!(grown < 16 << 10, "{grown} KiB more");
        greet(&mut scene.good, there, &mut neighbour);
        let mut ends = 0;
        scene.until("it is not sent away", |told| {
            ends = told.iter().filter(|it| is_gone(it)).count();
            ends > 0
        });
        assert_eq!(ends, 1);
        greet(&mut scene.good, there, &mut neighbour);
    });
}

/// A greeting as the layout in `wire` says, of a queue pair that is nowhere.
fn hello(ip: IpAddr, number: u32) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else { panic!("the imitation has IPv4 addresses") };
    let mut record = vec![1];
    record.extend(b"hg-vrb\x00\x03");
    record.extend([number, 5].map(u32::to_le_bytes).concat());
    record.extend(ip.to_ipv6_mapped().octets());
    record.extend([0, 0, 5, 16]);
    record.extend([&7_u64.to_le_bytes()[..], &GOOD.to_le_bytes(), &[1]].concat());
    [&u32::try_from(record.len()).unwrap().to_le_bytes()[..], &record].concat()
}

fn call(place: SocketAddr) -> TcpStream {
    let line = TcpStream::connect(place).unwrap();
    line.set_nonblocking(true).unwrap();
    line
}

/// Progresses the victim until a line has something to read (`true`) or is hung up on.
fn answered(scene: &mut Scene, line: &mut TcpStream) -> bool {
    let mut answer = None;
    scene.until("no answer", |_| {
        match line.read(&mut [0; 1024]) {
            Ok(len) => answer = Some(len > 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => answer = Some(false),
        }
        answer.is_some()
    });
    answer.unwrap()
}

#[test]
fn half_a_greeting_silence_and_crowds_end_in_time_and_leave_no_descriptor() {
    /// One more than are let alone.
    const CROWD: usize = 1025;
    alone(|| {
        let mut scene = Scene::new(&[("connect-timeout-ms", "2000")]);
        let (before, place) = (descriptors(), scene.victim.place());
        let mut half = call(place);
        let whole = hello(half.local_addr().unwrap().ip(), 1);
        half.write_all(&whole[..whole.len() / 2]).unwrap();
        // A byte now and then does not make it last longer.
        let mut slow = call(place);
        let mut rest = whole.iter();
        scene.goes_on();
        let mut is_cut = false;
        scene.until("a slow greeting lasts", |_| {
            let late =
                rest.len() > 1 && rest.next().is_some_and(|it| slow.write_all(&[*it]).is_err());
            is_cut |= late || matches!(slow.read(&mut [0; 64]), Ok(0));
            is_cut
        });
        while answered(&mut scene, &mut half) {}
        let mut crowd: Vec<_> = (0..CROWD).map(|_| call(place)).collect();
        scene.goes_on();
        while crowd.iter_mut().any(|line| matches!(line.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock)) {
            scene.until("a crowd stays", |_| true);
            scene.victim.step();
        }
        drop((half, slow, crowd));
        scene.until("descriptors stay", |_| descriptors() == before);
        assert_eq!(left(CARD).0, 1);
        scene.goes_on();
    });
}

#[test]
fn who_asks_and_does_not_read_the_answers_is_heard_no_more() {
    /// More than the kernel has for two sockets.
    const ENOUGH: usize = 64 << 20;
    const PING: [u8; 5] = [1, 0, 0, 0, 5];
    const READY: [u8; 5] = [1, 0, 0, 0, 7];
    alone(|| {
        let mut scene = Scene::new(&[]);
        let mut line = call(scene.victim.place());
        line.write_all(&hello(line.local_addr().unwrap().ip(), 4_000_000)).unwrap();
        assert!(answered(&mut scene, &mut line), "it is not welcome");
        line.write_all(&READY).unwrap();
        let (pings, before) = (PING.repeat(20_000), resident_kib());
        let (mut taken, mut refusals) = (0, 0);
        while taken < ENOUGH && refusals < 2000 {
            match line.write(&pings[taken % PING.len()..]) {
                Ok(len) => (taken, refusals) = (taken + len, 0),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refusals += 1;
                }
            }
            scene.victim.step();
        }
        assert!(taken < ENOUGH, "{taken} bytes of questions were taken");
        assert!(resident_kib().saturating_sub(before) < 1024);
        scene.goes_on();
        drop(line);
        scene.until("its queue pair stays", |_| left(CARD).0 == 1);
    });
}

/// Connects from one address to another.
fn call_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0))).unwrap();
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    let line = TcpStream::from(fd);
    line.set_nonblocking(true).unwrap();
    line
}

#[test]
fn a_greeting_that_is_said_again_opens_nothing_and_leaves_nothing() {
    const AGAIN: usize = 100;
    alone(|| {
        let mut scene = Scene::new(&[]);
        let (place, mut other) = (scene.victim.place(), open(OTHERS, &[]));
        // Somebody between two ends that know nothing of it.
        let between = TcpListener::bind((place.ip(), 0)).unwrap();
        let address = format!("verbs://imitated5:1@{}", between.local_addr().unwrap());
        let there = other.context.lookup(&Address::new(&address).unwrap()).unwrap();
        other.post(there, b"good");
        let (mut near, from) = between.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut far = call_from(from.ip(), place);
        let mut said = Vec::new();
        let mut bytes = [0; 2048];
        let mut arrived = false;
        scene.until("it is not passed on", |told| {
            other.step();
            if let Ok(len) = near.read(&mut bytes) {
                said.extend(&bytes[..len]);
                far.write_all(&bytes[..len]).unwrap();
            }
            if let Ok(len) = far.read(&mut bytes) {
                near.write_all(&bytes[..len]).unwrap();
            }
            arrived |= told.iter().any(|it| matches!(it, Completion::Unexpected { .. }));
            arrived
        });
        let pairs_before = left(CARD).0;
        let again: Vec<_> = (0..AGAIN)
            .map(|_| {
                let mut line = call_from(from.ip(), place);
                line.write_all(&said).unwrap();
                line
            })
            .collect();
        let (start, mut rounds) = (Instant::now(), 0);
        while rounds < 20_000 {
            in_time!(start);
            let told = scene.victim.step();
            assert!(!told.iter().any(|it| matches!(it, Completion::Unexpected { .. })), "{told:?}");
            rounds += 1;
        }
        scene.goes_on();
        drop(again);
        scene.until("queue pairs stay", |_| left(CARD).0 == pairs_before);
        scene.goes_on();
    });
}
