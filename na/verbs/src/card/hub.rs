//! An endpoint that threads share: each posts without waiting for another, and whoever has the turn does what is to be done.
//!
//! Who posts takes the [`Turn`] where nobody has it, and hands his post to the card. Where somebody has it, the post goes into a queue without locks, which
//! he empties before his turn ends. So posts of one thread stay in order, and a queue pair is used by one thread at a time. What makes and ends
//! connections takes the lock that goes with the turn for a moment, and so does who posts while another thread of his context sleeps without an end: he
//! sees to it that somebody looks at the queues later ([`crate::idle`]).

use std::{
    fmt,
    net::IpAddr,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crossbeam_queue::SegQueue;
use hg_na::{Error, Segment};
use hg_na_memory::Held;
use rdma_core_sys as sys;

use crate::{
    card::{
        Desk, Device, Event, Fault, Greeted, Told,
        endpoint::{Endpoint, Stock},
        frames::Frame,
        pair::{Cargo, Post},
        registration::Registration,
    },
    gauge::Gauge,
    turn::Turn,
};

/// How what is sent on a line finds the other end.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// Of the queue pair.
    pub(super) number: u32,
    /// The other end's number of the line.
    pub(super) word: u32,
    pub(crate) gauge: Arc<Gauge>,
}

/// Something to be posted to the pair of this number.
type Submission = (u32, Post);

/// An endpoint that threads share.
pub(crate) struct Hub {
    device: Arc<Device>,
    stock: Arc<Stock>,
    turn: Turn,
    submitted: SegQueue<Submission>,
    endpoint: Mutex<Endpoint>,
    fd: RawFd,
}

