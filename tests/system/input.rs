//! Messages that no honest peer sends, over an honest transport: the caller gets a named error or is
//! disconnected with a reason, and nobody else notices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

#[cfg(feature = "fail-points")]
use hg::na::Begun;
use hg::{
    CallError, GoneReason, Rpc as _,
    bulk::{Frozen, Rights},
    na::{
        Address, Completion, Context, Domain, Done, Message, Op, OpenOptions, Peer, Plugin as _,
        Returned,
    },
};

use crate::{
    bulk::{claiming, mover, sum},
    common::{Child, Random, Watchdog, process::peak_rss_kib},
    roles::{add, echo, kind_of, never},
    transports::{open_over, urls, witness_over},
};

/// What became of a message.
#[derive(Debug)]
enum Fate {
    /// It was answered: status and text.
    Answered(u8, String),
    /// The connection was closed, after this sentence.
    Disconnected(String),
}

/// A peer that speaks `na`, and whatever it likes over it.
pub(crate) struct Raw {
    context: Box<dyn Context>,
    /// Kept for as long as its context lives.
    #[cfg_attr(not(feature = "fail-points"), expect(dead_code, reason = "for `domain`"))]
    domain: Arc<dyn Domain>,
    done: Vec<Completion>,
}

impl Raw {
    pub(crate) fn open(options: &OpenOptions) -> Self {
        Self::over("sm://", options)
    }

    /// The same over one of [`raw_urls`].
    fn over(url: &str, options: &OpenOptions) -> Self {
        let domain = match url.strip_prefix("plain+") {
            #[cfg(feature = "tcp")]
            Some(url) => hg::tcp::TcpPlugin.open(&url.parse().unwrap(), options),
            _ => hg::sm::SmPlugin.open(&url.parse().unwrap(), options),
        };
        let domain = domain.unwrap();
        Self { context: domain.context(0).unwrap(), domain, done: Vec::new() }
    }

    pub(crate) fn lookup(&mut self, address: &str) -> Peer {
        self.context.lookup(&address.parse().unwrap()).unwrap()
    }

    pub(crate) fn message(&mut self, to: Peer, len: usize) -> Message {
        self.context.message(to, len).unwrap()
    }

    pub(crate) fn post(&mut self, op: Op) {
        let rejected = self.context.post(0, op);
        assert!(rejected.is_ok(), "{rejected:?}");
    }

    /// What has come since, in order; sleeps when there is nothing.
    pub(crate) fn take(&mut self) -> Vec<Completion> {
        self.context.progress(Instant::now(), &mut self.done).unwrap();
        if self.done.is_empty() && self.context.may_sleep() {
            self.context.waiter().wait(Some(Duration::from_millis(50))).unwrap();
        }
        std::mem::take(&mut self.done)
    }

    /// Makes a transfer by this side alone, once there is a connection; says whether it was made.
    #[cfg(feature = "fail-points")]
    pub(crate) fn transfer(&mut self, op: &Op) -> bool {
        let transit = op.transit().expect("a put or a get");
        loop {
            match self.context.begin(&transit) {
                Begun::Later => drop(self.take()),
                begun => return begun.finish(),
            }
        }
    }

    #[cfg(feature = "fail-points")]
    pub(crate) fn domain(&self) -> &dyn Domain {
        self.domain.as_ref()
    }

    pub(crate) fn address(&self) -> &Address {
        self.context.address()
    }

    /// Sends a message as a request, and waits for what becomes of it. Its id is 7.
    fn send(&mut self, address: &str, bytes: &[u8]) -> Fate {
        let to = self.lookup(address);
        self.post(Op::RecvExpected { from: to, tag: 7 });
        self.post(Op::SendUnexpected { to, message: Message::copied(bytes) });
        self.fate(to)
    }

