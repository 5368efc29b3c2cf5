//! `unix://`: a small transport over unix sockets, as an example for authors of plugins.
//!
//! It lives outside of Hydrargyrum's workspace and uses nothing but the contract, `hg_na`. It
//! connects processes of one Linux machine by abstract unix sockets, has no one-sided operations
//! and must be polled; `tests/conformance.rs` is the one line that tests it.
//!
//! An address reads `unix://NAME/ID`; a domain is opened as `unix://` (it makes a name up) or
//! `unix://NAME`.

mod link;

use std::{
    collections::HashMap,
    fmt,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hg_na::{
    Address, Caps, Completion, Context, Domain, Error, GoneReason, Memory, Message, Op, OpId,
    OpenOptions, Peer, Plugin, Region, Rejected, Rights, Token, Waiter,
};
use link::{CONTROL, EXPECTED, LONGEST, Link, Sending, UNEXPECTED};
use socket2::{SockAddr, Socket, Type};

/// The plugin.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unix;

impl Plugin for Unix {
    fn schemes(&self) -> &[&str] {
        &["unix"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if let Some(name) = options.settings.keys().next() {
            let known = "this plugin has no settings".to_owned();
            return Err(Error::UnknownSetting { name: name.clone(), known });
        }
        let name = match url.rest() {
            "" => format!("{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed)),
            name => name.to_owned(),
        };
        if url.scheme() != "unix" || name.len() > 80 || name.contains('/') {
            return Err(bad_address(url, "it needs the form unix://name, 80 bytes at most"));
        }
        let mut caps = Caps::minimal();
        caps.max_contexts = 256;
        Ok(Arc::new(UnixDomain { name, listen: options.listen, caps }))
    }
}

fn bad_address(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.to_string(), why: why.to_owned() }
}

/// The abstract socket of an address: a name that the kernel forgets with its last user.
fn socket_name(address: &Address) -> Result<SockAddr, Error> {
    let valid = address
        .rest()
        .split_once('/')
        .is_some_and(|(name, id)| !name.is_empty() && name.len() <= 80 && id.parse::<u8>().is_ok());
    if address.scheme() != "unix" || !valid {
        return Err(bad_address(address, "it needs the form unix://name/id"));
    }
    let name = format!("\0hydrargyrum-outside/{}", address.rest());
    SockAddr::unix(name).map_err(|error| Error::os("sockaddr_un", error))
}

fn socket() -> Result<Socket, Error> {
    let socket = Socket::new(socket2::Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None);
    socket.map_err(|error| Error::os("socket", error))
}

#[derive(Debug)]
struct UnixDomain {
    name: String,
    listen: bool,
    caps: Caps,
}

impl Domain for UnixDomain {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&self, _memory: Memory, _rights: Rights) -> Result<Region, Error> {
        Err(Error::Unsupported("one-sided operations of unix://"))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let address = Address::new(&format!("unix://{}/{id}", self.name))?;
        let listener = socket()?;
        // A context that does not listen holds its name too, but nobody can connect to it.
        listener.bind(&socket_name(&address)?).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::AddressInUse(address.clone()),
            _ => Error::os("bind", error),
        })?;
        if self.listen {
            listener.listen(128).map_err(|error| Error::os("listen", error))?;
        }
        let depth = self.caps.queue_depth;
        Ok(Box::new(UnixContext {
            address,
            listener: self.listen.then_some(listener),
            depth,
            slots: Vec::new(),
            lookups: HashMap::new(),
            admission: true,
            ready: Vec::new(),
            last_serial: 0,
            flush_to: None,
        }))
    }
}

/// A place of the peer table; its generation makes handles of earlier peers invalid.
#[derive(Default)]
struct Slot {
    generation: u32,
    link: Option<Link>,
    address: Option<Address>,
}

fn handle(place: usize, slot: &Slot) -> Peer {
    Peer::new(u32::try_from(place).expect("fewer than 2^32 peers"), slot.generation)
}

struct UnixContext {
    address: Address,
    listener: Option<Socket>,
    depth: usize,
    slots: Vec<Slot>,
    lookups: HashMap<Address, Peer>,
    admission: bool,
    ready: Vec<Completion>,
    last_serial: u64,
    flush_to: Option<u64>,
}

impl fmt::Debug for UnixContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "UnixContext({})", self.address)
    }
}

impl UnixContext {
    fn link(&mut self, peer: Peer) -> Option<&mut Link> {
        let slot = self.slots.get_mut(peer.index() as usize)?;
        (slot.generation == peer.generation()).then_some(slot.link.as_mut()).flatten()
    }

    fn add(&mut self, link: Link, address: Option<Address>) -> Peer {
        let free = self.slots.iter().position(|slot| slot.link.is_none());
        let place = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[place];
        (slot.link, slot.address) = (Some(link), address);
        handle(place, slot)
    }

    fn check(&mut self, op: &Op) -> Result<(), Error> {
        let depth = self.depth;
        let link = self.link(op.peer()).ok_or(Error::UnknownPeer)?;
        if let Some(reason) = &link.ended {
            return Err(Error::PeerGone(reason.clone()));
        }
        let (lane, message) = match op {
            Op::SendControl { message, .. } => (CONTROL, message),
            Op::SendExpected { message, .. } => (EXPECTED, message),
            Op::SendUnexpected { message, .. } => (UNEXPECTED, message),
            Op::RecvExpected { tag, .. } if link.receives.contains_key(tag) => {
                return Err(Error::TagInUse(*tag));
            }
            Op::RecvExpected { .. } => return Ok(()),
            _ => return Err(Error::Unsupported("one-sided operations of unix://")),
        };
        let (len, max) = (message.len(), LONGEST[lane]);
        match link.waiting[lane].len() {
            _ if len > max => Err(Error::TooLong { len, max }),
            full if full >= depth => {
                link.refused[lane] = Some(depth / 2);
                Err(Error::Again)
            }
            _ => Ok(()),
        }
    }