impl Hub {
    /// Opens an endpoint for a port of the domain; `every`-th posts ask for a completion, and lines share pairs or do not.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub(crate) fn open(
        (port, device): (usize, &Arc<Device>),
        how: (u32, bool),
    ) -> Result<Arc<Self>, Error> {
        let endpoint = Endpoint::open((port, device), how)?;
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            stock: endpoint.stock(),
            turn: Turn::default(),
            submitted: SegQueue::new(),
            fd: endpoint.fd().as_raw_fd(),
            endpoint: Mutex::new(endpoint),
        }))
    }

    fn endpoint(&self) -> MutexGuard<'_, Endpoint> {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, with everything put into the queues that was submitted.
    fn complete(&self) -> MutexGuard<'_, Endpoint> {
        let mut endpoint = self.endpoint();
        self.post_submitted(&mut endpoint);
        endpoint
    }

    /// Becomes readable when something has come, once it is [armed](Self::arm).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY:
        // - the endpoint's, open as long as this.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// A context opens.
    pub(crate) fn enter(&self, desk: &Arc<Desk>) {
        self.endpoint().desks.push(Arc::clone(desk));
    }

    /// It closes. What was for it is answered, and what it leaves silent is asked for: others may not wake for it.
    pub(crate) fn exit(&self, desk: &Arc<Desk>, events: &mut Vec<Event>) {
        let mut endpoint = self.complete();
        endpoint.desks.retain(|it| !Arc::ptr_eq(it, desk));
        endpoint.ask_before_leave();
        drop(endpoint);
        desk.take(events);
    }

    /// A line that dials a machine, and what the other end is told.
    ///
    /// # Errors
    /// There is no queue pair to be had.
    pub(crate) fn offer(
        &self,
        (desk, place): (&Arc<Desk>, u32),
        ip: Option<IpAddr>,
    ) -> Result<(u32, Greeted), Error> {
        let mut endpoint = self.endpoint();
        endpoint.is_usable()?;
        let line = endpoint.open_line(desk, place, true);
        match endpoint.offer(line, ip) {
            Ok(hello) => Ok((line, hello)),
            Err(error) => {
                endpoint.end_line(line, true);
                Err(error)
            }
        }
    }

    /// A line for one that has introduced itself, what it is told, and the way to it.
    ///
    /// # Errors
    /// There is no queue pair to be had.
    pub(crate) fn greet(
        &self,
        (desk, place): (&Arc<Desk>, u32),
        hello: (&Greeted, Option<IpAddr>),
    ) -> Result<(u32, Greeted, Way), Error> {
        let mut endpoint = self.endpoint();
        endpoint.is_usable()?;
        let line = endpoint.open_line(desk, place, false);
        match endpoint.greet(line, hello) {
            Ok((welcome, way)) => Ok((line, welcome, way)),
            Err(error) => {
                endpoint.end_line(line, true);
                Err(error)
            }
        }
    }

    /// A line that dials was welcomed: the way to the other end.
    ///
    /// # Errors
    /// It is no answer to what was offered, or the pair cannot be connected.
    pub(crate) fn welcomed(
        &self,
        line: u32,
        welcome: (&Greeted, Option<IpAddr>),
    ) -> Result<Way, Fault> {
        self.endpoint().welcomed(line, welcome)
    }

    /// A line has ended; `is_cut`: its peer is out of reach, or is not to be trusted.
    pub(crate) fn end(&self, line: u32, is_cut: bool) {
        self.complete().end_line(line, is_cut);
    }

    /// The same, with memory that was lent to the peer: whether that stays in reach of it, for as long as the queue pair carries others.
    pub(crate) fn end_lending(&self, line: u32, is_cut: bool, lent: Vec<Registration>) -> bool {
        self.complete().end_lending(line, is_cut, lent)
    }

    /// Sends `len` bytes that `fill` writes; when it answers `false`, nothing is sent.
    ///
    /// # Errors
    /// [`Fault::Again`]: the context finds an [`Event::Room`] later; or a worse one.
    pub(crate) fn send(
        &self,
        (desk, way): (&Desk, &Way),
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), Fault> {
        let mut frame = self.room(desk, way)?;
        if !fill(frame.bytes_mut(len)) {
            self.stock.pool.give(frame);
            way.gauge.gives_place();
            return Err(Fault::Call("ibv_post_send", nix::libc::ECANCELED));
        }
        let post = Post {
            opcode: sys::WR_SEND_WITH_IMM,
            word: way.word,
            remote: (0, 0),
            run: Some(frame.run(len)),
            must_ask: false,
            cargo: Cargo::Frame(frame),
        };
        self.submit(way.number, post);
        Ok(())
    }

    /// A frame, and a place of the send queue, or the promise to tell when there may be one.
    fn room(&self, desk: &Desk, way: &Way) -> Result<Frame, Fault> {
        let looks = || {
            if way.gauge.is_broken() {
                return Err(Fault::Status(sys::WC_WR_FLUSH_ERR));
            }
            if !way.gauge.takes_place() {
                return Err(Fault::Again);
            }
            let frame = self.stock.pool.take();
            frame.ok_or(Fault::Again).inspect_err(|_| way.gauge.gives_place())
        };
        match looks() {
            Err(Fault::Again) => {
                desk.awaits_room();
                looks().inspect_err(|_| self.complete().ask_all())
            }
            other => other,
        }
    }

    /// Writes to memory that a peer has lent (`to_peer`), or reads from it: then an [`Event::Moved`] follows.
    ///
    /// # Errors
    /// [`Fault::Again`], or a worse one.
    pub(crate) fn move_run(
        &self,
        (desk, line, way): (&Desk, u32, &Way),
        remote: (u64, u32),
        (memory, run): (&Held, Segment),
        (to_peer, id): (bool, u64),
    ) -> Result<(), Fault> {
        if way.gauge.is_broken() {
            return Err(Fault::Status(sys::WC_WR_FLUSH_ERR));
        }
        if !way.gauge.takes_place() {
            desk.awaits_room();
            if !way.gauge.takes_place() {
                return Err(Fault::Again);
            }
        }
        let access = if to_peer { 0 } else { sys::ACCESS_LOCAL_WRITE };
        let registered = Registration::of(&self.device, memory, run, access);
        let memory = registered.inspect_err(|_| way.gauge.gives_place())?;
        let length = u32::try_from(run.len).expect("MOVE_MAX is less");
        let run = Some(sys::Sge { addr: run.address as u64, length, lkey: memory.keys().0 });
        let post = Post {
            opcode: if to_peer { sys::WR_RDMA_WRITE } else { sys::WR_RDMA_READ },
            word: 0,
            remote,
            run,
            must_ask: true,
            cargo: Cargo::Moved { read: (!to_peer).then_some((line, id)), memory },
        };
        self.submit(way.number, post);
        Ok(())
    }

    /// Registers a run of memory for a peer's access: to be written, or to be read. What the peer needs: [`Registration::keys`].
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn lend(
        &self,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<Registration, Fault> {
        let access = match is_written {
            true => sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE,
            false => sys::ACCESS_REMOTE_READ,
        };
        Registration::of(&self.device, memory, run, access)
    }

    /// Has the completion of a pair's silent posts asked for.
    pub(crate) fn ask(&self, way: &Way) {
        self.complete().ask(way.number);
    }

    /// Looks whether queues have gone idle, if it is time to; says whether it was.
    pub(crate) fn run_timers(&self, now: Instant) -> bool {
        if !self.stock.idle.is_due(now) {
            return false;
        }
        let mut endpoint = self.complete();
        // Another one may have looked meanwhile.
        if endpoint.idle().is_due(now) {
            endpoint.look(now);
        }
        true
    }

    fn submit(&self, number: u32, post: Post) {
        if self.turn.tries() {
            let mut endpoint = self.endpoint();
            // SAFETY:
            // - frames and registrations are the cargo of their own posts.
            unsafe { endpoint.post(number, post) };
            return self.serve(&mut endpoint);
        }
        self.submitted.push((number, post));
        if self.turn.raise() {
            let mut endpoint = self.endpoint();
            self.serve(&mut endpoint);
        }
    }

    /// With the turn, until it ends.
    fn serve(&self, endpoint: &mut Endpoint) {
        loop {
            let seen = self.turn.seen();
            self.post_submitted(endpoint);
            if self.turn.ends(seen) {
                return;
            }
        }
    }

    /// What was counted before is found. Mostly there is nothing: the look that costs least comes first.
    fn post_submitted(&self, endpoint: &mut Endpoint) {
        if self.submitted.is_empty() {
            return;
        }
        while let Some((number, post)) = self.submitted.pop() {
            // SAFETY:
            // - frames and registrations are the cargo of their own posts.
            unsafe { endpoint.post(number, post) };
        }
    }

    /// Takes what has come for a context, and, if nobody else does, looks at the card for all. Says whether there was something. A frame among
    /// it is one of this.
    pub(crate) fn poll(&self, desk: &Arc<Desk>, events: &mut Vec<Event>) -> bool {
        if !self.turn.tries() {
            desk.take(events);
            return !events.is_empty();
        }
        let mut endpoint = self.endpoint();
        // What others have found comes before what is found now.
        desk.take(events);
        let found = endpoint.poll(desk, events);
        self.serve(&mut endpoint);
        drop(endpoint);
        desk.take(events);
        found > 0 || !events.is_empty()
    }

    /// The card has said something.
    pub(crate) fn hear(&self, told: Told) {
        self.endpoint().hear(told);
    }

    /// Ends every connection; `is_lost`: and takes no new one.
    pub(crate) fn cut(&self, fault: Fault, is_lost: bool) {
        let mut endpoint = self.endpoint();
        if is_lost { endpoint.lose(fault) } else { endpoint.break_all(fault) }
    }

    /// A message was read: its frame is used anew.
    pub(crate) fn was_read(&self, frame: Frame) {
        self.stock.read.push(frame);
    }

    /// Makes the next completion wake whoever waits for [`Self::fd`], then looks at the card whoever has the turn: he may be one who only posts. Says
    /// whether something had come before. What had come was signalled to all, and is no more: if it is more than is taken here, those who sleep are
    /// woken to look for themselves.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn arm(&self, desk: &Arc<Desk>, events: &mut Vec<Event>) -> Result<bool, Fault> {
        desk.sleeps();
        let mut endpoint = self.endpoint();
        let armed = endpoint.arm();
        desk.take(events);
        let found = endpoint.poll(desk, events);
        if armed.is_err() || endpoint.may_have_more(found) {
            endpoint.wake_all_but(desk);
        }
        drop(endpoint);
        desk.take(events);
        armed.map(|()| found > 0 || !events.is_empty())
    }

    /// When a queue pair is given up, or queues are looked at.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let endpoint = self.complete();
        let given_up = endpoint.leaving.iter().map(|it| it.by);
        given_up.chain(endpoint.idle().deadline()).min()
    }

    /// When queues are looked at, with those into which something is put now that was submitted.
    pub(crate) fn looks_at(&self) -> Option<Instant> {
        self.complete().idle().deadline()
    }

    /// The number of the last post. What the caller has submitted is in the queue: no word of the endpoint's own takes its number any more.
    pub(crate) fn last(&self, way: &Way) -> u64 {
        let _endpoint = self.complete();
        way.gauge.last()
    }

    /// Whether queue pairs without lines have something under way.
    pub(crate) fn has_leaving(&self) -> bool {
        self.endpoint().leaving.iter().any(|it| it.last.is_some())
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint.try_lock() {
            Ok(endpoint) => endpoint.fmt(out),
            Err(_) => out.write_str("Hub"),
        }
    }
}