    fn fate(&mut self, peer: Peer) -> Fate {
        let mut sentence = String::new();
        loop {
            for completion in self.take() {
                match completion {
                    Completion::Done(Done {
                        returned: Returned::Message(answer), result, ..
                    }) if result.is_ok() && answer.as_slice().get(3) == Some(&ANSWER) => {
                        let answer = answer.as_slice();
                        let text = String::from_utf8_lossy(&answer[PREFIX..]).into_owned();
                        return Fate::Answered(answer[5], text);
                    }
                    Completion::Control { message, .. } => {
                        sentence += &String::from_utf8_lossy(&message.as_slice()[PREFIX..]);
                    }
                    Completion::Gone { peer: gone, reason } if gone == peer => {
                        return Fate::Disconnected(format!("{sentence} ({reason})"));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The transports that are spoken without an engine.
fn raw_urls() -> impl Iterator<Item = &'static str> {
    urls().filter(|url| *url == "sm://" || url.starts_with("plain+"))
}

// The header as `hg-core/src/header.rs` lays it out; written by hand, since these are to be wrong.
const PREFIX: usize = 20;
const REQUEST: u8 = 1;
const ANSWER: u8 = 3;
const DECODE: u8 = 4;
const REJECTED: u8 = 3;
/// The flag of requests that lend frozen memory.
const FROZEN: u8 = 32;
const NO_SUCH_RPC: u8 = 2;
const INCOMPATIBLE: u8 = 9;
/// The arguments of `add`, both 0.
const ZEROES: &[u8] = if cfg!(feature = "postcard") { &[0; 2] } else { &[0; 16] };

/// A request with id 7 for an RPC.
fn request(rpc: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"Hg\x02".to_vec();
    bytes.extend([REQUEST, 0, codec(), 0, 0]);
    bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(rpc.to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// The codec's number, from a header that the library has written.
fn codec() -> u8 {
    static CODEC: std::sync::OnceLock<u8> = std::sync::OnceLock::new();
    *CODEC.get_or_init(|| {
        let mut raw = Raw::open(&OpenOptions::listening());
        let engine = hg::open("sm://").unwrap();
        let peer = engine.lookup(raw.address()).unwrap();
        drop(engine.notify(add, &peer, (1, 2)));
        loop {
            for completion in raw.take() {
                if let Completion::Unexpected { message, .. } = completion {
                    return message.as_slice()[5];
                }
            }
        }
    })
}

fn changed(at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = request(add::wire_id().0, ZEROES);
    bytes[at] = byte;
    bytes
}

#[test]
fn a_request_that_cannot_be_read_is_answered_with_what_is_wrong() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let witness = witness_over(url, &address);
        let mut raw = Raw::over(url, &OpenOptions::default());
        let mut long = request(add::wire_id().0, ZEROES);
        long.pop();
        let mut cut = changed(4, 1);
        cut.truncate(30);
        let hostile = request(echo::wire_id().0, &[0xFF; 8]);
        let cases = [
            ("an unknown RPC", request(0x1234, &[]), NO_SUCH_RPC, ""),
            ("another version", changed(2, 77), INCOMPATIBLE, "version 77"),
            ("a length beyond what arrived", long, DECODE, "length"),
            ("a length short of what arrived", changed(8, 3), DECODE, "length"),
            ("a header cut short", cut, DECODE, "cut short"),
            ("an unknown flag", changed(4, 0x80), DECODE, "flag"),
            ("another codec", changed(5, 99), INCOMPATIBLE, "codec 99"),
            ("too few arguments", request(add::wire_id().0, &ZEROES[1..]), DECODE, "add"),
            ("too many arguments", request(add::wire_id().0, &[0; 50]), DECODE, "add"),
            ("a length of 2^64 inside of an argument", hostile, DECODE, "echo"),
        ];
        for (case, bytes, status, words) in cases {
            let fate = raw.send(&address, &bytes);
            let Fate::Answered(answered, text) = &fate else { panic!("{case}: {fate:?}") };
            assert!(*answered == status && text.contains(words), "{case}: {fate:?}");
        }
        let good = raw.send(&address, &request(add::wire_id().0, ZEROES));
        assert!(matches!(good, Fate::Answered(0, _)), "{good:?}");
        witness.testifies();
    }
}

/// A request that lends frozen memory: its payload is the count, the descriptors, and the number of the first one.
fn lending(count: u8, descriptors: &[&[u8]]) -> Vec<u8> {
    let mut payload = vec![count];
    for descriptor in descriptors {
        payload.extend(u16::try_from(descriptor.len()).unwrap().to_le_bytes());
        payload.extend(*descriptor);
    }
    payload.extend(&[0; 4][..if cfg!(feature = "postcard") { 1 } else { 4 }]);
    let mut bytes = request(sum::wire_id().0, &payload);
    bytes[4] = FROZEN;
    bytes
}

#[test]
fn frozen_memory_that_is_none_is_refused_by_name_and_costs_nothing() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let (child, address) = mover(url);
        let engine = open_over(hg::builder().listen(true).eager_max(0), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let honest = || engine.call(sum, &peer, (Frozen::from(vec![1; 100]),)).wait().unwrap();
        assert_eq!(honest(), 100);
        // Of somebody else than who sends it.
        let bulk = engine.expose(vec![1; 100], Rights::READ).unwrap();
        let descriptor = bulk.descriptor();
        let stale = descriptor.as_bytes();
        let closed = engine.expose(vec![1; 100], Rights::WRITE).unwrap().descriptor();
        let memory = peak_rss_kib(child.pid());
        let mut raw = Raw::over(url, &OpenOptions::default());
        let mut cut = lending(1, &[stale]);
        cut.truncate(60);
        cut[8..12].copy_from_slice(&32_u32.to_le_bytes());
        let no_number = [&[1, 16, 0][..], &[1, 0, 1], &[0; 13]].concat();
        let mut no_number = request(sum::wire_id().0, &no_number);
        no_number[4] = FROZEN;
        let cases = [
            ("none", lending(0, &[]), DECODE, "too many"),
            ("too many", lending(65, &[stale; 65]), DECODE, "too many"),
            ("one of two", lending(2, &[stale]), DECODE, "cut short"),
            ("cut short", cut, DECODE, "cut short"),
            ("no descriptor", lending(1, &[b"abc"]), DECODE, "descriptor"),
            ("another's", lending(1, &[stale]), REJECTED, "not registered"),
            ("not to be read", lending(1, &[closed.as_bytes()]), REJECTED, "READ"),
            ("1 PiB", lending(1, &[&claiming(stale, 1 << 50)]), REJECTED, "large_max"),
            ("a little more", lending(1, &[&claiming(stale, 1 << 30)]), REJECTED, "pulled"),
            ("no arguments", no_number, DECODE, "sum"),
        ];
        for (case, bytes, status, words) in cases {
            let fate = raw.send(&address, &bytes);
            let Fate::Answered(answered, text) = &fate else { panic!("{case}: {fate:?}") };
            assert!(*answered == status && text.contains(words), "{case}: {fate:?}");
        }
        assert_eq!(honest(), 100);
        let more = peak_rss_kib(child.pid()) - memory;
        assert!(more < 64 * 1024, "{more} KiB for refusals");
    }
}

#[test]
fn a_peer_that_does_not_speak_the_protocol_is_disconnected_with_a_reason() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let witness = witness_over(url, &address);
        let mut raw = Raw::over(url, &OpenOptions::default());
        let cases = [
            ("nothing at all", Vec::new()),
            ("a header cut short", request(add::wire_id().0, &[])[..12].to_vec()),
            ("another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
            ("an answer as a request", changed(3, ANSWER)),
            ("a kind that does not exist", changed(3, 200)),
        ];
        for (case, bytes) in cases {
            let fate = raw.send(&address, &bytes);
            let Fate::Disconnected(sentence) = &fate else { panic!("{case}: {fate:?}") };
            assert!(
                sentence.len() > 12 && !sentence.starts_with(' '),
                "{case}: no reason: {fate:?}"
            );
            // Looked up again it is a new peer, and served.
            let good = raw.send(&address, &request(add::wire_id().0, ZEROES));
            assert!(matches!(good, Fate::Answered(0, _)), "after {case}: {good:?}");
        }
        let to = raw.lookup(&address);
        raw.post(Op::SendControl { to, message: Message::copied(&request(add::wire_id().0, &[])) });
        let fate = raw.fate(to);
        assert!(matches!(&fate, Fate::Disconnected(text) if text.contains("came as")), "{fate:?}");
        witness.testifies();
    }
}

#[test]
fn ten_thousand_random_messages_hurt_nobody() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let witness = witness_over(url, &address);
        let mut raw = Raw::over(url, &OpenOptions::default());
        let mut random = Random::new(7);
        for _ in 0..if url == "sm://" { 10_000 } else { 1000 } {
            let to = raw.lookup(&address);
            let len = random.size_below(120);
            let mut bytes = random.bytes(len);
            // Most of them get past the first checks.
            let start = request(add::wire_id().0, &[0; 30]);
            let honest = random.size_below(40).min(len);
            bytes[..honest].copy_from_slice(&start[..honest]);
            let message = Message::copied(&bytes);
            let op = match random.below(8) {
                0 => Op::SendControl { to, message: Message::copied(&bytes[..len.min(48)]) },
                1 => Op::SendExpected { to, tag: random.below(4), message },
                _ => Op::SendUnexpected { to, message },
            };
            // Refused when the queue is full, or the target has disconnected us: that is what it is for.
            drop(raw.context.post(0, op));
            raw.context.progress(Instant::now(), &mut raw.done).unwrap();
            raw.done.clear();
        }
        witness.testifies();
    }
}

mod ours {
    #[hg::rpc(name = "mismatched::result")]
    pub(super) fn result() -> String;

