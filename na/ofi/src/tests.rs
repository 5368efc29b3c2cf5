//! Contexts among peers whose endpoints take nothing, over libfabric's tcp: nobody else waits with them, or is given up for them.

use std::{
    io::{Read as _, Write as _},
    mem,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context, Domain as _, Message, Op, OpenOptions, Peer};
use hg_na_frames::Transport as _;
use hg_na_link::{
    Header, Lane,
    frame::{HEADER, Kind, LANES},
    record::Record,
};
use watchdog::in_time;

use crate::{
    domain::{OfiDomain, context_of},
    fabric::{Endpoint, Event},
    shared::Shared,
    transport::{Ofi, OfiContext, flushing::see_off},
    wire::{Greeting, KEY},
};

/// Milliseconds after which a peer that takes nothing is given up.
const BOUND_MS: u64 = 300;
/// Messages of each kind, as many as there are credits.
const MESSAGES: usize = 64;
/// Most that are tried until no more frames go out to one more.
const DEAF_MAX: usize = 64;

/// Somebody who greets well, answers every ping, took one message, and takes no other.
struct Deaf {
    endpoint: Endpoint,
    address: Address,
    lines: mpsc::Receiver<TcpStream>,
    hellos: mpsc::Receiver<Greeting>,
}

impl Deaf {
    fn open(shared: &Shared) -> Self {
        let endpoint = Endpoint::open(&shared.offer, shared.form).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("ofi+tcp://{}", listener.local_addr().unwrap());
        let (frame, provider) = (16 << 10, shared.speech());
        let name = endpoint.name().to_vec();
        let welcome = Greeting { link: 3, key: 7, frame, one_sided: false, provider, name };
        let ((line_s, lines), (hello_s, hellos)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            let Ok((mut line, _)) = listener.accept() else { return };
            line_s.send(line.try_clone().unwrap()).unwrap();
            line.write_all(&Record::Welcome(welcome).encode()).unwrap();
            let (mut input, mut bytes) = (Vec::new(), [0; 1024]);
            while let Ok(len @ 1..) = line.read(&mut bytes) {
                input.extend(&bytes[..len]);
                while let Ok(Some(record)) = Record::<Greeting>::take(&mut input) {
                    match record {
                        Record::Hello(hello) => hello_s.send(hello).unwrap(),
                        Record::Ping => {
                            let _ = line.write_all(&Record::<Greeting>::Pong.encode());
                        }
                        _ => {}
                    }
                }
            }
        });
        Self { endpoint, address: Address::new(&address).unwrap(), lines, hellos }
    }

    /// Takes what has come: how many messages.
    fn take(&mut self) -> usize {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).unwrap();
        let mut came = 0;
        for event in events {
            if let Event::Arrived(arrival) = event {
                self.endpoint.was_seen(arrival);
                came += 1;
            }
        }
        came
    }

    /// Says with a frame that costs no credit that it has taken nothing.
    fn say_nothing(&mut self, there: u64, hello: &Greeting) {
        let header = Header { kind: Kind::Credit, more: false, tag: 0, taken: [0; LANES] };
        let _ = self.endpoint.send(there, (HEADER + KEY, false), 0, |frame| {
            let (head, key) = frame.split_first_chunk_mut().unwrap();
            header.encode(hello.link, head);
            key.copy_from_slice(&hello.key.to_le_bytes());
            true
        });
    }

    /// Ends the lifeline, and nothing else.
    fn hang_up(&self) {
        self.lines.recv().unwrap().shutdown(Shutdown::Both).unwrap();
    }
}

/// A context, what it was told, and a friend of another domain.
struct World {
    domain: OfiDomain,
    here: OfiContext,
    done: Vec<Completion>,
    friend: Box<dyn Context>,
    _friend_s: OfiDomain,
}