    fn accept(&mut self) -> bool {
        let mut moved = false;
        while let Some(Ok((socket, _))) = self.listener.as_ref().map(Socket::accept) {
            if socket.set_nonblocking(true).is_ok() {
                self.add(Link::connected(socket), None);
                moved = true;
            }
        }
        moved
    }

    /// Connects a link that was looked up and is wanted.
    fn connect(slot: &mut Slot) -> Option<()> {
        let link = slot.link.as_mut()?;
        let address = slot
            .address
            .as_ref()
            .filter(|_| link.wanted && link.socket.is_none() && link.ended.is_none())?;
        let connected = socket().and_then(|socket| {
            let connected = socket.connect(&socket_name(address)?);
            connected.map_err(|error| Error::os("connect", error)).map(|()| socket)
        });
        match connected {
            Ok(socket) => link.socket = Some(socket),
            // The target's backlog is full: again in the next round.
            Err(Error::Os { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                link.ended.get_or_insert(GoneReason::Unreachable(Arc::from(error.to_string())));
            }
        }
        Some(())
    }

    fn bury(&mut self, place: usize, done: &mut Vec<Completion>) {
        let slot = &mut self.slots[place];
        let peer = handle(place, slot);
        let Some(link) = slot.link.as_mut() else { return };
        let Some(reason) = link.ended.clone() else { return };
        if !link.bury(peer, &reason, done) {
            return;
        }
        let address = slot.address.take();
        slot.link = None;
        slot.generation += 1;
        if let Some(address) = address.filter(|address| self.lookups.get(address) == Some(&peer)) {
            self.lookups.remove(&address);
        }
        done.push(Completion::Gone { peer, reason });
    }
}

impl Context for UnixContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        socket_name(address)?;
        if let Some(known) = self.lookups.get(address).copied()
            && self.link(known).is_some_and(|link| link.ended.is_none())
        {
            return Ok(known);
        }
        let peer = self.add(Link::default(), Some(address.clone()));
        self.lookups.insert(address.clone(), peer);
        Ok(peer)
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(link) = self.link(peer).filter(|link| link.ended.is_none()) {
            link.forget();
        }
    }

    fn message(&mut self, _to: Peer, len: usize) -> Result<Message, Error> {
        let max = LONGEST[UNEXPECTED];
        if len > max { Err(Error::TooLong { len, max }) } else { Ok(vec![0; len].into()) }
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.check(&op) {
            return Err(Rejected { op, error });
        }
        self.last_serial += 1;
        let peer = op.peer();
        let id = OpId { scope: peer.index(), serial: self.last_serial };
        let link = self.link(peer).expect("checked above");
        link.wanted = true;
        let (lane, tag, message) = match op {
            Op::SendControl { message, .. } => (CONTROL, 0, message),
            Op::SendExpected { tag, message, .. } => (EXPECTED, tag, message),
            Op::SendUnexpected { message, .. } => (UNEXPECTED, 0, message),
            Op::RecvExpected { tag, .. } => {
                link.receives.insert(tag, (id, token));
                return Ok(id);
            }
            op => return Err(Rejected { op, error: Error::Unsupported("refused by `check`") }),
        };
        link.waiting[lane].push_back(Sending { id, token, tag, message });
        Ok(id)
    }

    fn cancel(&mut self, id: OpId) {
        let link = self.slots.get_mut(id.scope as usize).and_then(|slot| slot.link.as_mut());
        self.ready.extend(link.and_then(|link| link.cancel(id)));
    }

    fn set_admission(&mut self, open: bool) {
        self.admission = open;
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        if let Some(link) = self.link(peer) {
            link.is_shut = !open;
        }
    }

    fn progress(&mut self, _now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        let before = done.len();
        done.append(&mut self.ready);
        let mut moved = self.accept();
        for place in 0..self.slots.len() {
            let slot = &mut self.slots[place];
            Self::connect(slot);
            let peer = handle(place, slot);
            if let Some(link) = slot.link.as_mut() {
                moved |= link.progress(peer, self.admission, done);
            }
            self.bury(place, done);
        }
        Ok(moved || done.len() > before)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        false
    }

    fn flush(&mut self) -> bool {
        let to = *self.flush_to.get_or_insert(self.last_serial);
        let mut links = self.slots.iter().filter_map(|slot| slot.link.as_ref());
        let is_over = links.all(|link| link.has_sent(to));
        if is_over {
            self.flush_to = None;
        }
        is_over
    }

    fn connected(&mut self) -> Vec<Peer> {
        let slots = self.slots.iter().enumerate();
        let open = slots.filter(|(_, slot)| slot.link.as_ref().is_some_and(Link::is_open));
        open.map(|(place, slot)| handle(place, slot)).collect()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::new(NoWaiter)
    }
}

/// `Caps::sleep` is `Poll`: there is nothing to sleep on.
#[derive(Debug)]
struct NoWaiter;

impl Waiter for NoWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&self, _timeout: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }

    fn wake(&self) {}
}
