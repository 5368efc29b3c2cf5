//! An end with all its channels: drives the state machines over a context of a transport, and over the inboxes of this process.

mod arriving;
mod closing;
mod leaving;
mod link;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, Caps, Context, GoneReason, LocalSlice, Op, OpId, Peer, RemoteSlice, Waiter};
use rustc_hash::FxHashMap;

pub use self::arriving::{Arrived, Batch, Event, Kept};
use self::link::{Link, Way};
use crate::{
    error::Error,
    limits::Limits,
    near::Near,
    outgoing::{Pool, When},
    wire::{HEADER, Positions, RECORD},
};

/// Who is where, and how ends of one job know one another.
#[derive(Debug)]
pub struct Directory {
    token: [u8; 16],
    addresses: Vec<Address>,
}

impl Directory {
    /// The address of each end, in their order; and a secret that all of them have, and nobody else.
    #[must_use]
    pub fn new(token: [u8; 16], addresses: Vec<Address>) -> Self {
        Self { token, addresses }
    }

    /// How many ends there are.
    #[must_use]
    pub fn ends(&self) -> u32 {
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }
}

/// What a port has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks that left by the transport.
    pub blocks: u64,
    /// Blocks that were handed over to threads of this process.
    pub handed_over: u64,
    /// Windows that were doubled, at the receiving end.
    pub widened: u64,
    /// Acknowledgements that travelled alone.
    pub acknowledgements: u64,
    /// Channels that were opened, by either side.
    pub channels: u64,
    /// Connections that were open and idle, and were closed by agreement.
    pub reclaimed: u64,
}

/// A connection of the context: whose it is.
#[derive(Debug, Clone, Copy)]
struct Connection {
    link: u32,
    state: State,
    /// This end has made it, by this message.
    hello: Option<OpId>,
}

/// A link that ends.
#[derive(Debug)]
struct Ending {
    link: u32,
    /// Rounds that may still find something before it does.
    rounds: u32,
    /// As long as others of its connections are there, until then: from the first round on.
    until: Option<Instant>,
}

/// What becomes of a connection that is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Nobody has accepted it; the transport has not said yet that it is gone.
    Unaccepted,
    /// This side has said that it uses it no more, being so far. The other side may close it, or go on.
    Left(Positions),
    /// This side has closed it; the transport has not said yet that it is gone.
    Forgotten,
}

/// One end of all its channels. `N`: what its owner is told when a record has left or was consumed.
#[derive(Debug)]
pub struct Port<N> {
    me: u32,
    context: Box<dyn Context>,
    waiter: Arc<dyn Waiter>,
    directory: Arc<Directory>,
    near: Arc<Near>,
    limits: Limits,
    record_max: usize,
    links: Vec<Link<N>>,
    /// Per end: the place of its link and one, or 0.
    of_end: Vec<u32>,
    connections: FxHashMap<Peer, Connection>,
    /// Whose message was the last one: others of it follow.
    latest: Option<(Peer, u32)>,
    /// What may be taken before the next round ([`Port::advance`]), and rounds for which there may be several.
    glimpses: u8,
    trust: u8,
    pool: Pool,
    /// The context was told to flush, and has not ended that.
    is_flushing: bool,
    /// Links with an open block.
    unflushed: Vec<u32>,
    /// Links whose sender is to be told.
    owing: Vec<u32>,
    due: Vec<N>,
    ended: VecDeque<Event<'static, N>>,
    ending: Vec<Ending>,
    /// Rounds that have found nothing.
    rounds_in_vain: u64,
    /// What this side moves by itself may wait for memory of another process.
    may_wait: bool,
    /// Memory of some peers can be viewed: the context says of which.
    has_views: bool,
    /// Bytes by which the windows of all links are longer than at first.
    widened: u64,
    idle_at: Option<Instant>,
    /// Rounds since then.
    late: u32,
    stats: Stats,
    /// Bytes that wait to leave, of all links ([`Port::queued`]).
    queued: u64,
}