impl World {
    /// `frames`: how many there are, if not as many as usual.
    fn open(frames: Option<usize>) -> Self {
        let url = Address::new("ofi+tcp://127.0.0.1").unwrap();
        let mut options = OpenOptions::listening();
        options.settings.insert("retry-bound-ms".into(), BOUND_MS.to_string());
        let mut domain = OfiDomain::open(&url, &options).unwrap();
        let shared = Arc::get_mut(&mut domain.0).unwrap();
        let mut opened = shared.first.lock().unwrap().take().unwrap();
        if let Some(frames) = frames {
            shared.offer.limit_sends(frames);
            opened.0 = Endpoint::open(&shared.offer, shared.form).unwrap();
        }
        let here = context_of(&domain.0, 0, opened).unwrap();
        let friend_s = OfiDomain::open(&url, &OpenOptions::listening()).unwrap();
        let friend = friend_s.context(0).unwrap();
        Self { domain, here, done: Vec::new(), friend, _friend_s: friend_s }
    }

    fn progress(&mut self) {
        self.here.progress(Instant::now(), &mut self.done).unwrap();
    }

    fn out(&mut self) -> usize {
        self.here.transport.endpoint().sends().out()
    }

    /// Sends to one that takes this, and nothing more.
    fn meet(&mut self) -> (Deaf, Peer) {
        let mut deaf = Deaf::open(&self.domain.0);
        let to = self.here.lookup(&deaf.address).unwrap();
        self.here.post(1, Op::SendUnexpected { to, message: Message::copied(b"hello") }).unwrap();
        let start = Instant::now();
        while deaf.take() == 0 {
            in_time!(start, "it does not connect");
            self.progress();
        }
        (deaf, to)
    }

    /// Hands frames to libfabric, credits or not, until no more go out; says how many are.
    fn stuff(&mut self, to: Peer) -> usize {
        /// In which the kernel would have taken one.
        const ROUNDS: usize = 1000;
        let before = self.out();
        let address = self.here.links.get(to).unwrap().way.own.route.address().unwrap();
        let mut refused = 0;
        while refused < ROUNDS {
            match self.here.transport.endpoint().send(address, (15_000, false), u64::MAX, |_| true)
            {
                Ok(_) => refused = 0,
                Err(fault) if fault.is_again() => refused += 1,
                Err(fault) => panic!("{fault}"),
            }
            self.progress();
        }
        self.out().saturating_sub(before)
    }

    /// Posts what does not leave.
    fn post_more(&mut self, to: Peer) {
        let message = vec![1; 3000].into();
        self.here.post(2, Op::SendUnexpected { to, message }).unwrap();
        self.progress();
        assert!(self.here.links.get(to).unwrap().way.own.route.waits(), "it takes something");
    }

    /// Messages to the friend, and back.
    fn exchange(&mut self, count: usize) {
        let start = Instant::now();
        let to = self.here.lookup(self.friend.address()).unwrap();
        let (mut theirs, mut answers) = (Vec::new(), 0);
        for _ in 0..count {
            self.here.post(3, Op::SendUnexpected { to, message: vec![1; 3000].into() }).unwrap();
        }
        while answers < count {
            in_time!(start, "a friend waits with others: {:?}", self.done);
            self.progress();
            self.friend.progress(Instant::now(), &mut theirs).unwrap();
            for it in theirs.drain(..) {
                if let Completion::Unexpected { from, .. } = it {
                    let message = vec![2; 3000].into();
                    self.friend.post(4, Op::SendUnexpected { to: from, message }).unwrap();
                }
            }
            answers +=
                self.done.extract_if(.., |it| matches!(it, Completion::Unexpected { .. })).count();
        }
        assert!(!self.is_gone(to), "{:?}", self.done);
    }

    /// Somebody has waited for others for as long as anybody does.
    fn blame(&mut self) {
        let (mut now, mut lasted) = (Instant::now(), Duration::ZERO);
        while lasted <= Duration::from_millis(BOUND_MS) {
            now += Duration::from_millis(10);
            lasted = self.here.transport.waits_for_others(now);
        }
    }

    fn is_gone(&self, peer: Peer) -> bool {
        self.done
            .iter()
            .any(|it| matches!(it, Completion::Gone { peer: gone, .. } if *gone == peer))
    }

    fn until_gone(&mut self, peers: &[Peer]) {
        let start = Instant::now();
        while !peers.iter().all(|it| self.is_gone(*it)) {
            in_time!(start, "it is never given up: {:?}", self.done);
            self.progress();
        }
    }
}

