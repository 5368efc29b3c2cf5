//! Entry points of the fuzz targets.
//!
//! [`fuzz_lifeline`]: what anybody may write who reaches the port of a context's lifelines. Of any bytes: as records they are refused or taken off one by one, however they are cut, and what was taken encodes to what is taken
//! again; as a frame they are refused or have a header that encodes to the same bytes. And contexts of `ofi+tcp`, with a key and without,
//! where libfabric is there, hear them on a new lifeline: they go on, and nobody who has hung up is left in their tables.
//!
//! [`fuzz_frames`]: what one may say in frames who has greeted. They bear his connection's key, and are of any kind, order and length;
//! claims of a region that he may read are among them. The context goes on and keeps to its bounds, what it has registered is not written
//! to, a good peer is heard, and of the bad one nothing is left.

use std::{
    cell::RefCell,
    io::Write as _,
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Domain as _, Key, Message, Op, OpenOptions, Peer, Rights};
use hg_na_link::{
    Carrier as _, Header,
    frame::{CONTROL_MAX, HEADER, MESSAGE_MAX, WINDOW},
    moves::ACTIVE_MAX,
    record::{self, RECORD_MAX},
};

use crate::{
    domain::{OfiDomain, context_of},
    transport::OfiContext,
    wire::Greeting,
};

type Record = record::Record<Greeting>;

/// Longest time for which a lifeline that was closed may stand in the table.
const GONE: Duration = Duration::from_secs(8);
/// Rounds between what a stranger says and his end.
const ROUNDS: usize = 4;

thread_local! {
    /// One context without a key and one with it, for all inputs: opening one takes a tenth of a second.
    static CONTEXTS: RefCell<Vec<Box<dyn Context>>> =
        RefCell::new([None, Some(Key([7; 32]))].into_iter().filter_map(open).collect());
}

fn domain(key: Option<Key>) -> Option<OfiDomain> {
    let url = "ofi+tcp://127.0.0.1".parse().ok()?;
    let mut options = OpenOptions::listening();
    options.key = key;
    OfiDomain::open(&url, &options).ok()
}

fn open(key: Option<Key>) -> Option<Box<dyn Context>> {
    domain(key)?.context(0).ok()
}

/// Any bytes on a lifeline; the first one says where they are cut in two.
pub fn fuzz_lifeline(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let parts = bytes.split_at(usize::from(*cut).min(bytes.len()));
    check_records(bytes, parts);
    check_header(bytes);
    CONTEXTS.with_borrow_mut(|contexts| {
        for context in contexts {
            hear(context.as_mut(), parts);
        }
    });
}

