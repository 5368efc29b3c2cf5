//! A context over a transport whose frames lead nowhere, and peers that speak on lifelines by hand.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::IpAddr,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    sync::Arc,
    time::Instant,
};

use hg_na::{Address, Completion, Context as _, Error, GoneReason, Peer};
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
pub(crate) struct Name;

impl Greeting for Name {
    fn encode(&self, into: &mut Vec<u8>) {
        into.push(7);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes == [7]).then_some(Self)
    }
}

/// Frames are taken, and never come.
pub(crate) struct Nowhere {
    waiter: Arc<FramesWaiter>,
    /// Lifelines cannot be watched.
    pub(crate) is_full: bool,
    /// Memory is lent, and no frame is taken.
    pub(crate) lends: bool,
    /// What was lent, taken back, and let go of.
    pub(crate) log: Vec<&'static str>,
}

/// Places that an address still leads to.
#[derive(Debug)]
pub(crate) struct Ways(u32);

pub(crate) type End = FramedContext<Nowhere>;

impl Carrier for Nowhere {
    type Own = Connection<Ways>;
    type Fault = ErrorKind;

    const MOVE_MAX: u64 = 1;

    fn is_again(fault: &ErrorKind) -> bool {
        *fault == ErrorKind::WouldBlock
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
        if self.lends {
            return Err(ErrorKind::WouldBlock);
        }
        assert!(fill(&mut vec![0; len]));
        Ok(None)
    }

    fn may_lend(&self, _: &Self::Own, _: bool) -> bool {
        self.lends
    }

    fn lend(
        &mut self,
        _: &Self::Own,
        _: &Held,
        _: hg_na::Segment,
        _: bool,
    ) -> Result<(usize, Grant), ErrorKind> {
        self.log.push("lent");
        Ok((0, Grant { key: 0, address: 0 }))
    }

    fn revoke(&mut self, _: usize) {
        self.log.push("revoked");
    }

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

    fn part(&mut self, _: Peer, _: &mut Ways, _: &GoneReason, _: &mut Vec<Completion>) {
        self.log.push("parted");
    }

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
pub(crate) fn socket(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("hydrargyrum-ofi/{name}")).unwrap()
}

pub(crate) fn named(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

pub(crate) fn open(name: &str, max_peers: usize) -> End {
    let bounds = Bounds {
        connect_timeout: LIMIT,
        silence_bound: LIMIT,
        max_peers,
        max_held: 1 << 20,
        key: None,
    };
    let common = Arc::new(Common::new(bounds, true, true).unwrap());
    let address = Address::new(&format!("nowhere://{name}")).unwrap();
    let listener = Listener::bind(&Place::Local(name.into()), true, &address).unwrap();
    let waiter = Arc::new(FramesWaiter::new(Arc::clone(&common.guard), &[], true).unwrap());
    let transport =
        Nowhere { waiter: Arc::clone(&waiter), is_full: false, lends: false, log: Vec::new() };
    FramedContext::new(common, (0, address), (transport, waiter), vec![listener]).unwrap()
}

/// A lifeline that is spoken on by hand.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    input: Vec<u8>,
}

impl Raw {
    pub(crate) fn of(stream: UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { stream, input: Vec::new() }
    }

    pub(crate) fn connect(name: &str) -> Self {
        let mut raw = Self::of(UnixStream::connect_addr(&socket(name)).unwrap());
        raw.say(&[Record::Hello(Name)]);
        raw
    }

    /// In one write.
    pub(crate) fn say(&mut self, records: &[Record<Name>]) {
        let bytes: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next word of the other end, which makes progress meanwhile.
    pub(crate) fn hear(&mut self, end: &mut End) -> Record<Name> {
        let start = Instant::now();
        loop {
            if let Some(record) = self.heard() {
                return record;
            }
            in_time!(start, "it says nothing");
            round(end);
        }
    }

    /// What it has said.
    pub(crate) fn heard(&mut self) -> Option<Record<Name>> {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("it has hung up"),
            Ok(len) => self.input.extend(&bytes[..len]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        Record::take(&mut self.input).unwrap()
    }
}

/// A round before which the kernel is asked for news of lifelines.
pub(crate) fn round(end: &mut End) -> Vec<Completion> {
    round_at(end, Instant::now())
}

pub(crate) fn round_at(end: &mut End, now: Instant) -> Vec<Completion> {
    let mut done = Vec::new();
    end.may_sleep();
    end.progress(now, &mut done).unwrap();
    done
}
