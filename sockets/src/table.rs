//! What one context's connections and listeners are, without I/O or a clock: frames and completions in, operations out.
//! [`crate::wire`] has the frames.
//!
//! ```text
//!  asked --Opened--> open --Fin comes--> closed by the peer: what came before can be taken
//!    +--Refused--> refused                 |
//!  Each side sends one `Fin`, and forgets the connection once it has both sent and got one.
//! ```
//!
//! # Bounds
//! [`WINDOW`] bytes of each connection wait for its application, an offer counting as [`OFFER_COST`]; who sends more is disconnected. A peer has
//! [`LINKS_MAX`] connections, and who asks without taking the answers [`OUT_MAX`] of them.

use std::{collections::VecDeque, sync::Arc};

use hg_na::{
    Descriptor, GoneReason, LocalSlice, Memory, Message, Op, Peer, QUIET, Region, RemoteSlice,
    Token,
};
use rustc_hash::FxHashMap;

use crate::wire::{HEADER_LEN, Header, Kind, YOURS};
use crate::{Error, choice::Flags};

/// Why a connection is refused, by the word of the frame.
const REFUSALS: [&str; 3] = [
    "nobody listens at this port",
    "as many connections as it takes wait to be accepted",
    "this process has as many connections with it as it may have",
];

/// Bytes of a connection and direction that its application has not taken.
pub(crate) const WINDOW: u32 = 256 << 10;
/// What an offer counts as.
pub(crate) const OFFER_COST: u32 = 16 << 10;
/// What a message counts as besides its bytes.
const MESSAGE_COST: u32 = 64;
/// Connections of one peer.
const LINKS_MAX: usize = 1024;
/// Frames and transfers that wait for one peer.
const OUT_MAX: usize = 64 << 10;

/// A connection: its peer, and its id in frames that come.
pub(crate) type Key = (Peer, u32);
/// What a peer has done wrong.
type Wrong = &'static str;

/// What has come, and was not taken.
#[derive(Debug)]
pub(crate) enum Item {
    Bytes(Message),
    Offer { number: u64, flags: Flags, load: u8, memory: Descriptor },
}

/// Where an offered message lands.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) region: Region,
    /// The same memory, to be known again.
    pub(crate) memory: Arc<Memory>,
    /// The peer writes it.
    is_written: bool,
    pub(crate) result: Option<Result<(), Error>>,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) is_open: bool,
    pub(crate) inbox: VecDeque<Item>,
    /// Of one's own inbox: what stands there; what was taken, and is to be given back.
    used: u32,
    owed: u32,
    /// Of the peer's.
    sent: u32,
    /// Messages that the peer has not taken, in memory; `None` from when it is written.
    pub(crate) offers: FxHashMap<u64, Option<Region>>,
    last_offer: u64,
    pub(crate) landing: Option<Landing>,
    /// Why nothing is sent any more, nor comes; the peer forgets it, or has.
    pub(crate) end: Option<Error>,
    is_over: bool,
    /// The `Fin` was sent; the peer has it; the application has let go.
    is_finished: bool,
    pub(crate) is_heard: bool,
    has_left: bool,
}

#[derive(Debug, Default)]
struct Remote {
    out: VecDeque<(Token, Op)>,
    is_blocked: bool,
    /// Its connections.
    links: usize,
}

#[derive(Debug)]
struct Backlog {
    room: usize,
    keys: VecDeque<Key>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) links: FxHashMap<Key, Link>,
    listeners: FxHashMap<u32, Backlog>,
    remotes: FxHashMap<Peer, Remote>,
    /// Transfers under way; a number: of the offer that is written.
    transfers: FxHashMap<Token, (Key, Option<u64>)>,
    ready: VecDeque<Peer>,
    last_id: u32,
    last_token: Token,
}

impl Table {
    /// Asks for a connection.
    pub(crate) fn connect(&mut self, to: Peer, port: u32) -> Key {
        let key = loop {
            self.last_id = self.last_id.wrapping_add(1);
            let key = (to, self.last_id | YOURS);
            if !self.links.contains_key(&key) {
                break key;
            }
        };
        self.add(key);
        self.say(key, Kind::Connect, u64::from(port), &[]);
        key
    }

    fn add(&mut self, key: Key) -> &mut Link {
        self.remotes.entry(key.0).or_default().links += 1;
        self.links.entry(key).or_default()
    }