/// Takes records until there is none, or something that is none (`false`).
fn take_all(input: &mut Vec<u8>, into: &mut Vec<Record>) -> bool {
    loop {
        match Record::take(input) {
            Ok(Some(record)) => into.push(record),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn check_records(bytes: &[u8], (front, back): (&[u8], &[u8])) {
    let (mut whole, mut at_once) = (bytes.to_vec(), Vec::new());
    let is_whole_good = take_all(&mut whole, &mut at_once);
    assert!(!is_whole_good || whole.len() < 4 + RECORD_MAX, "a record that never ends");
    let (mut cut, mut one_by_one) = (front.to_vec(), Vec::new());
    let is_front_good = take_all(&mut cut, &mut one_by_one);
    if is_front_good {
        cut.extend(back);
        assert_eq!(take_all(&mut cut, &mut one_by_one), is_whole_good, "a cut decides");
    }
    assert!(at_once.starts_with(&one_by_one), "a cut changes what is said");
    for record in at_once {
        let mut encoded = record.encode();
        let again = Record::take(&mut encoded).expect("it reads").expect("it is whole");
        assert!(encoded.is_empty(), "it is longer than it says");
        match (&record, &again) {
            // A sentence is shortened to what may be said.
            (Record::Refuse(_), Record::Refuse(_)) => {}
            _ => assert_eq!(again, record),
        }
    }
}

fn check_header(bytes: &[u8]) {
    let Some((link, header, content)) = Header::decode(bytes) else { return };
    let mut encoded = [0; HEADER];
    header.encode(link, &mut encoded);
    assert!(bytes.starts_with(&encoded) && bytes.ends_with(content), "it says something else");
}

/// Says it to a context, and hangs up.
fn hear(context: &mut dyn Context, (front, back): (&[u8], &[u8])) {
    let Ok(mut stranger) = TcpStream::connect(context.address().rest()) else { return };
    let mut done = Vec::new();
    let mut round = |done: &mut Vec<Completion>| {
        context.progress(Instant::now(), done).expect("no stranger ends an endpoint");
    };
    for part in [front, back] {
        // It may have been cut off.
        let _ = stranger.write_all(part);
        (0..ROUNDS).for_each(|_| round(&mut done));
    }
    let _ = stranger.shutdown(Shutdown::Both);
    drop(stranger);
    let end = Instant::now() + GONE;
    while !shows_nobody(&format!("{context:?}")) {
        assert!(Instant::now() < end, "it is never gone: {context:?}");
        context.progress(Instant::now(), &mut done).expect("no stranger ends an endpoint");
    }
}

fn shows_nobody(context: &str) -> bool {
    context.ends_with(", 0 peers)")
}

/// Bytes of the region that may be read.
const REGION: usize = 4096;

/// Frames of one who has greeted: four bytes for each, then its content.
pub fn fuzz_frames(data: &[u8]) {
    SCENE.with_borrow_mut(|scene| {
        if let Some(scene) = scene {
            scene.play(data);
        }
    });
}

thread_local! {
    static SCENE: RefCell<Option<Scene>> = RefCell::new(Scene::new());
}

struct Scene {
    domain: OfiDomain,
    victim: OfiContext,
    good: OfiContext,
    bad: OfiContext,
    /// The victim, as the good one calls it.
    there: Peer,
}

impl Scene {
    fn new() -> Option<Self> {
        let open = || {
            let domain = domain(None)?;
            let opened = domain.0.first.lock().ok()?.take()?;
            let context = context_of(&domain.0, 0, opened).ok()?;
            Some((domain, context))
        };
        let ((domain, mut victim), (_, mut good), (_, bad)) = (open()?, open()?, open()?);
        let there = good.lookup(victim.address()).ok()?;
        call(&mut good, there, &mut victim);
        Some(Self { domain, victim, good, bad, there })
    }

    fn play(&mut self, data: &[u8]) {
        let memory = vec![0x55; REGION].into();
        let region = self.domain.register(memory, Rights::READ).expect("there is memory");
        let to = self.bad.lookup(self.victim.address()).expect("an address");
        call(&mut self.bad, to, &mut self.victim);
        let mut rest = data;
        while let Some(([kind, tag, shape, len], bytes)) = rest.split_first_chunk() {
            let (own, later) = bytes.split_at(usize::from(*len).min(bytes.len()));
            rest = later;
            let mut head = [0; HEADER];
            (head[0], head[1], head[8]) = (kind % 12, shape & 1, tag % 8);
            head[16..].fill(if shape & 2 == 0 { 0 } else { shape >> 5 });
            let (_, header, _) = Header::decode(&head).expect("it is one");
            let mut content = Vec::new();
            if shape & 4 != 0 {
                content.extend(region.descriptor().opaque());
            }
            content.extend(own);
            if shape & 8 != 0 {
                content.resize(self.room(to), 0);
            }
            self.say(to, &header, &content);
        }
        (0..ROUNDS).for_each(|_| self.step());
        self.bad.forget(to);
        let end = Instant::now() + GONE;
        while self.victim.links.len() > 1 {
            assert!(Instant::now() < end, "it is never gone: {:?}", self.victim);
            self.step();
        }
        call(&mut self.good, self.there, &mut self.victim);
        let memory = region.unregister().expect("nobody uses it any more");
        let bytes = memory.into_vec().expect("as it went in");
        assert!(bytes.iter().all(|byte| *byte == 0x55), "it was written to");
    }

    /// Content of the longest frame.
    fn room(&mut self, to: Peer) -> usize {
        let OfiContext { links, transport, .. } = &mut self.bad;
        links.find(to).map_or(0, |link| transport.room(&link.way.own))
    }

    /// One frame of the bad one, while its connection lives.
    fn say(&mut self, to: Peer, header: &Header, content: &[u8]) {
        let end = Instant::now() + GONE;
        loop {
            assert!(Instant::now() < end, "it is not taken");
            let OfiContext { links, transport, .. } = &mut self.bad;
            let open = links.find(to).filter(|link| link.way.own.is_open());
            let Some(link) = open else { return };
            let content = &content[..content.len().min(transport.room(&link.way.own))];
            let handed = transport.hand((to, &mut link.way.own), header, content.len(), |into| {
                into.copy_from_slice(content);
                true
            });
            if handed.is_ok() {
                // Else its own side takes the answers for rubbish.
                link.way.lanes.left(header);
                link.way.frames_sent += 1;
            }
            let is_again = handed.is_err_and(|fault| fault.is_again());
            self.step();
            if !is_again {
                return;
            }
        }
    }

    /// A round of the victim and of the bad one.
    fn step(&mut self) {
        let mut done = Vec::new();
        for context in [&mut self.victim, &mut self.bad] {
            context.progress(Instant::now(), &mut done).expect("no peer ends an endpoint");
        }
        for link in self.victim.links.iter() {
            let (frames, bytes) = link.way.lanes.held();
            assert!(frames.iter().all(|count| *count <= WINDOW), "{frames:?}");
            assert!(bytes <= 2 * MESSAGE_MAX + CONTROL_MAX);
            let (transfers, words) = link.owner.held();
            let served = transfers + link.way.moves.len();
            assert!(served <= 2 * ACTIVE_MAX && words <= 3 * ACTIVE_MAX);
        }
    }
}

/// Says something to the victim, which hears it.
fn call(from: &mut OfiContext, there: Peer, victim: &mut OfiContext) {
    let message = Message::copied(b"good");
    from.post(1, Op::SendUnexpected { to: there, message }).expect("it is taken");
    let (end, is_it) = (Instant::now() + GONE, |it: &Completion| match it {
        Completion::Unexpected { message, .. } => message.as_slice() == b"good",
        _ => false,
    });
    let mut heard = Vec::new();
    while !heard.iter().any(is_it) {
        assert!(Instant::now() < end, "a good peer is not heard");
        for context in [&mut *from, &mut *victim] {
            context.progress(Instant::now(), &mut heard).expect("no peer ends an endpoint");
        }
    }
}
