//! The table of all cards: registrations, queues, queue pairs, and what is delivered when.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::c_int,
    io::Read as _,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::net::UnixStream,
    },
    ptr, slice,
};

use nix::errno::Errno;
use rdma_core_sys as sys;

/// The peer has not registered the memory for it (`IBV_WC_REM_ACCESS_ERR`).
const REMOTE_ACCESS: c_int = 10;

/// A peer has written memory, and told of it (`IBV_WC_RECV_RDMA_WITH_IMM`).
const WC_RECV_WRITE: c_int = sys::WC_RECV + 1;

/// Places of a completion queue at most.
pub(super) const QUEUE_MAX: c_int = 1 << 13;

/// A run of memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) address: usize,
    pub(super) len: usize,
}

impl Run {
    /// Its bytes.
    pub(super) fn read(self) -> Vec<u8> {
        // SAFETY:
        // - registered, or inline: the plugin keeps it until the operation is over.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.address), self.len) }
            .to_vec()
    }

    fn write(self, bytes: &[u8]) {
        let into: *mut u8 = ptr::with_exposed_provenance_mut(self.address);
        assert!(bytes.len() <= self.len, "checked before");
        // SAFETY:
        // - registered for writing: the plugin keeps it, and has no reference into it meanwhile.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }

    fn holds(self, other: Self) -> bool {
        other.address >= self.address && other.address + other.len <= self.address + self.len
    }
}

/// A post of a send queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) opcode: c_int,
    pub(super) is_signalled: bool,
    pub(super) word: u32,
    pub(super) remote: (u64, u32),
    /// The bytes of one that is inline.
    pub(super) taken: Option<Vec<u8>>,
    pub(super) run: Option<Run>,
}

impl Queued {
    fn bytes(&self) -> Vec<u8> {
        let read = || self.run.map(Run::read).unwrap_or_default();
        self.taken.clone().unwrap_or_else(read)
    }
}

#[derive(Debug)]
struct Memory {
    pd: usize,
    run: Run,
    access: c_int,
}

#[derive(Debug, Default)]
pub(super) struct Receives {
    places: VecDeque<(u64, Run)>,
    /// Queue pairs that wait for room.
    waiting: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Queue {
    completions: VecDeque<sys::Wc>,
    /// As many as it holds.
    places: usize,
    channel: RawFd,
    is_armed: bool,
    is_failing: bool,
    /// Of its card.
    events: RawFd,
}

/// A card as somebody has opened it.
#[derive(Debug)]
struct Opened {
    card: usize,
    /// What is readable when there are events, and what makes it so.
    ends: (UnixStream, UnixStream),
    /// Kinds, and what each concerns.
    events: VecDeque<(c_int, usize)>,
    /// Since it was opened.
    is_port_down: bool,
    is_removed: bool,
}

#[derive(Debug)]
struct Pair {
    pd: usize,
    cq: usize,
    srq: usize,
    state: c_int,
    other: u32,
    queue: VecDeque<Queued>,
    /// The last post has not asked for its completion.
    is_silent: bool,
    /// Of its card; and its own handle.
    named: (RawFd, usize),
}

#[derive(Debug, Default)]
pub(super) struct Fabric {
    last: u32,
    memory: HashMap<u32, Memory>,
    /// Both ends of what stands for a descriptor, by the one that the plugin has.
    pub(super) channels: HashMap<RawFd, (UnixStream, UnixStream)>,
    pub(super) queues: HashMap<usize, Queue>,
    pub(super) receives: HashMap<usize, Receives>,
    pairs: HashMap<u32, Pair>,
    /// Cards that are open, by the descriptors of their events.
    opened: HashMap<RawFd, Opened>,
    /// Cards whose port is down, or that are held.
    down: HashSet<usize>,
    /// Cards of protection domains.
    cards: HashMap<usize, usize>,
    /// By card: posts, and completions of them.
    pub(super) counts: HashMap<usize, (u64, u64)>,
    /// By card: writes and reads of so many bytes.
    pub(super) moved: HashMap<usize, (u64, u64)>,
}

impl Fabric {
    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub(super) fn open_card(&mut self, card: usize) -> RawFd {
        let ends = UnixStream::pair().expect("two descriptors");
        let fd = ends.0.as_raw_fd();
        let (events, is_port_down, is_removed) = (VecDeque::new(), false, false);
        self.opened.insert(fd, Opened { card, ends, events, is_port_down, is_removed });
        fd
    }