    fn forget(&mut self, key: Key) {
        if self.links.remove(&key).is_some()
            && let Some(remote) = self.remotes.get_mut(&key.0)
        {
            // Those of a peer that has gone were forgotten with it.
            remote.links = remote.links.saturating_sub(1);
        }
    }

    /// Takes connections at a port; whether it was free.
    pub(crate) fn listen(&mut self, port: u32, room: usize) -> bool {
        let is_free = !self.listeners.contains_key(&port);
        if is_free {
            self.listeners.insert(port, Backlog { room, keys: VecDeque::new() });
        }
        is_free
    }

    /// Takes no more, and lets go of those that wait.
    pub(crate) fn unlisten(&mut self, port: u32) {
        for key in self.listeners.remove(&port).into_iter().flat_map(|it| it.keys) {
            self.leave(key);
        }
    }

    /// The next connection that waits.
    pub(crate) fn accept(&mut self, port: u32) -> Option<Key> {
        self.listeners.get_mut(&port)?.keys.pop_front()
    }

    /// Whether a message that counts as this may be sent, or why never again.
    pub(crate) fn may_send(&self, key: Key, cost: u32) -> Result<bool, Error> {
        let link = self.links.get(&key).ok_or(Error::Closed)?;
        if let Some(end) = &link.end {
            return Err(end.clone());
        }
        if link.is_finished {
            return Err(Error::Closed);
        }
        let remote = self.remotes.get(&key.0);
        let is_clear = remote.is_none_or(|it| it.out.is_empty());
        Ok(is_clear && link.sent + cost <= WINDOW)
    }

    /// Sends a message in a frame, which has room for the header in front of it.
    pub(crate) fn send(&mut self, (peer, id): Key, mut frame: Message) {
        let header = Header { kind: Kind::Bytes, id: id ^ YOURS, word: 0 };
        frame.as_mut_slice()[..HEADER_LEN].copy_from_slice(&header.encode());
        if let Some(link) = self.links.get_mut(&(peer, id)) {
            link.sent += cost_of(frame.len() - HEADER_LEN);
        }
        self.post(peer, QUIET, Op::SendUnexpected { to: peer, message: frame });
    }

    /// Offers a message that lies in memory.
    pub(crate) fn offer(&mut self, key: Key, region: Region, flags: Flags, load: u8) {
        let Some(link) = self.links.get_mut(&key) else { return };
        link.sent += OFFER_COST;
        link.last_offer += 1;
        let number = link.last_offer;
        let body = [&[flags.bits(), load], &region.descriptor().encode()[..]].concat();
        link.offers.insert(number, Some(region));
        self.say(key, Kind::Offer, number, &body);
    }

