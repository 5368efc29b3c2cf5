//! What is said on lifelines, and when: a context over a transport whose frames lead nowhere, and peers that speak by hand.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::IpAddr,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context as _, Error, GoneReason, Message, Op, Peer, QUIET};
use hg_na_frames::{
    Bounds, Common, Connection, FramedContext, FramesWaiter, Lifeline, Listener, Place, Transport,
    Unmet,
};
use hg_na_link::{Carrier, Grant, Greeting, Record, frame::Header};
use hg_na_memory::Held;
use nix::sys::epoll::EpollFlags;
use watchdog::{LIMIT, in_time};

/// What each end says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Name;

impl Greeting for Name {
    fn encode(&self, into: &mut Vec<u8>) {
        into.push(7);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes == [7]).then_some(Self)
    }
}

/// Frames are taken, and never come.
struct Nowhere {
    waiter: Arc<FramesWaiter>,
    /// Lifelines cannot be watched.
    is_full: bool,
}

/// Places that an address still leads to.
#[derive(Debug)]
struct Ways(u32);

type End = FramedContext<Nowhere>;

impl Carrier for Nowhere {
    type Own = Connection<Ways>;
    type Fault = ErrorKind;

    const MOVE_MAX: u64 = 1;

    fn is_again(_: &ErrorKind) -> bool {
        false
    }

    fn room(&self, _: &Self::Own) -> usize {
        1000
    }

    fn hand(
        &mut self,
        _: (Peer, &mut Self::Own),
        _: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, ErrorKind> {
        assert!(fill(&mut vec![0; len]));
        Ok(None)
    }

    fn may_lend(&self, _: &Self::Own) -> bool {
        false
    }

    fn lend(
        &mut self,
        _: &Self::Own,
        _: &Held,
        _: hg_na::Segment,
        _: bool,
    ) -> Result<(usize, Grant), ErrorKind> {
        Err(ErrorKind::Unsupported)
    }

    fn revoke(&mut self, _: usize) {}

    fn move_run(
        &mut self,
        _: (Peer, &mut Self::Own),
        _: Grant,
        _: (&Held, hg_na::Segment),
        _: (bool, u64),
    ) -> Result<bool, ErrorKind> {
        Err(ErrorKind::Unsupported)
    }
}

impl Transport for Nowhere {
    type Place = Place;
    type Route = Ways;
    type Hello = Name;

    const NAME: &'static str = "nowhere";
    const AWAITS_READY: bool = false;

    fn target(&self, address: &Address) -> Result<Place, Error> {
        Ok(Place::Local(address.rest().into()))
    }

    fn route(&self) -> Result<Ways, Error> {
        Ok(Ways(2))
    }

    fn dial(&mut self, to: &Place, _: &mut Ways) -> io::Result<Lifeline> {
        Lifeline::connect(to, None, LIMIT)
    }

    fn dials_elsewhere(&mut self, ways: &mut Ways) -> bool {
        ways.0 -= 1;
        ways.0 > 0
    }

    fn admits(&self, lifeline: &Lifeline) -> Result<(), String> {
        if self.is_full {
            // It is in the set already, and can be in it once.
            self.waiter.add(lifeline.fd(), 0, EpollFlags::empty()).unwrap();
        }
        Ok(())
    }

    fn introduce(&mut self, _: u32, _: &mut Ways, _: Option<IpAddr>) -> Result<Name, Error> {
        Ok(Name)
    }

    fn meet(&mut self, _: u32, _: &mut Self::Own, Name: Name) -> Result<(), Unmet> {
        Ok(())
    }

    fn part(&mut self, _: Peer, _: &mut Ways, _: &GoneReason, _: &mut Vec<Completion>) {}

    fn reaches_nothing(&self, _: &GoneReason) -> bool {
        true
    }

    fn unreachable(fault: ErrorKind) -> GoneReason {
        GoneReason::Unreachable(fault.to_string().into())
    }

    fn stalls(&mut self, _: &mut Self::Own, _: Instant) -> Result<(), ErrorKind> {
        Ok(())
    }

    fn flows(&mut self, _: &mut Ways) {}

    fn poll(_: &mut End) -> Result<bool, Error> {
        Ok(false)
    }

    fn run_timers(&mut self, _: Instant) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn can_send(context: &mut End) -> bool {
        !context.busy.is_empty()
    }

    fn arms(_: &mut End) -> bool {
        true
    }

    fn flush(_: &mut End) -> bool {
        true
    }

    fn close(_: &mut End) {}

    fn forget(&mut self) {}
}

/// The abstract socket of a place of this name, which no other test has.
fn socket(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("hydrargyrum-ofi/{name}")).unwrap()
}