#[test]
fn those_who_take_nothing_leave_frames_to_others() {
    let mut world = World::open(None);
    let (mut deaf, mut peers) = (Vec::new(), Vec::new());
    loop {
        let (one, to) = world.meet();
        deaf.push(one);
        peers.push(to);
        if world.stuff(to) <= 1 {
            break;
        }
        assert!(deaf.len() < DEAF_MAX, "frames without a bound");
    }
    assert!(world.out() > 200, "{} frames are out to {} peers", world.out(), peers.len());
    world.exchange(100);
    world.post_more(peers[0]);
    world.until_gone(&peers[..1]);
    world.exchange(100);
    assert!(!peers[1..].iter().any(|it| world.is_gone(*it)), "nothing more was sent to them");
    drop(deaf);
}

#[test]
fn frames_of_those_who_drop_only_their_lifelines_are_replaced() {
    let mut world = World::open(None);
    let (mut deaf, mut lost) = (Vec::new(), 0);
    while lost < 300 {
        let (one, to) = world.meet();
        lost += world.stuff(to);
        one.hang_up();
        world.until_gone(&[to]);
        deaf.push(one);
        let start = Instant::now();
        while world.out() > 0 {
            in_time!(start, "its frames count for good");
            world.progress();
        }
        assert!(deaf.len() < DEAF_MAX, "frames never stay with libfabric here");
    }
    world.exchange(100);
    drop(deaf);
}

#[test]
fn a_flush_ends_when_what_was_injected_has_gone() {
    let mut world = World::open(Some(8));
    let (mut deaf, to) = world.meet();
    let start = Instant::now();
    while !world.here.flush() {
        in_time!(start, "what was taken has not gone");
        world.progress();
    }
    assert!(world.stuff(to) > 0);
    let message = Message::copied(b"x");
    world.here.post(5, Op::SendControl { to, message }).unwrap();
    world.progress();
    let is_injected = |it: &Completion| matches!(it, Completion::Done(done) if done.token == 5);
    assert!(world.done.iter().any(is_injected), "{:?}", world.done);
    for _ in 0..100 {
        assert!(!world.here.flush(), "it is still with libfabric");
        world.progress();
    }
    while !world.here.flush() {
        in_time!(start, "what was taken has not gone");
        deaf.take();
        world.progress();
    }
    assert_eq!(world.out(), 0);
}

#[test]
fn what_a_flush_cannot_ask_for_others_frames_is_asked_again_until_one_of_them_is_given_up() {
    const FRAMES: usize = 8;
    let mut world = World::open(Some(FRAMES));
    world.exchange(1);
    let to = world.here.lookup(world.friend.address()).unwrap();
    // No frame of the friend's is out: what would show that this has gone is not taken.
    world.here.post(5, Op::SendControl { to, message: Message::copied(b"x") }).unwrap();
    world.progress();
    let is_injected = |it: &Completion| matches!(it, Completion::Done(done) if done.token == 5);
    assert!(world.done.iter().any(is_injected), "{:?}", world.done);
    let mut deaf = Vec::new();
    while world.out() < FRAMES {
        let (one, it) = world.meet();
        world.stuff(it);
        deaf.push((one, it));
        assert!(deaf.len() < DEAF_MAX, "frames without a bound");
    }
    let (start, mut theirs) = (Instant::now(), Vec::new());
    while !deaf.iter().any(|(_, it)| world.is_gone(*it)) {
        in_time!(start, "nobody is given up");
        assert!(!world.here.flush(), "it has not gone");
        // The kernel takes another frame now and then.
        let is_kept = world.out() == FRAMES;
        assert!(!is_kept || world.here.next_deadline().is_some(), "it sleeps for good");
        world.progress();
        world.friend.progress(Instant::now(), &mut theirs).unwrap();
    }
    assert!(!world.is_gone(to));
}