    /// Has the first message that waits, an offer, land in this memory.
    ///
    /// # Errors
    /// A descriptor that does not hold.
    pub(crate) fn land(
        &mut self,
        key: Key,
        (region, memory): (Region, Arc<Memory>),
        is_written: bool,
    ) -> Result<(), hg_na::Error> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let Some(Item::Offer { number, memory: remote, .. }) = link.inbox.front() else {
            return Ok(());
        };
        let (number, into) = (*number, region.descriptor());
        let (local, remote) = pair(&region, remote, remote.len())?;
        link.landing = Some(Landing { region, memory, is_written, result: None });
        if is_written {
            self.say(key, Kind::Take, number, &into.encode());
        } else {
            self.transfer(key, None, Op::Get { from: key.0, local, remote });
        }
        Ok(())
    }

    fn transfer(&mut self, key: Key, written: Option<u64>, op: Op) {
        self.last_token += 1;
        self.transfers.insert(self.last_token, (key, written));
        self.post(key.0, self.last_token, op);
    }

    /// Takes the first message that waits, and where it has landed.
    pub(crate) fn taken(&mut self, key: Key) -> Option<(Item, Option<Landing>)> {
        let link = self.links.get_mut(&key)?;
        let item = link.inbox.pop_front()?;
        let landing = link.landing.take();
        link.owed += item.cost();
        let owed = if link.owed >= WINDOW / 4 { std::mem::take(&mut link.owed) } else { 0 };
        link.used -= owed;
        if let Item::Offer { number, .. } = &item {
            self.say(key, Kind::Done, *number, &[]);
        }
        if owed > 0 {
            self.say(key, Kind::Credit, u64::from(owed), &[]);
        }
        Some((item, landing))
    }

    /// Nothing is sent any more.
    pub(crate) fn finish(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(&key) else { return };
        if !std::mem::replace(&mut link.is_finished, true) {
            self.say(key, Kind::Fin, 0, &[]);
        }
    }

    /// The application lets go of a connection.
    pub(crate) fn leave(&mut self, key: Key) {
        self.finish(key);
        let Some(link) = self.links.get_mut(&key) else { return };
        link.has_left = true;
        link.inbox.clear();
        link.landing = None;
        if link.is_over {
            self.forget(key);
        }
    }

    fn say(&mut self, (to, id): Key, kind: Kind, word: u64, body: &[u8]) {
        let message = Header { kind, id: id ^ YOURS, word }.frame(body);
        self.post(to, QUIET, Op::SendUnexpected { to, message });
    }

    fn post(&mut self, to: Peer, token: Token, op: Op) {
        let Some(remote) = self.remotes.get_mut(&to) else {
            return self.ended(token, Err(hg_na::Error::PeerGone(GoneReason::Ended)));
        };
        remote.out.push_back((token, op));
        if !remote.is_blocked && remote.out.len() == 1 {
            self.ready.push_back(to);
        }
    }

    /// The next operation that is to be posted.
    pub(crate) fn next_op(&mut self) -> Option<(Token, Op)> {
        loop {
            let peer = *self.ready.front()?;
            let remote = self.remotes.get_mut(&peer).filter(|it| !it.is_blocked);
            let next = remote.and_then(|it| it.out.pop_front());
            if next.is_some() {
                return next;
            }
            self.ready.pop_front();
        }
    }

    /// It was refused, until there is room.
    pub(crate) fn put_back(&mut self, token: Token, op: Op) {
        if let Some(remote) = self.remotes.get_mut(&op.peer()) {
            remote.out.push_front((token, op));
            remote.is_blocked = true;
            self.ready.pop_front();
        }
    }

    /// There is.
    pub(crate) fn has_room(&mut self, peer: Peer) {
        if let Some(remote) = self.remotes.get_mut(&peer)
            && std::mem::take(&mut remote.is_blocked)
        {
            self.ready.push_back(peer);
        }
    }

    /// A transfer has ended.
    pub(crate) fn ended(&mut self, token: Token, result: Result<(), hg_na::Error>) {
        let Some((key, written)) = self.transfers.remove(&token) else { return };
        let Some(link) = self.links.get_mut(&key) else { return };
        if let Some(number) = written {
            let why = result.err().map(|error| error.to_string()).unwrap_or_default();
            self.say(key, Kind::Landed, number, why.as_bytes());
        } else if let Some(landing) = &mut link.landing {
            landing.result = Some(result.map_err(Error::from));
        }
    }

    /// How many transfers are under way.
    #[cfg(test)]
    pub(crate) fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// A peer has gone: what it had sent can be taken, and nothing else.
    pub(crate) fn gone(&mut self, peer: Peer, reason: &GoneReason) {
        // Nobody will tell of the end of what was not posted.
        for (token, _) in self.remotes.remove(&peer).into_iter().flat_map(|it| it.out) {
            self.transfers.remove(&token);
        }
        self.links.retain(|key, link| key.0 != peer || !link.has_left);
        for (_, link) in self.links.iter_mut().filter(|(key, _)| key.0 == peer) {
            link.offers.clear();
            link.is_over = true;
            let is_lost = link.inbox.iter().any(|item| matches!(item, Item::Offer { .. }));
            if is_lost || link.end.is_none() {
                link.end = Some(Error::Gone(reason.clone()));
            }
        }
    }

    /// A frame has come.
    ///
    /// # Errors
    /// What its sender has done wrong.
    pub(crate) fn handle(&mut self, from: Peer, frame: Message) -> Result<(), Wrong> {
        let (header, body) = Header::decode(frame.as_slice())?;
        let key = (from, header.id);
        if self.remotes.get(&from).is_some_and(|it| it.out.len() > OUT_MAX) {
            return Err("questions without taking the answers");
        }
        if header.kind == Kind::Connect {
            return self.incoming(key, header.word);
        }
        // One that is none has ended here, which its sender did not know.
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        match header.kind {
            Kind::Opened => link.is_open = true,
            Kind::Refused => {
                let why = usize::try_from(header.word).ok().and_then(|at| REFUSALS.get(at));
                link.end = Some(Error::Refused(why.ok_or("a refusal for no reason")?));
                (link.is_over, link.is_finished) = (true, true);
                if link.has_left {
                    self.forget(key);
                }
            }
            Kind::Offer => {
                let (head, rest) = body.split_first_chunk().ok_or("an offer cut short")?;
                let [flags, load] = *head;
                let memory = Descriptor::decode(rest).map_err(|_| "an offer of no memory")?;
                let flags = Flags::from_bits_truncate(flags);
                link.push(Item::Offer { number: header.word, flags, load, memory })?;
            }
            Kind::Bytes => link.push(Item::Bytes(frame))?,
            Kind::Take => return self.take(key, header.word, body),
            Kind::Landed => {
                if let Some(landing) = link.landing.as_mut().filter(|it| it.is_written) {
                    let why = String::from_utf8_lossy(body);
                    let failed = || Error::Broken(why.into_owned().into());
                    landing.result = Some(if body.is_empty() { Ok(()) } else { Err(failed()) });
                }
            }
            Kind::Done => drop(link.offers.remove(&header.word)),
            Kind::Credit => {
                let left = u32::try_from(header.word).ok().and_then(|it| link.sent.checked_sub(it));
                link.sent = left.ok_or("bytes given back that were not sent")?;
            }
            Kind::Fin => return self.fin(key),
            Kind::FinGot => link.is_heard = true,
            Kind::Connect => {} // Above.
        }
        Ok(())
    }

    fn incoming(&mut self, key: Key, port: u64) -> Result<(), Wrong> {
        if key.1 & YOURS != 0 || self.links.contains_key(&key) {
            return Err("a connection whose id is not free");
        }
        let is_full = self.remotes.entry(key.0).or_default().links >= LINKS_MAX;
        let listener = u32::try_from(port).ok().and_then(|port| self.listeners.get_mut(&port));
        let refusal = match listener {
            None => 0,
            Some(_) if is_full => 2,
            Some(backlog) if backlog.keys.len() >= backlog.room => 1,
            Some(backlog) => {
                backlog.keys.push_back(key);
                self.add(key).is_open = true;
                self.say(key, Kind::Opened, 0, &[]);
                return Ok(());
            }
        };
        self.say(key, Kind::Refused, refusal, &[]);
        Ok(())
    }

    fn take(&mut self, key: Key, number: u64, body: &[u8]) -> Result<(), Wrong> {
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        let offered = link.offers.get_mut(&number).and_then(Option::take);
        let region = offered.ok_or("what was not offered, or twice")?;
        let remote = Descriptor::decode(body).map_err(|_| "no memory to write")?;
        let pair = pair(&region, &remote, region.len());
        let (local, remote) = pair.map_err(|_| "memory that is too short")?;
        self.transfer(key, Some(number), Op::Put { to: key.0, local, remote });
        Ok(())
    }

    fn fin(&mut self, key: Key) -> Result<(), Wrong> {
        self.say(key, Kind::FinGot, 0, &[]);
        let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
        if std::mem::replace(&mut link.is_over, true) {
            return Err("a connection that was closed twice");
        }
        link.end.get_or_insert(Error::Closed);
        link.offers.clear();
        if link.has_left {
            self.forget(key);
        }
        Ok(())
    }
}

impl Link {
    fn push(&mut self, item: Item) -> Result<(), Wrong> {
        self.used += item.cost();
        if self.used > WINDOW || self.is_over {
            return Err("more bytes than there was room for");
        }
        if !self.has_left {
            self.inbox.push_back(item);
        }
        Ok(())
    }
}

impl Item {
    /// Bytes of the message.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(frame) => (frame.len() - HEADER_LEN) as u64,
            Self::Offer { memory, .. } => memory.len(),
        }
    }

    pub(crate) fn cost(&self) -> u32 {
        match self {
            Self::Bytes(frame) => cost_of(frame.len() - HEADER_LEN),
            Self::Offer { .. } => OFFER_COST,
        }
    }
}

/// What a message of this length counts as.
pub(crate) fn cost_of(len: usize) -> u32 {
    u32::try_from(len).map_or(WINDOW, |len| len.saturating_add(MESSAGE_COST))
}

/// Both sides of a transfer.
fn pair(
    local: &Region,
    remote: &Descriptor,
    len: u64,
) -> Result<(LocalSlice, RemoteSlice), hg_na::Error> {
    Ok((local.slice(0, len)?, remote.slice(0, len)?))
}
