//! Entry points of the fuzz targets: whoever connects and writes whatever he likes.
//!
//! [`fuzz_frames`]: an honest context listens; the *liar* connects by a plain socket and writes. The input is a
//! list of commands: one byte, then operands; some have the liar write, others have the honest side's user
//! do what he might. Checked: nothing panics; messages are no longer than any may be; every operation completes
//! once; `HungUp` comes once, and only unexpected messages between it and `Gone`, the last word, for the same reason; a
//! refused range stays as it was; with nothing more to do the context sleeps; at the end all registered memory is given
//! back.
//!
//! [`fuzz_sealed`]: the same with a context that has a key. The liar has it, too, and seals what it says, by either cipher; or it has not, or says
//! something in the clear between.
//!
//! [`fuzz_greeting`]: any bytes are refused or decoded, within the limit, and what is accepted encodes to
//! something that reads the same.

use std::{
    collections::{HashMap, HashSet},
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use hg_na::{
    Completion, Context, GoneReason, Key, Message, Op, OpId, OpenOptions, Peer, Plugin as _,
    Region, Rights,
};
use socket2::SockRef;

use crate::{
    TcpPlugin,
    frame::{HEADER, Header, Kind, LinkId, MESSAGE_MAX},
    greeting::{BODY_MAX, Greeting, Hello, PREFIX, PROTOCOL},
};
use hg_na_parts::{
    key::{self, Exchange, RECORD_MAX, Seal},
    regions::CLAIM_LEN,
};

/// Commands of one input.
const COMMANDS: usize = 200;
/// Rounds in which everything that ends has ended.
const ROUNDS: usize = 1000;
/// Bytes of the region; only its first half can be reached through the rights and ranges that are given out.
const REGION: usize = 4096;
/// Tags and serials: few, so that they meet.
const FEW: u8 = 8;

/// Any bytes as a greeting.
pub fn fuzz_greeting(bytes: &[u8]) {
    let Ok(Some((greeting, used))) = Greeting::decode(bytes) else { return };
    assert!(used <= PREFIX + BODY_MAX && used <= bytes.len(), "it reads beyond its end");
    let encoded = greeting.encode();
    let (again, len) = Greeting::decode(&encoded).expect("it reads").expect("it is whole");
    assert_eq!(len, encoded.len());
    // A sentence is shortened to what can be shown, once.
    match (&greeting, &again) {
        (Greeting::Refuse(_), Greeting::Refuse(said)) => assert!(said.is_ascii()),
        _ => assert_eq!(again, greeting),
    }
}

/// A connection of which one end says whatever it likes.
pub fn fuzz_frames(data: &[u8]) {
    let Some(scene) = Scene::new(None) else { return };
    scene.play(Input(data));
}

/// The same where the context has a key.
pub fn fuzz_sealed(data: &[u8]) {
    let mut input = Input(data);
    let Some(mut scene) = Scene::new(Some(Key([7; 32]))) else { return };
    let first = input.byte().unwrap_or(0);
    if !first.is_multiple_of(8) {
        scene.exchange_keys(first % 2);
    }
    scene.play(input);
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now.to_vec()
    }

    /// Few numbers, and the ends of all.
    fn number(&mut self) -> Option<u64> {
        Some(match self.byte()? {
            255 => u64::MAX,
            254 => u64::from(u32::MAX),
            253 => 1 << 32,
            byte => u64::from(byte),
        })
    }
}

struct Scene {
    context: Box<dyn Context>,
    liar: Option<TcpStream>,
    /// What the liar seals with.
    seal: Option<Seal>,
    region: Option<Region>,
    target: Option<Peer>,
    hung_up: HashMap<Peer, GoneReason>,
    gone: HashSet<Peer>,
    closed: HashSet<Peer>,
    open: HashMap<u64, OpId>,
    last: u64,
}

impl Scene {
    fn new(key: Option<Key>) -> Option<Self> {
        let url = "tcp://127.0.0.1".parse().ok()?;
        let mut options = OpenOptions::listening();
        options.key = key;
        let domain = TcpPlugin.open(&url, &options).ok()?;
        let context = domain.context(0).ok()?;
        let region = domain.register(vec![0x55; REGION].into(), Rights::all()).ok()?;
        let liar = TcpStream::connect(context.address().rest()).ok()?;
        liar.set_nonblocking(true).ok()?;
        // It leaves no trace in the kernel.
        SockRef::from(&liar).set_linger(Some(Duration::ZERO)).ok()?;
        Some(Self {
            context,
            liar: Some(liar),
            seal: None,
            region: Some(region),
            target: None,
            hung_up: HashMap::new(),
            gone: HashSet::new(),
            closed: HashSet::new(),
            open: HashMap::new(),
            last: 0,
        })
    }