    #[hg::rpc(name = "mismatched::arguments")]
    pub(super) fn arguments(number: u64) -> u64;
}

#[test]
fn an_unknown_rpc_is_named_and_the_target_serves_on() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let origin = open_over(hg::builder(), url).unwrap();
        let peer = origin.lookup(&address).unwrap();
        for _ in 0..100 {
            let error = origin.call(ours::result, &peer, ()).wait().unwrap_err();
            assert!(
                matches!(error, CallError::NoSuchRpc { name: "mismatched::result" }),
                "{error}"
            );
            drop(origin.notify(ours::arguments, &peer, (1,)));
        }
        assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    }
}

/// An engine that reaches a target of another kind than its own: requests pass a relay that changes them so.
fn called_through(change: impl Fn(&mut [u8]) + Send + 'static) -> CallError {
    let target = hg::listen("sm://").unwrap();
    target.register(add).unwrap();
    let mut raw = Raw::open(&OpenOptions::listening());
    let (address, to) = (raw.address().clone(), raw.lookup(target.address().as_str()));
    let over = Arc::<AtomicBool>::default();
    let stop = Arc::clone(&over);
    let relay = thread::spawn(move || {
        let mut origin = None;
        while !stop.load(Ordering::SeqCst) {
            for completion in raw.take() {
                match completion {
                    Completion::Unexpected { from, message } => {
                        let mut bytes = message.as_slice().to_vec();
                        let tag = u64::from_le_bytes(bytes[12..20].try_into().unwrap());
                        change(&mut bytes);
                        origin = Some((from, tag));
                        raw.post(Op::RecvExpected { from: to, tag });
                        raw.post(Op::SendUnexpected { to, message: Message::copied(&bytes) });
                    }
                    Completion::Done(Done { returned: Returned::Message(answer), .. })
                        if answer.as_slice().get(3) == Some(&ANSWER) =>
                    {
                        let (to, tag) = origin.unwrap();
                        raw.post(Op::SendExpected { to, tag, message: answer });
                    }
                    _ => {}
                }
            }
        }
    });
    let origin = hg::open("sm://").unwrap();
    let peer = origin.lookup(&address).unwrap();
    let error = origin.call(add, &peer, (1, 2)).wait().unwrap_err();
    over.store(true, Ordering::SeqCst);
    relay.join().unwrap();
    error
}