fn named(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn open(name: &str, max_peers: usize) -> End {
    let bounds = Bounds {
        connect_timeout: LIMIT,
        silence_bound: LIMIT,
        max_peers,
        max_held: 1 << 20,
        rma: false,
        key: None,
    };
    let common = Arc::new(Common::new(bounds, true, true).unwrap());
    let address = Address::new(&format!("nowhere://{name}")).unwrap();
    let listener = Listener::bind(&Place::Local(name.into()), true, &address).unwrap();
    let waiter = Arc::new(FramesWaiter::new(Arc::clone(&common.guard), &[], true).unwrap());
    let transport = Nowhere { waiter: Arc::clone(&waiter), is_full: false };
    FramedContext::new(common, (0, address), (transport, waiter), vec![listener]).unwrap()
}

/// A lifeline that is spoken on by hand.
struct Raw {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Raw {
    fn of(stream: UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { stream, input: Vec::new() }
    }

    fn connect(name: &str) -> Self {
        let mut raw = Self::of(UnixStream::connect_addr(&socket(name)).unwrap());
        raw.say(&[Record::Hello(Name)]);
        raw
    }

    /// In one write.
    fn say(&mut self, records: &[Record<Name>]) {
        let bytes: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next word of the other end, which makes progress meanwhile.
    fn hear(&mut self, end: &mut End) -> Record<Name> {
        let start = Instant::now();
        loop {
            if let Some(record) = Record::take(&mut self.input).unwrap() {
                return record;
            }
            in_time!(start, "it says nothing");
            round(end);
            let mut bytes = [0; 256];
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("it has hung up"),
                Ok(len) => self.input.extend(&bytes[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    }
}

/// A round before which the kernel is asked for news of lifelines.
fn round(end: &mut End) -> Vec<Completion> {
    let mut done = Vec::new();
    end.may_sleep();
    end.progress(Instant::now(), &mut done).unwrap();
    done
}

#[test]
fn one_that_says_goodbye_and_has_sent_less_than_it_says_keeps_nobody_awake() {
    let name = named("goodbye");
    let mut end = open(&name, 10);
    for _ in 0..3 {
        let mut raw = Raw::connect(&name);
        assert_eq!(raw.hear(&mut end), Record::Welcome(Name));
        let [peer] = end.connected()[..] else { panic!("one is connected") };
        raw.say(&[Record::Goodbye(u64::MAX)]);
        let start = Instant::now();
        while end.links.get(peer).unwrap().gone().is_none() {
            in_time!(start, "its goodbye was not heard");
            assert!(round(&mut end).is_empty());
        }
        // Its frames may come late; until then there is nothing to do.
        let heard = Instant::now();
        let mut done = Vec::new();
        end.progress(heard, &mut done).unwrap();
        assert!(end.may_sleep() && done.is_empty(), "{done:?}");
        let until = end.next_deadline().unwrap();
        assert!(until <= heard + Duration::from_secs(1));
        end.progress(until, &mut done).unwrap();
        assert!(
            matches!(done[0], Completion::HungUp { reason: GoneReason::Closed, .. }),
            "{done:?}"
        );
        assert!(end.may_sleep() && end.next_deadline().is_none());
    }
}

#[test]
fn what_is_said_behind_a_refusal_opens_nothing() {
    let (name, there) = (named("refused"), named("refuses"));
    let mut end = open(&name, 10);
    let listener = UnixListener::bind_addr(&socket(&there)).unwrap();
    let to = end.lookup(&Address::new(&format!("nowhere://{there}")).unwrap()).unwrap();
    let op = Op::SendUnexpected { to, message: Message::copied(b"hello") };
    assert!(end.post(QUIET, op).is_ok());
    let mut first = Raw::of(listener.accept().unwrap().0);
    assert_eq!(first.hear(&mut end), Record::Hello(Name));
    first.say(&[Record::Refuse("elsewhere".into()), Record::Welcome(Name)]);
    listener.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut second = loop {
        in_time!(start, "no other way is tried");
        assert!(round(&mut end).is_empty() && end.connected().is_empty());
        if let Ok((stream, _)) = listener.accept() {
            break Raw::of(stream);
        }
    };
    assert_eq!(second.hear(&mut end), Record::Hello(Name));
    // It is the last way.
    second.say(&[Record::Welcome(Name), Record::Refuse("after all".into()), Record::Welcome(Name)]);
    let reason = loop {
        in_time!(start, "it was not refused");
        let gone = |it| match it {
            Completion::Gone { reason, .. } => Some(reason),
            _ => None,
        };
        if let Some(reason) = round(&mut end).into_iter().find_map(gone) {
            break reason;
        }
    };
    assert_eq!(reason, GoneReason::Refused("after all".into()));
    assert!(end.links.is_empty());
}

#[test]
fn strangers_that_cannot_be_watched_count_as_nobody() {
    let name = named("unwatched");
    let mut end = open(&name, 1);
    end.transport.is_full = true;
    let start = Instant::now();
    for _ in 0..3 {
        let mut raw = Raw::connect(&name);
        while is_open(&mut raw) {
            in_time!(start, "it was not closed");
            round(&mut end);
        }
        assert!(end.links.is_empty());
    }
    end.transport.is_full = false;
    let mut first = Raw::connect(&name);
    assert_eq!(first.hear(&mut end), Record::Welcome(Name));
    let mut second = Raw::connect(&name);
    assert!(matches!(second.hear(&mut end), Record::Refuse(why) if why.contains("max-peers")));
    assert_eq!(end.connected().len(), 1);
}

fn is_open(raw: &mut Raw) -> bool {
    matches!(raw.stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}
