//! How a call begins: encoded to where it leaves from, made known, handed to the transport.

use std::time::{Duration, Instant};

use hg_core::{
    codec::{self, Codec as _},
    error::{Failure, Started},
    header::{Header, Kind},
    kept::Lent,
    operations::OperationId,
    protocol::Protocol,
    rpc::Rpc,
};
use hg_na::{Exchanged, Frozen, INLINE_MAX, Message, Peer, departing, holds_frozen};

use crate::{
    CallOptions,
    failure::{forked, not_reserved, unencodable},
    lock::MutexGuard,
    port::{Port, State, no_message},
};

/// Longest message that is copied once more on its way: so few bytes cost less than asking the transport for memory to write them to.
const COPIED_MAX: usize = 4 * INLINE_MAX;

impl Port {
    /// Makes a call to a peer of its own: encodes it straight into the outgoing message and posts it.
    #[inline]
    pub(crate) fn start_call<R: Rpc>(
        &self,
        peer: Peer,
        args: R::Args<'_>,
        kind: Kind,
        options: CallOptions,
    ) -> Result<OperationId, Box<Failure>> {
        let mut header = self.header_of::<R>(kind, &options);
        let deadline = self.starting_deadline(options.deadline, &mut header)?;
        let wire = R::pack(args);
        let unencodable = |error| unencodable(R::NAME, &error);
        let (size, holds_frozen) = holds_frozen(|| codec::Default::size(&wire));
        let size = size.map_err(unencodable)?;
        if holds_frozen {
            return self.start_call_apart::<R>(peer, (wire, size), header, deadline);
        }
        let start = header.encoded_len();
        if start + size > self.shared.caps.short_unexpected {
            return self.start_long_call::<R>(peer, (wire, size), header, deadline);
        }
        // A user's `Serialize` runs: not under the lock.
        let mut message = Message::inline(start + size);
        codec::Default::encode(&wire, &mut message.as_mut_slice()[start..]).map_err(unencodable)?;
        drop(wire); // A user's `Drop` may panic: while nothing was begun.
        let Some(state) = self.enter_at_rest() else { return Err(forked().into()) };
        let made = self.post_call(state, (peer, R::NAME), (header, start), deadline, &mut message);
        if message.slot().is_some() {
            std::mem::forget(message); // Owns nothing.
        }
        made
    }