    /// All of an input.
    fn play(mut self, mut input: Input<'_>) {
        let greeted = !input.byte().unwrap_or(0).is_multiple_of(8);
        if greeted {
            let hello = Hello {
                incarnation: [7; 16],
                nonce: [8; 16],
                context: 0,
                insists: false,
                knows: false,
                address: String::new(),
            };
            self.write(&Greeting::Hello(hello).encode());
        }
        for _ in 0..COMMANDS {
            if self.obey(&mut input).is_none() {
                break;
            }
        }
        self.finish();
    }

    /// The liar proves that it has the key; from now on it seals, by the cipher of this number.
    fn exchange_keys(&mut self, suite: u8) {
        let key = key::Key::given(&Key([7; 32])).expect("this build can encrypt");
        let mut exchange =
            Exchange::dialling_in(suite, &key, PROTOCOL).expect("this build can encrypt");
        let first = exchange.write().expect("the first message");
        self.write(&Greeting::NoiseFirst(first).encode());
        let mut answer = Vec::new();
        for _ in 0..ROUNDS {
            self.round();
            let mut bytes = [0; 256];
            let read = self.liar.as_ref().and_then(|mut liar| liar.read(&mut bytes).ok());
            answer.extend(&bytes[..read.unwrap_or(0)]);
            if let Ok(Some((Greeting::NoiseSecond(second), _))) = Greeting::decode(&answer) {
                exchange.read(&second).expect("both have the key");
                self.seal = Some(exchange.finish().expect("both messages were said"));
                return;
            }
        }
        panic!("no answer to the first message");
    }

    /// Sealed, where the liar has the key.
    fn write(&mut self, bytes: &[u8]) {
        let Some(seal) = &mut self.seal else { return self.write_clear(bytes) };
        let mut sealed = Vec::new();
        for plain in bytes.chunks(RECORD_MAX) {
            seal.seal(plain, &mut sealed).expect("it is not too long");
        }
        self.write_clear(&sealed);
    }

    fn write_clear(&mut self, bytes: &[u8]) {
        if let Some(mut liar) = self.liar.as_ref() {
            // It may have been cut off, or the other end be full.
            let _ = liar.write(bytes);
            let _ = liar.read(&mut [0; 1 << 16]);
        }
    }

    fn obey(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 10 {
            0 => {
                let len = usize::from(input.byte()?);
                let bytes = input.bytes(len);
                // One in eight breaks a sealed stream.
                if len % 8 == 7 { self.write_clear(&bytes) } else { self.write(&bytes) }
            }
            1..=3 => self.write_frame(input)?,
            4 => self.write_access(input)?,
            5 => self.post(input)?,
            6 => self.set_admission(input.byte()?),
            7 => {
                let nth = usize::from(input.byte()?);
                if let Some(id) = self.open.values().nth(nth % self.open.len().max(1)) {
                    self.context.cancel(*id);
                }
            }
            8 => (0..input.byte()? % 16).for_each(|_| self.round()),
            _ => {
                if input.byte()? == 0
                    && let Some(target) = self.target
                {
                    self.context.forget(target);
                }
            }
        }
        self.round();
        Some(())
    }

    /// Of all, or of the liar alone.
    fn set_admission(&mut self, byte: u8) {
        let open = byte.is_multiple_of(2);
        match self.target.filter(|_| byte % 4 > 1) {
            None => self.context.set_admission(open),
            Some(peer) => {
                self.closed.insert(peer);
                self.context.set_admission_of(peer, open);
            }
        }
    }

    /// A frame that is well-formed but for its length, perhaps.
    fn write_frame(&mut self, input: &mut Input<'_>) -> Option<()> {
        const LENGTHS: [u32; 8] = [0, 1, 8, 12, 56, 300, 5000, 262_145];
        let kind = input.byte()? % 16;
        let shape = input.byte()?;
        let len = LENGTHS[usize::from(shape % 8)];
        let link = LinkId { side: (shape >> 3) % 3, epoch: u16::from(shape >> 6) };
        let word = input.number()?;
        let header = Header { len, kind: Kind::Goodbye, link, word };
        let mut bytes = header.encode();
        bytes[4] = kind;
        // Long bodies mostly do not come whole.
        let given = usize::from(input.byte()?).min(len as usize);
        let body = input.bytes(given);
        let fill = if shape & 1 == 0 { (len as usize).min(8192) } else { body.len() };
        let mut all = bytes.to_vec();
        all.extend(&body);
        all.resize(HEADER + fill.max(body.len()), 0);
        self.write(&all);
        Some(())
    }