#[test]
fn engines_of_another_version_or_codec_say_which_both_speak() {
    let _watchdog = Watchdog::start();
    let version = called_through(|request| request[2] = 77);
    assert_eq!(kind_of(&version), "Incompatible");
    let said = version.to_string();
    assert!(said.contains("version 77") && said.contains("version 2"), "{said}");
    let other = 3 - codec();
    let said = called_through(move |request| request[5] = other).to_string();
    assert!(said.contains("codec 1 (bincode)") && said.contains("codec 2 (postcard)"), "{said}");
    let unknown = called_through(|request| request[5] = 99).to_string();
    assert!(unknown.contains("codec 99 (unknown)"), "{unknown}");
}

/// A target that answers each request with what `answer` makes of its header.
fn lying_target(
    url: &str,
    answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
) -> (String, Arc<AtomicBool>, JoinHandle<()>) {
    let mut raw = Raw::over(url, &OpenOptions::listening());
    let address = raw.address().to_string();
    let over = Arc::<AtomicBool>::default();
    let stop = Arc::clone(&over);
    let serve = move || {
        while !stop.load(Ordering::SeqCst) {
            for completion in raw.take() {
                if let Completion::Unexpected { from: to, message } = completion {
                    let request = message.as_slice();
                    let tag = u64::from_le_bytes(request[12..20].try_into().unwrap());
                    let message = Message::copied(&answer(request));
                    // A caller that has turned its back takes no answer.
                    drop(raw.context.post(0, Op::SendExpected { to, tag, message }));
                }
            }
        }
    };
    (address, over, thread::spawn(serve))
}

