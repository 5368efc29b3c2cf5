//! Calls whose last argument, a byte string, was written where it is sent from, with room in front for the rest.

use hg_core::{
    codec::{self, Codec as _, CodecError},
    error::Failure,
    header::Kind,
    operations::OperationId,
    rpc::Rpc,
};
use hg_na::{INLINE_MAX, Message};

use crate::{
    CallOptions, Engine, OwnedCall, Peer,
    failure::{forked, unencodable},
    port::Port,
};

impl Engine {
    /// Bytes that a message of [`Engine::call_in_place`] begins with, for such arguments, of which the last is an empty
    /// byte string. `None`: the codec of this build cannot do that.
    #[must_use]
    pub fn room_in_place<R: Rpc>(&self, rpc: R, args: R::Args<'_>) -> Option<usize> {
        self.room_in_place_with(rpc, args, CallOptions::default())
    }

    /// The same for a message of [`Engine::call_in_place_with`].
    #[must_use]
    pub fn room_in_place_with<R: Rpc>(
        &self,
        rpc: R,
        args: R::Args<'_>,
        options: CallOptions,
    ) -> Option<usize> {
        let _: R = rpc;
        let wire = R::pack(args);
        let mut encoded = hg_bulk::zeroed(codec::Default::size(&wire).ok()? as u64).ok()?;
        codec::Default::encode(&wire, &mut encoded).ok()?;
        let mut header = self.port.header_of::<R>(Kind::Request, &options);
        // Of any deadline: its length is all that counts.
        header.remaining_ns = options.deadline.map(|_| u64::MAX);
        codec::Default::lengthen(&mut encoded, 1).then_some(header.encoded_len() + encoded.len())
    }

    /// Calls an RPC whose last argument was written behind the room that it needs ([`Engine::room_in_place`]): it is
    /// not copied again on its way to the transport. In `args` it is empty. Arguments that are longer than a message are
    /// pulled from where they were written.
    ///
    /// A message that was not begun with that room gives a call that has failed.
    pub fn call_in_place<R: Rpc>(
        &self,
        rpc: R,
        target: &Peer,
        args: R::Args<'_>,
        message: Vec<u8>,
    ) -> OwnedCall<R> {
        self.call_in_place_with(rpc, target, args, message, CallOptions::default())
    }

    /// The same with a deadline, or another option. Those are given to [`Engine::room_in_place_with`], too.
    pub fn call_in_place_with<R: Rpc>(
        &self,
        rpc: R,
        target: &Peer,
        args: R::Args<'_>,
        message: Vec<u8>,
        options: CallOptions,
    ) -> OwnedCall<R> {
        let _: R = rpc;
        let (port, made) = self.begin(target, |port, target| {
            port.start_call_in_place::<R>(target, args, message, options)
        });
        OwnedCall::start_owned(port, made)
    }
}

impl Port {
    fn start_call_in_place<R: Rpc>(
        &self,
        peer: hg_na::Peer,
        args: R::Args<'_>,
        mut bytes: Vec<u8>,
        options: CallOptions,
    ) -> Result<OperationId, Box<Failure>> {
        let mut header = self.header_of::<R>(Kind::Request, &options);
        let deadline = self.starting_deadline(options.deadline, &mut header)?;
        let wire = R::pack(args);
        let unencodable = |error| unencodable(R::NAME, &error);
        let size = codec::Default::size(&wire).map_err(unencodable)?;
        let start = header.encoded_len();
        let tail = bytes.len().saturating_sub(start + size);
        let room = bytes
            .get_mut(start..start + size)
            .ok_or_else(|| unencodable(CodecError::TooLong { room: 0 }))?;
        codec::Default::encode(&wire, room).map_err(unencodable)?;
        drop(wire); // A user's `Drop` may panic: while nothing was begun.
        if tail > 0 && !codec::Default::lengthen(room, tail) {
            let why = "its last argument is no empty byte string";
            return Err(Failure::Decode(format!("`{}`: {why}", R::NAME)).into());
        }
        if self.is_large(bytes.len(), self.shared.caps.max_unexpected) {
            let (whose, bytes) = ((peer, R::NAME), (bytes, start));
            return Ok(self.start_large_call(whose, bytes, Vec::new(), header, deadline)?);
        }
        let mut message =
            if bytes.len() <= INLINE_MAX { Message::copied(&bytes) } else { Message::from(bytes) };
        let state = self.enter_state().ok_or_else(forked)?;
        self.post_call(state, (peer, R::NAME), (header, start), deadline, &mut message)
    }
}