impl<N> Port<N> {
    /// The end of number `me`, reached by `context`, of whose transport [`Port::over`] says what it can do.
    ///
    /// # Panics
    /// The directory has no such end.
    #[must_use]
    pub fn new(
        me: u32,
        context: Box<dyn Context>,
        directory: Arc<Directory>,
        near: Arc<Near>,
        limits: Limits,
    ) -> Self {
        assert!(me < directory.ends(), "end {me} is none of {}", directory.ends());
        let waiter = context.waiter();
        near.join(me, Arc::clone(&waiter));
        let limits = limits.nearest();
        Self {
            me,
            waiter,
            record_max: (limits.window / 2) as usize - HEADER - RECORD,
            of_end: vec![0; directory.addresses.len()],
            context,
            directory,
            near,
            limits,
            links: Vec::new(),
            connections: FxHashMap::default(),
            latest: None,
            glimpses: 0,
            trust: 0,
            pool: Pool::new(limits.block),
            is_flushing: false,
            unflushed: Vec::new(),
            owing: Vec::new(),
            due: Vec::new(),
            ended: VecDeque::new(),
            ending: Vec::new(),
            rounds_in_vain: 0,
            may_wait: true,
            has_views: false,
            widened: 0,
            idle_at: None,
            late: 0,
            stats: Stats::default(),
            queued: 0,
        }
    }

    /// Its transport can do so much. A record is no longer than a message ([`Caps::max_unexpected`]), beside being at most half of a window, and neither is
    /// a block, whatever [`Limits::block`] says; windows are as they were, since all ends are to have the same. Those of ends whose memory can be viewed
    /// ([`hg_na::Context::views`]) do not grow: where memory is shared, a longer one only leaves the nearest caches.
    #[must_use]
    pub fn over(mut self, caps: &Caps) -> Self {
        let message = caps.max_unexpected;
        self.record_max = self.record_max.min(message.saturating_sub(HEADER + RECORD));
        self.limits.block = self.limits.block.min(message);
        self.pool = Pool::new(self.limits.block);
        self.has_views = caps.views;
        self
    }

    /// Bytes that a block is filled up to.
    #[must_use]
    pub fn block(&self) -> usize {
        self.limits.block
    }

    /// Bytes of the longest record.
    #[must_use]
    pub fn record_max(&self) -> usize {
        self.record_max
    }

