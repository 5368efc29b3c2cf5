//! A context under observation: whatever a test does, the invariants of the contract are checked at
//! every completion.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::Instant,
};

use hg_na::{
    Address, Begun, Caps, Completion, Context, Descriptor, Domain, Done, Error, Exchange,
    GoneReason, Message, Op, OpId, Peer, QUIET, Rejected, Returned, Tag, Token,
};

use crate::outcome::{Outcome, ensure, fail};

/// Completions that one call of `progress` may append: the contract asks for a bounded number.
const BATCH_MAX: usize = 65_536;

/// A context, what it was asked and what it answered.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) context: Box<dyn Context>,
    /// Unexpected messages in the order of arrival.
    pub(crate) unexpected: VecDeque<(Peer, Message)>,
    /// Control messages in the order of arrival.
    pub(crate) control: VecDeque<(Peer, Message)>,
    /// Ended operations in the order of their completions.
    pub(crate) done: VecDeque<Done>,
    /// Peers at which room was told.
    pub(crate) rooms: VecDeque<Peer>,
    /// Peers that have hung up, gone or not.
    pub(crate) hung_up: HashMap<Peer, GoneReason>,
    /// Peers that were reported gone.
    pub(crate) gone: HashMap<Peer, GoneReason>,
    /// Refusals for want of room beyond those for which it was told.
    refusals: HashMap<Peer, u64>,
    pending: HashMap<OpId, Shape>,
    /// Sends that may succeed in silence.
    quiet: HashMap<OpId, Shape>,
    /// Peers whose end has ended a receive: after that none of its sends may end.
    receives_ended: HashSet<Peer>,
    known_ids: HashSet<OpId>,
    last_token: Token,
    batch: Vec<Completion>,
}

/// What a rejected operation and a completion are compared with.
#[derive(Clone, PartialEq)]
struct Shape {
    token: Token,
    kind: &'static str,
    peer: Peer,
    tag: Option<Tag>,
    bytes: Vec<u8>,
    /// Where the poster's own memory lies.
    memory: Option<usize>,
    /// Offsets and lengths of local and remote memory.
    ranges: [u64; 4],
}

impl fmt::Debug for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len, peer) = (self.kind, self.bytes.len(), self.peer);
        write!(out, "{kind} of {len} bytes, {peer:?}, tag {:?}, token {}", self.tag, self.token)
    }
}

impl Shape {
    fn of(token: Token, op: &Op) -> Self {
        let peer = op.peer();
        let (kind, tag, message, ranges) = match op {
            Op::SendUnexpected { message, .. } => ("unexpected", None, Some(message), [0; 4]),
            Op::SendControl { message, .. } => ("control", None, Some(message), [0; 4]),
            Op::SendExpected { tag, message, .. } => {
                ("expected", Some(*tag), Some(message), [0; 4])
            }
            Op::RecvExpected { tag, .. } => ("receive", Some(*tag), None, [0; 4]),
            Op::Put { local, remote, .. } => {
                ("put", None, None, [local.offset(), local.len(), remote.offset(), remote.len()])
            }
            Op::Get { local, remote, .. } => {
                ("get", None, None, [local.offset(), local.len(), remote.offset(), remote.len()])
            }
            Op::View { remote, .. } => ("view", None, None, [0, 0, remote.offset(), remote.len()]),
            _ => ("unknown", None, None, [0; 4]),
        };
        let bytes = message.map_or_else(Vec::new, |message| message.as_slice().to_vec());
        let own = message.filter(|message| message.slot().is_none() && message.body().is_none());
        let memory = own.map(|message| message.as_slice().as_ptr().addr());
        Self { token, kind, peer, tag, bytes, memory, ranges }
    }
}

impl Node {
    pub(crate) fn new(
        name: &'static str,
        domain: Arc<dyn Domain>,
        context: Box<dyn Context>,
    ) -> Self {
        Self {
            name,
            domain,
            context,
            unexpected: VecDeque::new(),
            control: VecDeque::new(),
            done: VecDeque::new(),
            rooms: VecDeque::new(),
            hung_up: HashMap::new(),
            gone: HashMap::new(),
            refusals: HashMap::new(),
            pending: HashMap::new(),
            quiet: HashMap::new(),
            receives_ended: HashSet::new(),
            known_ids: HashSet::new(),
            last_token: 0,
            batch: Vec::new(),
        }
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.domain.caps()
    }