    /// A put or get of the true region, or of one nearly true.
    fn write_access(&mut self, input: &mut Input<'_>) -> Option<()> {
        let region = self.region.as_ref()?;
        let mut body = region.descriptor().opaque().to_vec();
        let (flip, kind) = (input.byte()?, input.byte()?);
        if let Some(byte) = body.get_mut(usize::from(flip)) {
            *byte ^= 1;
        }
        let offset = input.number()?;
        let len = input.number()?.wrapping_mul(16) % (REGION as u64 / 2);
        body.extend(offset.to_le_bytes());
        body.extend(len.to_le_bytes());
        debug_assert_eq!(body.len(), CLAIM_LEN + 16);
        let kind = if kind % 2 == 0 { Kind::Put } else { Kind::Get };
        let link = LinkId { side: 0, epoch: 0 };
        let word = u64::from(input.byte()? % FEW);
        let header = Header { len: u32::try_from(body.len()).ok()?, kind, link, word };
        self.write(&[&header.encode()[..], &body].concat());
        Some(())
    }

    /// The honest side's user.
    fn post(&mut self, input: &mut Input<'_>) -> Option<()> {
        let Some(peer) = self.target else { return Some(()) };
        let (what, tag) = (input.byte()?, u64::from(input.byte()? % FEW));
        let message = || Message::copied(&vec![1; usize::from(what)]);
        let (to, from) = (peer, peer);
        let region = self.region.as_ref()?;
        let slices = || {
            let local = region.slice(0, 64).ok()?;
            Some((local, region.descriptor().slice(0, 64).ok()?))
        };
        let op = match what % 6 {
            0 => Op::SendUnexpected { to, message: message() },
            1 => Op::SendExpected { to, tag, message: message() },
            2 => Op::SendControl { to, message: message() },
            3 => Op::RecvExpected { from, tag },
            4 => slices().map(|(local, remote)| Op::Put { to, local, remote })?,
            _ => slices().map(|(local, remote)| Op::Get { from, local, remote })?,
        };
        self.last += 1;
        if let Ok(id) = self.context.post(self.last, op) {
            self.open.insert(self.last, id);
        }
        Some(())
    }

    fn round(&mut self) {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).expect("only the liar is at fault");
        for completion in done {
            match completion {
                Completion::Done(done) => {
                    assert!(self.open.remove(&done.token).is_some(), "completed once");
                }
                Completion::Unexpected { from, message } => {
                    assert!(message.len() <= MESSAGE_MAX && !self.gone.contains(&from));
                    self.target = Some(from).filter(|from| !self.hung_up.contains_key(from));
                }
                Completion::Control { from, message } => {
                    assert!(message.len() <= MESSAGE_MAX && !self.hung_up.contains_key(&from));
                    self.target = Some(from);
                }
                Completion::HungUp { peer, reason } => {
                    assert!(self.hung_up.insert(peer, reason).is_none(), "hung up once");
                    self.target = self.target.filter(|target| *target != peer);
                }
                Completion::Gone { peer, reason } => {
                    assert_eq!(self.hung_up.get(&peer), Some(&reason), "told before, with why");
                    assert!(self.gone.insert(peer), "gone once");
                }
                _ => {}
            }
        }
    }

    /// The liar hangs up: everything ends.
    fn finish(mut self) {
        self.context.set_admission(true);
        self.closed.drain().for_each(|peer| self.context.set_admission_of(peer, true));
        drop(self.liar.take());
        let mut rested = 0;
        for _ in 0..ROUNDS {
            self.round();
            rested = if self.context.may_sleep() { rested + 1 } else { 0 };
            if rested > 2 && self.open.is_empty() {
                break;
            }
        }
        assert!(rested > 0, "it comes to rest");
        assert!(self.open.is_empty(), "what was posted to the liar has ended: {:?}", self.open);
        let region = self.region.take().expect("taken here only");
        let memory = region.unregister().expect("nobody uses it any more");
        let bytes = memory.into_vec().expect("as it went in");
        assert!(bytes[REGION / 2 + 256..].iter().all(|byte| *byte == 0x55), "out of range");
    }
}