    /// Room for a record of `len` bytes to an end, to be filled by the caller at once. It leaves when its block is full, or
    /// at a flush. At most `limit` bytes wait to leave; with nothing waiting, a record is always taken.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::NoSuchEnd`], [`Error::Gone`].
    #[inline]
    pub fn record(
        &mut self,
        to: u32,
        tag: u32,
        len: usize,
        limit: u64,
    ) -> Result<&mut [u8], Error> {
        let at = self.link_to(to)?;
        let link = &mut self.links[at as usize];
        if len > self.record_max || !link.out.has_room(len, limit) {
            return Err(self.refusal(to, len));
        }
        if !link.out.fits(len) && link.out.seal() {
            self.push(at);
            // Which may have found that nobody is there any more.
            self.link_to(to)?;
        }
        let link = &mut self.links[at as usize];
        if !link.is_unflushed {
            link.is_unflushed = true;
            self.unflushed.push(at);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most half of the window")]
        Ok(link.out.record(&mut self.pool, tag, len as u32))
    }

    /// Takes back the record of `len` bytes that was written last to this end, when it cannot be filled: before anything else is done
    /// with that end.
    #[cold]
    pub fn undo(&mut self, to: u32, len: usize) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.undo(len);
        }
    }

    #[cold]
    fn refusal(&self, to: u32, len: usize) -> Error {
        if len > self.record_max {
            return Error::TooLong { len, max: self.record_max };
        }
        Error::Full(to)
    }

    /// `notice` is given back by [`Port::due`] once the last record to this end has come so far.
    #[inline]
    pub fn tell(&mut self, to: u32, when: When, notice: N) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.tell(when, notice);
        }
    }

    /// The last record to this end waits until [`Port::release`], and so do all that follow it. [`Port::seal`] was called before it was written.
    pub fn hold(&mut self, to: u32, name: u64) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.hold(name);
        }
    }

    /// Whatever is to come before the next record to this end is in a block of its own.
    pub fn seal(&mut self, to: u32) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.seal_short();
        }
    }

    /// Lets go of what was held.
    pub fn release(&mut self, to: u32, name: u64) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.release(name);
            self.push(at);
        }
    }

    /// What is held means something else when it is released: its record gets the tag that is made of its tag.
    pub fn retag(&mut self, to: u32, name: u64, retag: impl Fn(u32) -> u32) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.retag(name, retag);
        }
    }

    /// What was written to this end leaves, as far as there is room for it; the rest with the first room.
    #[inline]
    pub fn flush(&mut self, to: u32) {
        if let Ok(at) = self.link_to(to)
            && !self.send_short(at)
        {
            self.links[at as usize].out.flush();
            self.push(at);
        }
    }

    /// The same; and nothing that is written later leaves with it.
    #[inline]
    pub fn flush_alone(&mut self, to: u32) {
        if let Ok(at) = self.link_to(to)
            && !self.send_short(at)
        {
            self.links[at as usize].out.seal_short();
            self.push(at);
        }
    }

    /// The same for all ends. Says whether there was anything to flush.
    #[inline]
    pub fn flush_all(&mut self) -> bool {
        if self.unflushed.is_empty() {
            return false;
        }
        let has_few = self.links.len() <= OPEN_MAX;
        while let Some(at) = self.unflushed.pop() {
            let link = &mut self.links[at as usize];
            link.is_unflushed = false;
            link.out.flush();
            if !self.send_short(at) {
                self.push(at);
            }
            if !has_few {
                self.links[at as usize].out.close_empty(&mut self.pool);
            }
        }
        true
    }

    /// Whether no end is to be told of, nothing is to be flushed or acknowledged, and nobody to be told.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ended.is_empty()
            && self.unflushed.is_empty()
            && self.owing.is_empty()
            && self.due.is_empty()
    }

    /// Whether everything that was written has left this port, or is known not to leave.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.ending.is_empty() && self.links.iter().all(|link| !link.out.is_waiting())
    }

    /// Whether every message that was accepted has left the transport, too: see [`Context::flush`].
    pub fn is_sent(&mut self) -> bool {
        // A flush that was begun before does not wait for what was accepted since: another one does.
        if self.is_flushing && !self.context.flush() {
            return false;
        }
        let is_sent = self.context.flush();
        self.is_flushing = !is_sent;
        is_sent
    }

    /// What was written and consumed leaves as far as there is room now, for an owner that makes no progress for long. Does not wait.
    #[cold]
    pub fn send_all(&mut self) {
        self.flush_all();
        self.acknowledge();
        self.is_flushing = !self.context.flush();
    }

    /// Whether nobody is to be told any more, here ([`Port::tell`]) or at another end that waits to hear what was consumed.
    #[must_use]
    pub fn is_told(&self) -> bool {
        let is_told = |link: &Link<N>| match link.way {
            Way::Gone(_) => true,
            // Acknowledgements are tried again when a transport that has refused one has room.
            Way::Peer(_) => !link.out.tells() && !link.incoming.owes(),
            Way::Near | Way::Left | Way::None => !link.out.tells(),
        };
        self.due.is_empty() && self.ended.is_empty() && self.links.iter().all(is_told)
    }

    /// The receiver says at once when it has consumed the last record to this end, as if somebody were to be told.
    pub fn ask(&mut self, to: u32) {
        if let Ok(at) = self.link_to(to) {
            self.links[at as usize].out.ask();
        }
    }

    /// Bytes to this end that are not known to have been consumed; `None`: it is gone.
    #[must_use]
    pub fn unconsumed(&self, to: u32) -> Option<u64> {
        let at = self.of_end.get(to as usize).copied().unwrap_or(0);
        match self.links.get((at as usize).wrapping_sub(1)) {
            Some(link) if matches!(link.way, Way::Gone(_) | Way::Left) => None,
            link => Some(link.map_or(0, |link| link.out.unconsumed())),
        }
    }

    /// Somebody who is to be told now.
    #[inline]
    pub fn due(&mut self) -> Option<N> {
        self.due.pop()
    }

    /// Whether [`Port::due`] has anybody.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whoever waits to be told, of all channels: for an owner that lets go. Those of an [`Event::Gone`] that was not taken are among them.
    pub fn notices(&mut self) -> Vec<N> {
        let of_gone = self.ended.iter_mut().flat_map(|event| match event {
            Event::Gone { notices, .. } => std::mem::take(notices),
            _ => Vec::new(),
        });
        let to_come = self.links.iter_mut().flat_map(|link| link.out.end());
        self.due.drain(..).chain(of_gone).chain(to_come).collect()
    }

    /// Whether a record to this end leaves at once, as far as is known: there is a way, and room in the window.
    #[must_use]
    pub fn is_open(&self, to: u32) -> bool {
        let at = self.of_end.get(to as usize).copied().unwrap_or(0);
        self.links.get((at as usize).wrapping_sub(1)).map_or_else(
            || self.near.has(to),
            |link| {
                let is_there = matches!(link.way, Way::Near | Way::Peer(_)) && !link.is_blocked;
                is_there
                    && link.out.unconsumed() + 2 * self.limits.block as u64 <= link.out.window()
            },
        )
    }

    /// There is a connection with this end, though it may be idle, until [`Port::let_go`] was called as often: its death is to be heard of.
    ///
    /// A host that drops all packets from before it has accepted the connection is no death: it looks like an end that makes no progress, and is tried
    /// again and again. Once it has accepted, its silence is one, where the transport notices that (`silence-bound-ms` of TCP, say).
    pub fn keep(&mut self, end: u32) {
        let Ok(at) = self.link_of(end) else { return };
        let link = &mut self.links[at as usize];
        link.kept += 1;
        if matches!(link.way, Way::None) {
            self.push(at);
        }
    }

    /// See [`Port::keep`].
    pub fn let_go(&mut self, end: u32) {
        let at = self.of_end.get(end as usize).copied().unwrap_or(0);
        if let Some(link) = self.links.get_mut((at as usize).wrapping_sub(1)) {
            link.kept = link.kept.saturating_sub(1);
        }
    }

    /// Writes registered bytes into memory of the process of this end. Its end is [`Event::Moved`] with the same token: of the next round, where
    /// this side moves them by itself (`sm`), which takes no doing of that end. The kernel waits meanwhile for that process's memory: for ever, as
    /// long as that does not come ([`hg_na::Mover::run`]), unless [`Port::wait_for_no_memory`] was called.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Transport`]; [`Error::Full`]: the transport has no room, or the events of 1,024 that are over were not taken yet.
    /// Nothing has begun then; after the next round there may be room.
    pub fn put(
        &mut self,
        to: u32,
        token: u64,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), Error> {
        self.transfer(to, token, |to| Op::Put { to, local, remote })
    }

    /// Reads memory of the process of this end. Its end is [`Event::Moved`] with the same token: see [`Port::put`].
    ///
    /// # Errors
    /// Those of [`Port::put`].
    pub fn get(
        &mut self,
        from: u32,
        token: u64,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), Error> {
        self.transfer(from, token, |from| Op::Get { from, local, remote })
    }

    /// From here on nothing that this side moves by itself waits for memory of another process ([`hg_na::Transit::may_wait`]): the transport moves
    /// it in another way. For an owner with a deadline, or for whose end somebody waits.
    pub fn wait_for_no_memory(&mut self) {
        self.may_wait = false;
    }

    /// Sleeps until something comes, [`Near::wake`], or until `limit` has passed. Not while events are left to be taken.
    ///
    /// # Errors
    /// [`Error::Transport`].
    pub fn sleep(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        if !self.ended.is_empty() || !self.near.may_sleep(self.me) {
            return Ok(());
        }
        let slept = if self.context.may_sleep() {
            let now = Instant::now();
            let ending = self.ending.iter().map(|it| it.until.unwrap_or(now));
            let deadlines = self.context.next_deadline().into_iter().chain(self.idle_at);
            let left = deadlines.chain(ending).min().map(|at| at.saturating_duration_since(now));
            self.waiter.wait(left.into_iter().chain(limit).min())
        } else {
            Ok(())
        };
        self.near.wake_up(self.me);
        Ok(slept?)
    }

    /// What this port has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Its number.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.me
    }

    /// Connections of the transport that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.values().filter(|it| it.state != State::Forgotten).count()
    }

    /// Bytes of what is kept for writing to other ends.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.links.iter().map(|link| link.out.memory()).sum()
    }

    /// The link to an end, opened if it was not.
    #[inline(always)]
    fn link_to(&mut self, end: u32) -> Result<u32, Error> {
        // 0, one less, is no place of a link.
        let at = self.of_end.get(end as usize).map_or(u32::MAX, |at| at.wrapping_sub(1));
        match self.links.get(at as usize) {
            Some(Link { way: Way::Near | Way::Peer(_), .. }) => Ok(at),
            _ => self.link_anew(end),
        }
    }

    #[cold]
    fn link_anew(&mut self, end: u32) -> Result<u32, Error> {
        let at = self.link_of(end)?;
        match &self.links[at as usize].way {
            Way::Gone(reason) => Err(Error::Gone { end, reason: reason.clone() }),
            Way::Left => Err(Error::Gone { end, reason: GoneReason::Closed }),
            Way::None | Way::Near | Way::Peer(_) => self.connect(at).map(|()| at),
        }
    }
}

impl<N> Drop for Port<N> {
    fn drop(&mut self) {
        self.near.leave(self.me);
    }
}

/// An end with so few channels keeps the block of each that is written to now and then.
const OPEN_MAX: usize = 16;