    pub(crate) fn address(&self) -> Address {
        self.context.address().clone()
    }

    pub(crate) fn lookup(&mut self, address: &Address) -> Outcome<Peer> {
        let name = self.name;
        self.context
            .lookup(address)
            .map_err(|error| format!("{name}: looking {address} up failed: {error}"))
    }

    /// Operations that were accepted and have not completed.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Posts once. A refused operation must come back as it was.
    pub(crate) fn post(&mut self, op: Op) -> Outcome<Result<(Token, OpId), Rejected>> {
        self.post_as(op, 0)
    }

    /// Posts a send that may succeed in silence.
    pub(crate) fn post_quiet(&mut self, op: Op) -> Outcome<Result<(Token, OpId), Rejected>> {
        self.post_as(op, QUIET)
    }

    fn post_as(&mut self, op: Op, bits: Token) -> Outcome<Result<(Token, OpId), Rejected>> {
        let token = self.next_token(bits);
        let shape = Shape::of(token, &op);
        let name = self.name;
        match self.context.post(token, op) {
            Ok(id) => {
                self.accepted(id, shape)?;
                Ok(Ok((token, id)))
            }
            Err(rejected) => {
                let back = Shape::of(token, &rejected.op);
                let unchanged = back == shape;
                ensure!(unchanged, "{name}: a refused {shape:?} came back changed: {back:?}");
                if matches!(rejected.error, Error::Again) {
                    *self.refusals.entry(shape.peer).or_default() += 1;
                }
                Ok(Err(rejected))
            }
        }
    }

    /// A request and the receive of its answer by the short cut; answers the receive's token if it was taken.
    pub(crate) fn exchange(
        &mut self,
        to: Peer,
        tag: Tag,
        bits: Token,
        message: &mut Message,
    ) -> Outcome<Option<Token>> {
        let (send, receive) = (self.next_token(bits), self.next_token(0));
        let exchange = Exchange { to, tag, send, receive };
        let copy = Message::copied(message.as_slice());
        let Some(ids) = self.context.exchange(&exchange, message) else { return Ok(None) };
        // In the transport's memory nothing is left of it; elsewhere it was copied, and is as it was.
        let left = if message.body().is_some() { &[] } else { copy.as_slice() };
        let name = self.name;
        ensure!(message.as_slice() == left, "{name}: a short cut left {message:?}");
        let request = Op::SendUnexpected { to, message: copy };
        // Whatever the message was, the poster's memory is not kept.
        self.accepted(ids.send, Shape { memory: None, ..Shape::of(send, &request) })?;
        self.accepted(ids.receive, Shape::of(receive, &Op::RecvExpected { from: to, tag }))?;
        Ok(Some(receive))
    }

    /// Memory for a message, of the transport's where it has any.
    pub(crate) fn message(&mut self, to: Peer, len: usize) -> Outcome<Message> {
        let name = self.name;
        self.context.message(to, len).map_err(|error| format!("{name}: no message: {error}"))
    }

    /// An answer by the short cut; says whether it was taken.
    pub(crate) fn reply(&mut self, to: Peer, tag: Tag, message: &mut Message) -> Outcome<bool> {
        let token = self.next_token(0);
        let Some(id) = self.context.reply(to, tag, token, message) else { return Ok(false) };
        self.carries_its_bytes(message)?;
        let answer = Op::SendExpected { to, tag, message: Message::copied(message.as_slice()) };
        self.accepted(id, Shape::of(token, &answer))?;
        Ok(true)
    }

    /// An answer by the short cut; says whether it was taken. It ends the receive of this token.
    pub(crate) fn collect(
        &mut self,
        (from, tag): (Peer, Tag),
        receive: Token,
        bytes: &[u8],
    ) -> Outcome<bool> {
        let (name, mut message) = (self.name, Message::copied(b"before"));
        if !self.context.collect(from, tag, &mut message) {
            ensure!(message.as_slice() == b"before", "{name}: {message:?} was not collected");
            return Ok(false);
        }
        let ended = self.pending.extract_if(|_, shape| shape.token == receive).count();
        ensure!(ended == 1, "{name}: an answer was collected whose receive is not open");
        ensure!(message.as_slice() == bytes, "{name}: {message:?} was collected for {bytes:?}");
        Ok(true)
    }