    /// A call whose message needs memory of the transport's, or more than a message.
    #[inline(never)]
    fn start_long_call<R: Rpc>(
        &self,
        peer: Peer,
        (wire, size): (R::WireArgs<'_>, usize),
        header: Header,
        deadline: Option<Instant>,
    ) -> Result<OperationId, Box<Failure>> {
        let start = header.encoded_len();
        if self.is_large(start + size, self.shared.caps.max_unexpected) {
            return self.start_call_apart::<R>(peer, (wire, size), header, deadline);
        }
        let mut message = if start + size <= COPIED_MAX {
            Message::from(vec![0; start + size])
        } else {
            let mut state = self.enter_state().ok_or_else(forked)?;
            let reserved = state.protocol.context().and_then(|it| it.message(peer, start + size));
            reserved.map_err(not_reserved)?
        };
        // A user's `Serialize` runs: not under the lock.
        codec::Default::encode(&wire, &mut message.as_mut_slice()[start..])
            .map_err(|error| unencodable(R::NAME, &error))?;
        drop(wire);
        let state = self.enter_state().ok_or_else(forked)?;
        self.post_call(state, (peer, R::NAME), (header, start), deadline, &mut message)
    }

    /// A call whose arguments do not fit in a message, or with frozen memory among them.
    #[inline(never)]
    fn start_call_apart<R: Rpc>(
        &self,
        peer: Peer,
        (wire, size): (R::WireArgs<'_>, usize),
        header: Header,
        deadline: Option<Instant>,
    ) -> Result<OperationId, Box<Failure>> {
        self.check_large(size)?;
        let mut bytes = hg_bulk::zeroed(size as u64).map_err(Failure::NotMade)?;
        // A user's `Serialize` runs: not under the lock.
        let (encoded, frozen) = departing(|| codec::Default::encode(&wire, &mut bytes));
        encoded.map_err(|error| unencodable(R::NAME, &error))?;
        drop(wire); // As in `start_call`.
        Ok(self.start_large_call((peer, R::NAME), (bytes, 0), frozen, header, deadline)?)
    }

    /// Makes the call known and hands its message to the transport.
    #[inline(always)]
    pub(crate) fn post_call(
        &self,
        mut state: MutexGuard<'_, State>,
        (peer, name): (Peer, &'static str),
        (mut header, start): (Header, usize),
        deadline: Option<Instant>,
        message: &mut Message,
    ) -> Result<OperationId, Box<Failure>> {
        let two_way = header.kind == Kind::Request;
        let Some(id) = state.protocol.operations.next_id() else {
            return Err(self.too_many_calls().into());
        };
        header.id = id.to_bits();
        header.encode_in(start, message.as_mut_slice());
        let exchanged = if two_way { state.protocol.exchange(id, peer, message) } else { None };
        match exchanged {
            Some(Exchanged { send, receive }) => {
                let ops = (send, receive);
                state.protocol.operations.begin_exchanged(id, (peer, name), deadline, ops);
            }
            None => {
                state.protocol.is_at_rest = false;
                state.protocol.context().map_err(Failure::from)?;
                let operations = &mut state.protocol.operations;
                let begun = operations.begin_call((peer, name), two_way, deadline, None);
                begun.ok_or_else(|| self.too_many_calls())?;
                let message = std::mem::replace(message, no_message());
                state.protocol.post_call(id, peer, two_way, message)?;
            }
        }
        drop(state);
        if !two_way || deadline.is_some() {
            self.notify();
        }
        Ok(id)
    }

    /// The header of a call without its id and its deadline.
    #[inline(always)]
    pub(crate) fn header_of<R: Rpc>(&self, kind: Kind, options: &CallOptions) -> Header {
        let mut header = Header::request(kind, 0, R::wire_id());
        header.checksum = options.checksum.unwrap_or(self.shared.settings.checksum);
        header
    }

    /// When a call that may take so long ends (`None`: beyond all time); its header says so to the target. A call
    /// without any time is not made.
    #[inline(always)]
    pub(crate) fn starting_deadline(
        &self,
        left: Option<Duration>,
        header: &mut Header,
    ) -> Result<Option<Instant>, Failure> {
        let Some(left) = left else { return Ok(None) };
        if left.is_zero() {
            return Err(Failure::DeadlineExceeded(Started::No));
        }
        let whole = left.as_secs().saturating_mul(1_000_000_000);
        header.remaining_ns = Some(whole.saturating_add(left.subsec_nanos().into()));
        Ok(self.now().checked_add(left))
    }

    #[cold]
    pub(crate) fn too_many_calls(&self) -> Failure {
        Failure::NotMade(hg_na::Error::Limit {
            what: "calls under way",
            limit: self.shared.settings.limits.calls_max as u64,
            remedy: "wait for some of them, or raise `Builder::calls_max`",
        })
    }

    /// Whether arguments of so many bytes may be made.
    pub(crate) fn check_large(&self, size: usize) -> Result<(), Failure> {
        let max = self.shared.settings.large_max;
        if size as u64 > max {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            return Err(Failure::NotMade(hg_na::Error::TooLong { len: size, max }));
        }
        Ok(())
    }

    /// Makes a call whose arguments, which begin at this place of the bytes, do not fit in a message, or hold frozen memory. `header`
    /// lacks its id.
    #[cold]
    pub(crate) fn start_large_call(
        &self,
        (peer, name): (Peer, &'static str),
        (bytes, first): (Vec<u8>, usize),
        frozen: Vec<Frozen>,
        mut header: Header,
        deadline: Option<Instant>,
    ) -> Result<OperationId, Failure> {
        let size = bytes.len() - first;
        self.check_large(size)?;
        let mut payload = Vec::new();
        if !frozen.is_empty() {
            header.frozen = true;
            payload = self.describe_frozen(&frozen)?;
        }
        let len = header.encoded_len() + payload.len() + size;
        header.bulk = self.is_large(len, self.shared.caps.max_unexpected);
        let mut lent = Lent { encoded: None, frozen };
        if header.bulk {
            let (local, claim) = self.offer_bytes((bytes, first), header.checksum)?;
            lent.encoded = Some(local);
            payload.extend(claim);
        } else {
            payload.extend_from_slice(&bytes[first..]);
        }
        self.start_lending_call((peer, name), (&payload, lent), header, deadline)
    }

    /// Makes a call that lends memory, which its payload describes. `header` lacks its id.
    fn start_lending_call(
        &self,
        (peer, name): (Peer, &'static str),
        (payload, lent): (&[u8], Lent),
        mut header: Header,
        deadline: Option<Instant>,
    ) -> Result<OperationId, Failure> {
        let start = header.encoded_len();
        let two_way = header.kind == Kind::Request;

        let mut state = self.enter_state().ok_or(hg_na::Error::Forked)?;
        if !two_way {
            state.protocol.kept.check_arguments(peer, lent.cost())?;
        }
        let context = state.protocol.context();
        let mut message =
            context.and_then(|it| it.message(peer, start + payload.len())).map_err(not_reserved)?;
        message.as_mut_slice()[start..].copy_from_slice(payload);
        // While `lent` is whole: it goes behind the lock, where its memory's keeper may do anything.
        state.protocol.operations.next_id().ok_or_else(|| self.too_many_calls())?;
        // Those of a call are kept with it; the port keeps those of a one-way call, which is over when it was sent.
        let (of_call, of_port) = if two_way { (Some(lent), None) } else { (None, Some(lent)) };
        let operations = &mut state.protocol.operations;
        let begun = operations.begin_call((peer, name), two_way, deadline, of_call);
        let id = begun.ok_or_else(|| self.too_many_calls())?;
        header.id = id.to_bits();
        header.encode(message.as_mut_slice());
        let before = state.protocol.deferred.len();
        let posted = state.protocol.post_call(id, peer, two_way, message);
        let Protocol { kept, deferred, .. } = &mut state.protocol;
        // What a call lends that was not made goes here: nobody may ever make progress.
        let refused = if posted.is_err() {
            (of_port, deferred.split_off(before))
        } else {
            if let Some(lent) = of_port {
                kept.arguments.insert((peer, id.to_bits()), lent, deadline, deferred);
            }
            (None, Vec::new())
        };
        drop(state);
        drop(refused);
        self.notify();
        posted.map(|()| id)
    }
}