    pub(super) fn close_card(&mut self, fd: RawFd) {
        self.opened.remove(&fd);
    }

    /// The next event of an opened card.
    pub(super) fn next_event(&mut self, fd: RawFd) -> Result<(c_int, usize), Errno> {
        let opened = self.opened.get_mut(&fd).expect("open");
        match opened.events.pop_front() {
            Some(event) => {
                (&opened.ends.0).read_exact(&mut [0]).expect("one for each event");
                Ok(event)
            }
            None if opened.is_removed => Err(Errno::EIO),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Tells those who have opened a card, and fit, of something.
    fn tell(&mut self, is_told: impl Fn(RawFd, &Opened) -> bool, event: (c_int, usize)) {
        for (_, opened) in self.opened.iter_mut().filter(|(fd, opened)| is_told(**fd, opened)) {
            opened.events.push_back(event);
            super::ring(&opened.ends.1);
        }
    }

    pub(super) fn set_port(&mut self, card: usize, is_up: bool) {
        let kind = if is_up { sys::EVENT_PORT_ACTIVE } else { sys::EVENT_PORT_ERR };
        let of_card = self.opened.values_mut().filter(|opened| opened.card == card);
        of_card.for_each(|opened| opened.is_port_down = !is_up);
        self.tell(|_, opened| opened.card == card, (kind, 1));
        self.hold(card, !is_up);
    }

    /// Whether a port is down for one who has opened its card before.
    pub(super) fn is_port_down(&self, events: RawFd) -> bool {
        self.opened.get(&events).is_some_and(|opened| opened.is_port_down)
    }

    pub(super) fn hold(&mut self, card: usize, is_held: bool) {
        self.down.remove(&card);
        if is_held {
            self.down.insert(card);
        }
        let all: Vec<u32> = self.pairs.keys().copied().collect();
        all.into_iter().for_each(|number| self.run(number));
    }

    pub(super) fn remove(&mut self, card: usize) {
        self.tell(|_, opened| opened.card == card, (sys::EVENT_DEVICE_FATAL, 0));
        // As the kernel's, descriptors of its events and completions are readable for ever.
        for (events, opened) in self.opened.iter_mut().filter(|(_, opened)| opened.card == card) {
            opened.is_removed = true;
            super::hang_up(&opened.ends.1);
            for queue in self.queues.values().filter(|queue| queue.events == *events) {
                super::hang_up(&self.channels[&queue.channel].1);
            }
        }
    }

    pub(super) fn tell_of_pair(&mut self, card: usize, kind: c_int) -> bool {
        let of_card = self.pairs.iter().filter(|(_, pair)| self.cards[&pair.pd] == card);
        let Some((_, pair)) = of_card.min_by_key(|(number, _)| **number) else { return false };
        let (events, handle) = pair.named;
        self.tell(|fd, _| fd == events, (kind, handle));
        true
    }

    pub(super) fn lose_queues(&mut self, card: usize) {
        let all: Vec<_> = self.queues.iter().map(|(cq, queue)| (*cq, queue.events)).collect();
        for (cq, events) in all {
            let is_told = |fd, opened: &Opened| fd == events && opened.card == card;
            self.tell(is_told, (sys::EVENT_CQ_ERR, cq));
        }
    }

    pub(super) fn fail_polls(&mut self, card: usize) {
        let opened = &self.opened;
        let of_card = self.queues.values_mut().filter(|queue| opened[&queue.events].card == card);
        of_card.for_each(|queue| queue.is_failing = true);
    }

    pub(super) fn name_pair(&mut self, number: u32, named: (RawFd, usize)) {
        self.pairs.get_mut(&number).expect("there").named = named;
    }

    /// Whether a port at either end is down.
    fn is_down(&self, pair: &Pair) -> bool {
        let is_down = |pair: &Pair| self.down.contains(&self.cards[&pair.pd]);
        is_down(pair) || self.pairs.get(&pair.other).is_some_and(is_down)
    }

    pub(super) fn open_domain(&mut self, pd: usize, card: usize) {
        self.cards.insert(pd, card);
    }

    pub(super) fn left(&self, card: usize) -> (usize, usize) {
        let is_of = |pd: &usize| self.cards[pd] == card;
        let pairs = self.pairs.values().filter(|pair| is_of(&pair.pd)).count();
        (pairs, self.memory.values().filter(|memory| is_of(&memory.pd)).count())
    }

    pub(super) fn silent(&self, card: usize) -> usize {
        let of_card = self.pairs.values().filter(|pair| self.cards[&pair.pd] == card);
        of_card.filter(|pair| pair.is_silent).count()
    }

    pub(super) fn break_pair(&mut self, card: usize) -> bool {
        let of_card = self.pairs.iter().filter(|(_, pair)| self.cards[&pair.pd] == card);
        let Some(number) = of_card.map(|(number, _)| *number).min() else { return false };
        self.pairs.get_mut(&number).expect("there").state = sys::QPS_ERR;
        self.run(number);
        true
    }

    pub(super) fn pairs_of(&self, card: usize) -> Vec<u32> {
        let of_card = self.pairs.iter().filter(|(_, pair)| self.cards[&pair.pd] == card);
        let mut all: Vec<u32> = of_card.map(|(number, _)| *number).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn say_to(&mut self, to: u32, word: u32, bytes: &[u8]) -> bool {
        let Some(from) = self.pairs.get(&to).map(|pair| pair.other) else { return false };
        let queued = Queued {
            id: 0,
            opcode: sys::WR_SEND_WITH_IMM,
            is_signalled: false,
            word: word.to_be(),
            remote: (0, 0),
            taken: Some(bytes.to_vec()),
            run: None,
        };
        self.deliver((from, to), &queued) == Some(sys::WC_SUCCESS)
    }

    pub(super) fn tell_of_write(&mut self, to: u32, word: u32, byte_len: u32) -> bool {
        let Some(Pair { cq, srq, .. }) = self.pairs.get(&to) else { return false };
        let (cq, receives) = (*cq, self.receives.get_mut(srq).expect("open"));
        let Some((wr_id, _)) = receives.places.pop_front() else { return false };
        let (opcode, imm_data) = (WC_RECV_WRITE, word.to_be());
        self.complete(
            cq,
            sys::Wc { wr_id, opcode, byte_len, imm_data, qp_num: to, ..Default::default() },
        );
        true
    }

    fn count(&mut self, pd: usize) -> &mut (u64, u64) {
        self.counts.entry(self.cards[&pd]).or_default()
    }

    pub(super) fn register(&mut self, pd: usize, run: Run, access: c_int) -> u32 {
        let key = self.next();
        self.memory.insert(key, Memory { pd, run, access });
        key
    }

    pub(super) fn lend_to(&mut self, number: u32, run: Run) -> u32 {
        let pd = self.pairs[&self.pairs[&number].other].pd;
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;
        self.register(pd, run, access)
    }

    pub(super) fn unregister(&mut self, key: u32) -> c_int {
        if self.memory.remove(&key).is_some() { 0 } else { 22 }
    }

    pub(super) fn open_channel(&mut self) -> RawFd {
        let (near, far) = UnixStream::pair().expect("two descriptors");
        let fd = near.as_raw_fd();
        self.channels.insert(fd, (near, far));
        fd
    }

    pub(super) fn open_queue(
        &mut self,
        cq: usize,
        (channel, events): (RawFd, RawFd),
        count: c_int,
    ) {
        let (completions, places) = (VecDeque::new(), usize::try_from(count).expect("a count"));
        let (is_armed, is_failing) = (false, false);
        let queue = Queue { completions, places, channel, is_armed, is_failing, events };
        self.queues.insert(cq, queue);
    }

    pub(super) fn resize_queue(&mut self, cq: usize, count: c_int) -> c_int {
        let queue = self.queues.get_mut(&cq).expect("open");
        let places = usize::try_from(count).expect("a count");
        if places < queue.completions.len() || count > QUEUE_MAX {
            return 22;
        }
        queue.places = places;
        0
    }

    pub(super) fn open_pair(&mut self, pd: usize, cq: usize, srq: usize) -> u32 {
        let number = self.next();
        let (state, other, queue) = (0, 0, VecDeque::new());
        self.pairs.insert(
            number,
            Pair { pd, cq, srq, state, other, queue, is_silent: false, named: (-1, 0) },
        );
        number
    }

    pub(super) fn modify(&mut self, number: u32, attr: &sys::QpAttr, set: c_int) -> c_int {
        let pair = self.pairs.get_mut(&number).expect("there");
        // One step after the other, each with all that it needs.
        let needed = match (pair.state, attr.qp_state) {
            (_, sys::QPS_ERR) if set == sys::QP_STATE => {
                pair.state = sys::QPS_ERR;
                self.run(number);
                return 0;
            }
            (0, sys::QPS_INIT) => sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS,
            (sys::QPS_INIT, sys::QPS_RTR) => {
                sys::QP_AV
                    | sys::QP_PATH_MTU
                    | sys::QP_DEST_QPN
                    | sys::QP_RQ_PSN
                    | sys::QP_MAX_DEST_RD_ATOMIC
                    | sys::QP_MIN_RNR_TIMER
            }
            (sys::QPS_RTR, sys::QPS_RTS) => {
                sys::QP_TIMEOUT
                    | sys::QP_RETRY_CNT
                    | sys::QP_RNR_RETRY
                    | sys::QP_SQ_PSN
                    | sys::QP_MAX_QP_RD_ATOMIC
            }
            _ => return 22,
        };
        if set != needed | sys::QP_STATE {
            return 22;
        }
        pair.state = attr.qp_state;
        if attr.qp_state == sys::QPS_RTR {
            pair.other = attr.dest_qp_num;
        }
        0
    }

    pub(super) fn close_pair(&mut self, number: u32) {
        // As some cards do: what has completed of it, and was not taken, is dropped.
        if let Some(pair) = self.pairs.remove(&number)
            && let Some(queue) = self.queues.get_mut(&pair.cq)
        {
            queue.completions.retain(|it| it.qp_num != number);
        }
        let others = self.pairs.iter().filter(|(_, pair)| pair.other == number);
        let others: Vec<u32> = others.map(|(other, _)| *other).collect();
        others.into_iter().for_each(|other| self.run(other));
    }

    /// `None`: it fails. That of a card which was removed is as it was.
    pub(super) fn poll(&mut self, cq: usize, most: usize) -> Option<Vec<sys::Wc>> {
        let queue = self.queues.get_mut(&cq).expect("open");
        if queue.is_failing {
            return None;
        }
        let queue = &mut queue.completions;
        Some(queue.drain(..most.min(queue.len())).collect())
    }

    pub(super) fn arm(&mut self, cq: usize) {
        self.queues.get_mut(&cq).expect("open").is_armed = true;
    }

    fn complete(&mut self, cq: usize, completion: sys::Wc) {
        let Some(queue) = self.queues.get_mut(&cq) else { return };
        if queue.completions.len() == queue.places {
            let events = queue.events;
            return self.tell(|fd, _| fd == events, (sys::EVENT_CQ_ERR, cq));
        }
        queue.completions.push_back(completion);
        if std::mem::take(&mut queue.is_armed)
            && let Some((_, far)) = self.channels.get(&queue.channel)
        {
            super::ring(far);
        }
    }

    pub(super) fn post_receive(&mut self, srq: usize, id: u64, run: Run) {
        let receives = self.receives.get_mut(&srq).expect("open");
        receives.places.push_back((id, run));
        for waiting in std::mem::take(&mut receives.waiting) {
            self.run(waiting);
        }
    }

    pub(super) fn post_send(&mut self, number: u32, queued: Queued) -> c_int {
        let pair = self.pairs.get_mut(&number).expect("there");
        if pair.state < sys::QPS_RTS {
            return 22;
        }
        pair.is_silent = !queued.is_signalled;
        pair.queue.push_back(queued);
        let pd = pair.pd;
        self.count(pd).0 += 1;
        self.run(number);
        0
    }

    /// Delivers what can be, in order.
    fn run(&mut self, number: u32) {
        while self.pairs.get(&number).is_some_and(|pair| !self.is_down(pair))
            && let Some(pair) = self.pairs.get_mut(&number)
            && pair.state >= sys::QPS_RTS
            && let Some(queued) = pair.queue.pop_front()
        {
            let (pd, cq, other) = (pair.pd, pair.cq, pair.other);
            let is_broken = pair.state == sys::QPS_ERR;
            let status = match is_broken {
                true => Some(sys::WC_WR_FLUSH_ERR),
                false => self.deliver((number, other), &queued),
            };
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let Some(status) = status else { return pair.queue.push_front(queued) };
            if status != sys::WC_SUCCESS {
                pair.state = sys::QPS_ERR;
            }
            if queued.is_signalled || status != sys::WC_SUCCESS {
                self.count(pd).1 += 1;
                let wr_id = queued.id;
                self.complete(cq, sys::Wc { wr_id, status, qp_num: number, ..Default::default() });
            }
        }
    }

    /// Delivers one; `None`: there is no room for it.
    fn deliver(&mut self, (from, to): (u32, u32), queued: &Queued) -> Option<c_int> {
        let is_there = |pair: &&mut Pair| {
            pair.other == from && (sys::QPS_RTR..=sys::QPS_RTS).contains(&pair.state)
        };
        let Some(target) = self.pairs.get_mut(&to).filter(is_there) else {
            return Some(sys::WC_RETRY_EXC_ERR);
        };
        let (pd, cq, srq) = (target.pd, target.cq, target.srq);
        if queued.opcode == sys::WR_SEND_WITH_IMM {
            let receives = self.receives.get_mut(&srq).expect("open");
            let Some((wr_id, run)) = receives.places.pop_front() else {
                receives.waiting.push(from);
                return None;
            };
            let bytes = queued.bytes();
            run.write(&bytes);
            let byte_len = u32::try_from(bytes.len()).expect("a frame");
            let opcode = sys::WC_RECV;
            let imm_data = queued.word;
            let came =
                sys::Wc { wr_id, opcode, byte_len, imm_data, qp_num: to, ..Default::default() };
            self.complete(cq, came);
            return Some(sys::WC_SUCCESS);
        }
        let Some(local) = queued.run else { return Some(sys::WC_SUCCESS) };
        let address = usize::try_from(queued.remote.0).expect("an address");
        let remote = Run { address, len: local.len };
        let needed = match queued.opcode {
            sys::WR_RDMA_WRITE => sys::ACCESS_REMOTE_WRITE,
            _ => sys::ACCESS_REMOTE_READ,
        };
        let memory = self.memory.get(&queued.remote.1);
        let is_lent = memory.is_some_and(|memory| {
            memory.pd == pd && memory.access & needed != 0 && memory.run.holds(remote)
        });
        if !is_lent {
            if let Some(target) = self.pairs.get_mut(&to) {
                target.state = sys::QPS_ERR;
            }
            return Some(REMOTE_ACCESS);
        }
        let (source, sink) = match queued.opcode {
            sys::WR_RDMA_WRITE => (local, remote),
            _ => (remote, local),
        };
        sink.write(&source.read());
        let moved = self.moved.entry(self.cards[&pd]).or_default();
        match queued.opcode {
            sys::WR_RDMA_WRITE => moved.0 += local.len as u64,
            _ => moved.1 += local.len as u64,
        }
        Some(sys::WC_SUCCESS)
    }
}