#[test]
fn nobody_is_given_up_while_others_have_all_frames_but_one_of_those() {
    const FRAMES: usize = 4;
    let mut world = World::open(Some(FRAMES));
    world.exchange(1);
    let mut deaf: Vec<_> = (0..FRAMES).map(|_| world.meet()).collect();
    let to = world.here.lookup(world.friend.address()).unwrap();
    let is_sent = |it: &&Completion| matches!(it, Completion::Done(done) if done.token == 7);
    let (start, mut posted) = (Instant::now(), 0);
    while !deaf.iter().any(|(_, it)| world.is_gone(*it)) {
        in_time!(start, "{:?}", world.done);
        // The kernel takes another one now and then.
        if world.out() < FRAMES {
            for (_, it) in &deaf {
                world.stuff(*it);
            }
        }
        if world.done.iter().filter(is_sent).count() == posted {
            let message = vec![1; 3000].into();
            world.here.post(7, Op::SendUnexpected { to, message }).unwrap();
            posted += 1;
        }
        world.progress();
    }
    assert!(!world.is_gone(to));
    // A frame that comes back is the friend's.
    let mut theirs = Vec::new();
    while world.done.iter().filter(is_sent).count() < posted {
        in_time!(start, "{:?}", world.done);
        for (it, _) in &mut deaf {
            it.take();
        }
        world.progress();
        world.friend.progress(Instant::now(), &mut theirs).unwrap();
    }
    assert!(!world.is_gone(to));
}

#[test]
fn who_drops_its_lifeline_and_goes_on_sending_is_gone_all_the_same() {
    let mut world = World::open(None);
    let (mut deaf, to) = world.meet();
    let hello = deaf.hellos.recv().unwrap();
    let there = deaf.endpoint.insert(&hello.name).unwrap();
    deaf.hang_up();
    let start = Instant::now();
    while !world.is_gone(to) {
        in_time!(start, "it is heard for ever");
        (0..4).for_each(|_| deaf.say_nothing(there, &hello));
        deaf.take();
        world.progress();
    }
}

#[test]
fn nobody_sleeps_for_one_that_takes_nothing_while_another_can_be_sent_to() {
    let mut world = World::open(None);
    let (_deaf, stopped) = world.meet();
    world.stuff(stopped);
    world.post_more(stopped);
    let to = world.here.lookup(world.friend.address()).unwrap();
    for tag in 0..MESSAGES as u64 {
        let message = || Message::copied(b"short");
        for op in [
            Op::SendControl { to, message: message() },
            Op::SendUnexpected { to, message: message() },
            Op::SendExpected { to, tag, message: message() },
        ] {
            world.here.post(6, op).unwrap();
        }
    }
    let (start, mut theirs, mut turns, mut sleeps) = (Instant::now(), Vec::new(), 0, 0);
    let is_sent = |it: &&Completion| matches!(it, Completion::Done(done) if done.token == 6);
    while world.done.iter().filter(is_sent).count() < 3 * MESSAGES || sleeps == 0 {
        in_time!(start, "{turns} turns, {sleeps} sleeps: {:?}", world.done);
        world.progress();
        let link = world.here.links.get(to).unwrap();
        let (lanes, connection) = (&link.way.lanes, &link.way.own);
        let has_more = Lane::ALL
            .into_iter()
            .any(|lane| link.queues.len(lane) > 0 && lanes.has_credit(lane.place()));
        if connection.is_open() && has_more && !connection.route.waits() {
            turns += 1;
            assert!(Ofi::can_send(&mut world.here), "a thread sleeps meanwhile");
        }
        sleeps += u32::from(world.here.may_sleep());
        world.friend.progress(Instant::now(), &mut theirs).unwrap();
    }
    assert!(turns > 0, "all left at once");
}

#[test]
fn what_is_injected_leaves_room_in_the_library_s_queue_to_others() {
    const QUEUE: usize = 64;
    let mut world = World::open(Some(QUEUE));
    let mut deaf = Vec::new();
    for _ in 0..2 {
        let (one, to) = world.meet();
        world.stuff(to);
        let before = world.done.len();
        for tag in 0..MESSAGES as u64 {
            for op in [
                Op::SendControl { to, message: Message::copied(b"x") },
                Op::SendExpected { to, tag, message: Message::copied(b"x") },
            ] {
                world.here.post(8, op).unwrap();
            }
        }
        world.progress();
        let new = &world.done[before..];
        let taken = |it: &&Completion| matches!(it, Completion::Done(done) if done.token == 8);
        let count = new.iter().filter(taken).count();
        assert!(count <= QUEUE / 2, "it takes what others need: {count}");
        deaf.push((one, to));
    }
    let start = Instant::now();
    while start.elapsed() < 2 * Duration::from_millis(BOUND_MS) {
        world.exchange(3);
    }
    drop(deaf);
}