    /// The next request by the short cut, where none has come before it; says whether it was taken.
    pub(crate) fn take_request(&mut self, from: Peer, bytes: &[u8]) -> Outcome<bool> {
        let (name, mut message) = (self.name, Message::copied(b"before"));
        let is_next = self.unexpected.is_empty();
        let is_taken = is_next && self.context.take_request(from, &mut message);
        let expected = if is_taken { bytes } else { b"before" };
        ensure!(message.as_slice() == expected, "{name}: {message:?} is there for {expected:?}");
        Ok(is_taken)
    }

    /// Begins a transfer; one that is to begin later is refused, as with [`Error::Again`].
    pub(crate) fn begin<'op>(&mut self, op: &'op Op) -> Begun<'op> {
        let transit = op.transit().expect("a put or a get of equal sides");
        let begun = self.context.begin(&transit);
        if matches!(begun, Begun::Later) {
            *self.refusals.entry(op.peer()).or_default() += 1;
        }
        begun
    }

    /// Bytes in memory that is not registered; says whether they are there.
    pub(crate) fn fetch(
        &mut self,
        from: Peer,
        (far, at): (&Descriptor, u64),
        into: &mut [u8],
    ) -> bool {
        let begun = self.context.fetch(from, far, at, into, true);
        if matches!(begun, Begun::Later) {
            *self.refusals.entry(from).or_default() += 1;
        }
        begun.finish()
    }

    fn carries_its_bytes(&self, message: &Message) -> Outcome {
        let name = self.name;
        ensure!(message.slot().is_some(), "{name}: a short cut took {message:?}");
        Ok(())
    }

    fn next_token(&mut self, bits: Token) -> Token {
        self.last_token += 1;
        self.last_token | bits
    }

    fn accepted(&mut self, id: OpId, shape: Shape) -> Outcome {
        let name = self.name;
        ensure!(self.known_ids.insert(id), "{name}: {id:?} names a second operation");
        let has_hung_up = self.hung_up.contains_key(&shape.peer);
        ensure!(!has_hung_up, "{name}: {shape:?} was accepted after its peer had hung up");
        let is_quiet = shape.token & QUIET != 0;
        let open = if is_quiet { &mut self.quiet } else { &mut self.pending };
        open.insert(id, shape);
        Ok(())
    }

    /// One call of `progress`; says whether it found something.
    pub(crate) fn progress(&mut self) -> Outcome<bool> {
        let name = self.name;
        let now = Instant::now();
        let mut batch = std::mem::take(&mut self.batch);
        let found = self
            .context
            .progress(now, &mut batch)
            .map_err(|error| format!("{name}: progress failed: {error}"))?;
        // How many sends have ended says only how much this side was allowed to post.
        let arrived = batch.iter().filter(|completion| has_arrived(completion)).count();
        ensure!(arrived <= BATCH_MAX, "{name}: one progress took {arrived} messages");
        ensure!(found || batch.is_empty(), "{name}: progress found something but answered false");
        let due = self.context.next_deadline().is_some_and(|deadline| deadline <= now);
        ensure!(found || !due, "{name}: progress did nothing, but its deadline has passed");
        for completion in batch.drain(..) {
            self.take(completion)?;
        }
        self.batch = batch;
        Ok(found)
    }

    fn take(&mut self, completion: Completion) -> Outcome {
        let name = self.name;
        match completion {
            Completion::Done(done) => return self.take_done(done),
            Completion::Unexpected { from, message } => {
                ensure!(
                    !self.gone.contains_key(&from),
                    "{name}: a message of a peer that was gone"
                );
                self.unexpected.push_back((from, message));
            }
            Completion::Control { from, message } => {
                ensure!(
                    !self.hung_up.contains_key(&from),
                    "{name}: a control message of a peer that had hung up"
                );
                self.control.push_back((from, message));
            }
            Completion::Room { peer } => {
                let has_hung_up = self.hung_up.contains_key(&peer);
                ensure!(!has_hung_up, "{name}: room was told at {peer:?}, which had hung up");
                let left = self.refusals.get_mut(&peer).filter(|left| **left > 0);
                let Some(left) = left else {
                    fail!("{name}: room was told at {peer:?}, which had refused nothing since");
                };
                *left -= 1;
                self.rooms.push_back(peer);
            }
            Completion::HungUp { peer, reason } => {
                let open = self.pending.values().find(|shape| shape.peer == peer);
                ensure!(open.is_none(), "{name}: {peer:?} hung up before {open:?} completed");
                let before = self.hung_up.insert(peer, reason);
                ensure!(before.is_none(), "{name}: {peer:?} hung up twice");
            }
            Completion::Gone { peer, reason } => {
                let told = self.hung_up.get(&peer);
                ensure!(
                    told == Some(&reason),
                    "{name}: {peer:?} was gone, {reason:?}, but had hung up before as {told:?}"
                );
                let before = self.gone.insert(peer, reason);
                ensure!(before.is_none(), "{name}: {peer:?} was reported gone twice");
            }
            other => fail!("{name}: an unknown kind of completion: {other:?}"),
        }
        Ok(())
    }

    fn take_done(&mut self, done: Done) -> Outcome {
        let name = self.name;
        let open = self.pending.remove(&done.id).or_else(|| self.quiet.remove(&done.id));
        let Some(shape) = open else {
            fail!("{name}: {done:?} completes an operation that is not open (any more)");
        };
        ensure!(done.token == shape.token, "{name}: {done:?} has another token than {shape:?}");
        if let Err(failure) = &done.result {
            let proper = !matches!(failure.error, Error::Again);
            ensure!(proper, "{name}: an accepted operation ended in {failure:?}");
            self.check_order_of_ends(&shape, &failure.error)?;
        }
        match (&done.returned, shape.kind) {
            (Returned::Slice(slice), "put" | "get") => {
                let range = [slice.offset(), slice.len()];
                ensure!(range == shape.ranges[..2], "{name}: another slice came back: {shape:?}");
            }
            (Returned::View(bytes), "view") => {
                ensure!(done.result.is_ok(), "{name}: a failed view gave bytes");
                ensure!(bytes.len() == shape.ranges[3], "{name}: {bytes:?} for {shape:?}");
            }
            (Returned::Nothing, "view") => {
                ensure!(done.result.is_err(), "{name}: a view gave nothing to see");
            }
            (Returned::Message(_), "receive") => {
                ensure!(done.result.is_ok(), "{name}: a failed receive returned a message");
            }
            (Returned::Nothing, "receive") => {
                ensure!(done.result.is_err(), "{name}: a receive returned no message");
            }
            (Returned::Message(message), "unexpected" | "control" | "expected") => {
                let same = message.as_slice() == shape.bytes;
                ensure!(same, "{name}: other bytes came back than were sent: {shape:?}");
                let address = Some(message.as_slice().as_ptr().addr());
                let moved = shape.memory.is_some() && shape.memory != address;
                ensure!(!moved, "{name}: another vector came back than was posted");
            }
            (Returned::Nothing, "unexpected" | "control" | "expected") => {
                ensure!(shape.memory.is_none(), "{name}: the poster's vector did not come back");
            }
            (returned, kind) => fail!("{name}: a {kind} handed back {returned:?}"),
        }
        self.done.push_back(done);
        Ok(())
    }

    /// When a peer ends, its sends end before its receives.
    fn check_order_of_ends(&mut self, shape: &Shape, error: &Error) -> Outcome {
        if !matches!(error, Error::PeerGone(_)) {
            return Ok(());
        }
        match shape.kind {
            "receive" => drop(self.receives_ended.insert(shape.peer)),
            "unexpected" | "control" | "expected" => {
                let late = self.receives_ended.contains(&shape.peer);
                ensure!(!late, "{}: {shape:?} ended after a receive of a dead peer", self.name);
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the completion of one operation, when it is there.
    pub(crate) fn take_done_of(&mut self, token: Token) -> Option<Done> {
        let place = self.done.iter().position(|done| done.token == token)?;
        self.done.remove(place)
    }
}

/// Whether it is a message of a peer's.
fn has_arrived(completion: &Completion) -> bool {
    match completion {
        Completion::Done(done) => matches!(done.returned, Returned::Message(_)),
        Completion::Unexpected { .. } | Completion::Control { .. } => true,
        _ => false,
    }
}