/// An answer to a request, with a status and a payload.
fn answer_to(request: &[u8], status: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"Hg\x02".to_vec();
    bytes.extend([ANSWER, 0, status, 0, 0]);
    bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend(&request[12..20]);
    bytes.extend(payload);
    bytes
}

#[test]
fn an_answer_that_cannot_be_read_is_a_named_error_of_its_call_alone() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        type Lie = fn(&[u8]) -> Vec<u8>;
        let lies: [(&str, Lie); 9] = [
            ("nothing", |_| Vec::new()),
            ("a header cut short", |request| answer_to(request, 0, &[0; 8])[..15].to_vec()),
            ("another protocol", |_| b"HTTP/1.1 200 OK\r\n\r\n12345678".to_vec()),
            ("another version", |request| {
                let mut bytes = answer_to(request, 0, &[0; 8]);
                bytes[2] = 9;
                bytes
            }),
            ("another call's answer", |request| {
                let mut bytes = answer_to(request, 0, &[0; 8]);
                bytes[12] ^= 1;
                bytes
            }),
            ("an unknown status", |request| answer_to(request, 99, &[0; 8])),
            ("a value cut short", |request| answer_to(request, 0, &[0; 3])),
            ("a length beyond what arrived", |request| {
                answer_to(request, 0, &[0; 30])[..28].to_vec()
            }),
            ("a request", |request| request.to_vec()),
        ];
        let (_honest, honest) = Child::target(&format!("url={url}"));
        let origin = open_over(hg::builder(), url).unwrap();
        let good = origin.lookup(&honest).unwrap();
        for (case, lie) in lies {
            let (address, over, thread) = lying_target(url, lie);
            let bad = origin.lookup(&address).unwrap();
            let open = origin.call(never, &good, ());
            let error = origin.call(add, &bad, (1, 2)).wait().unwrap_err();
            let kind = kind_of(&error);
            let named = if case == "another version" { "Incompatible" } else { "Decode" };
            assert!([named, "PeerGone"].contains(&kind), "{case}: {error}");
            assert_eq!(origin.call(add, &good, (1, 2)).wait().unwrap(), 3, "after {case}");
            drop(open);
            over.store(true, Ordering::SeqCst);
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_target_that_closes_without_an_answer_is_gone() {
    let _watchdog = Watchdog::start();
    for url in raw_urls() {
        let mut raw = Raw::over(url, &OpenOptions::listening());
        let origin = open_over(hg::builder(), url).unwrap();
        let peer = origin.lookup(raw.address()).unwrap();
        let call = origin.call(add, &peer, (1, 2));
        let requests = |done: Vec<Completion>| {
            done.iter().any(|completion| matches!(completion, Completion::Unexpected { .. }))
        };
        while !requests(raw.take()) {}
        drop(raw);
        let error = call.wait().unwrap_err();
        let CallError::PeerGone { reason: GoneReason::Closed, .. } = error else {
            panic!("{error}")
        };
    }
}