#[test]
fn closing_waits_for_nobody_that_has_gone_before() {
    /// One that is asked, and one that shows it.
    const LOOKS_MAX: u32 = 8;
    let mut world = World::open(None);
    let to = world.here.lookup(world.friend.address()).unwrap();
    world.here.post(9, Op::SendUnexpected { to, message: Message::copied(b"short") }).unwrap();
    let (start, mut theirs) = (Instant::now(), Vec::new());
    while !theirs.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
        in_time!(start);
        world.progress();
        world.friend.progress(Instant::now(), &mut theirs).unwrap();
    }
    assert!(world.here.transport.endpoint().sends().unknown().next().is_some(), "it was injected");
    let friend_s =
        OfiDomain::open(&Address::new("ofi+tcp://127.0.0.1").unwrap(), &OpenOptions::listening());
    drop(mem::replace(&mut world.friend, friend_s.unwrap().context(0).unwrap()));
    let looks = see_off(&mut world.here, Instant::now() + Duration::from_secs(1));
    assert!(looks <= LOOKS_MAX, "{looks} looks");
}

#[test]
fn closing_hears_on_its_lifeline_that_somebody_has_gone() {
    let mut world = World::open(Some(8));
    let (deaf, to) = world.meet();
    // No frame of its own: what would show that all has gone finds no room with libfabric.
    let mut others = Vec::new();
    while world.out() < 8 {
        let (other, it) = world.meet();
        world.stuff(it);
        others.push(other);
        assert!(others.len() < DEAF_MAX, "frames without a bound");
    }
    deaf.hang_up();
    let address = world.here.links.get(to).unwrap().way.own.route.address().unwrap();
    let start = Instant::now();
    // The kernel takes another frame now and then; then there is room.
    while world.here.links.get(to).unwrap().way.own.is_open()
        && !world.here.transport.endpoint().sends().has_gone(address, 1)
    {
        in_time!(start, "it is waited for");
        see_off(&mut world.here, Instant::now() + Duration::from_millis(10));
    }
}

#[test]
fn a_flush_does_not_wait_for_an_address_s_next_owner() {
    let mut world = World::open(Some(8));
    let (first, to) = world.meet();
    assert!(world.stuff(to) > 0);
    world.here.post(5, Op::SendControl { to, message: Message::copied(b"x") }).unwrap();
    world.progress();
    assert!(!world.here.flush(), "it is still with libfabric");
    let address = world.here.links.get(to).unwrap().way.own.route.address().unwrap();
    let awaits = |world: &World| {
        world.here.transport.awaited.as_ref().is_some_and(|it| it.contains_key(&address))
    };
    assert!(awaits(&world));
    first.hang_up();
    world.until_gone(&[to]);
    let start = Instant::now();
    while world.out() > 0 {
        in_time!(start, "its frames count for good");
        world.progress();
    }
    assert!(!awaits(&world), "whoever gets this address next would be waited for");
    let (_second, _) = world.meet();
    assert!(world.here.flush());
}

#[test]
fn nobody_is_given_up_once_a_frame_has_come_back() {
    let mut world = World::open(Some(4));
    let (mut deaf, to) = world.meet();
    assert!(world.stuff(to) > 0);
    world.blame();
    let (start, before, mut events) = (Instant::now(), world.out(), Vec::new());
    while world.out() == before {
        in_time!(start, "it takes nothing");
        deaf.take();
        world.here.transport.endpoint().poll(&mut events).unwrap();
    }
    world.progress();
    let is_open = world.here.links.get(to).unwrap().way.own.is_open();
    assert!(is_open, "a frame has come back since");
    world.stuff(to);
    world.blame();
    world.until_gone(&[to]);
}
