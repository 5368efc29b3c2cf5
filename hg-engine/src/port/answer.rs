//! Answers, encoded to where they leave from.

use hg_bulk::Local;
use hg_core::{
    codec::{self, Codec as _},
    error::{Status, bounded_text},
    header::Header,
    protocol::{Protocol, status_message},
};
use hg_na::{Error, Memory, Message, Rights};
use serde::Serialize;

use super::Port;
use crate::large::{Bound, check_len};

/// A value as an answer: straight into the outgoing message.
#[inline(always)]
pub(crate) fn encode_value<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    value: T,
    answer: &mut Message,
) {
    let start = header.encoded_len();
    let why = match codec::Default::size(&value) {
        Ok(size) if start + size <= port.shared.caps.short_expected => {
            let bytes = answer.make_inline(start + size);
            match codec::Default::encode(&value, &mut bytes[start..]) {
                Ok(_) => return header.encode_in(start, bytes),
                Err(error) => unencodable(&error),
            }
        }
        Ok(size) => match encode_long_value(port, origin, header, (value, size), answer) {
            Ok(()) => return,
            Err(why) => why,
        },
        Err(error) => unencodable(&error),
    };
    *answer = answer_why_not(&header, &why);
}

/// The same for the handler's own error.
#[inline(never)]
pub(crate) fn encode_error<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    error: T,
    answer: &mut Message,
) {
    encode_value(port, origin, header, error, answer);
}

#[cold]
fn answer_why_not(header: &Header, why: &str) -> Message {
    status_message(header.id, Status::Decode, bounded_text(why), header.checksum)
}

#[cold]
fn unencodable(error: &codec::CodecError) -> String {
    format!("the result cannot be encoded: {error}")
}

/// A value that needs memory of the transport's, or more than a message.
#[inline(never)]
fn encode_long_value<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: Header,
    (value, size): (T, usize),
    answer: &mut Message,
) -> Result<(), String> {
    let start = header.encoded_len();
    if port.is_large(start + size, port.shared.caps.max_expected) {
        *answer = offer(port, origin, &header, (value, size));
        return Ok(());
    }
    *answer = reserve_answer(port, origin, start + size)?;
    let bytes = answer.as_mut_slice();
    codec::Default::encode(&value, &mut bytes[start..]).map_err(|error| unencodable(&error))?;
    header.encode(bytes);
    Ok(())
}

#[cold]
fn reserve_answer(port: &Port, origin: hg_na::Peer, len: usize) -> Result<Message, String> {
    let mut state = port.enter_state().ok_or_else(|| Error::Forked.to_string())?;
    let context = state.protocol.context().map_err(|error| error.to_string())?;
    let reserved = context.message(origin, len);
    reserved.map_err(|error| format!("the result cannot be sent: {error}"))
}

/// A result that does not fit in a message, as an answer that says where it is.
#[cold]
pub(crate) fn offer<T: Serialize>(
    port: &Port,
    origin: hg_na::Peer,
    header: &Header,
    (value, size): (T, usize),
) -> Message {
    let refused =
        |status, text: &str| status_message(header.id, status, bounded_text(text), header.checksum);
    let check = |bound| check_len(&port.shared.settings, "the result", size as u64, bound);
    if let Err(why) = check(Bound::Each).and_then(|()| check(Bound::Held)) {
        return refused(Status::Rejected, &why);
    }
    let mut bytes = match hg_bulk::zeroed(size as u64) {
        Ok(bytes) => bytes,
        Err(error) => {
            return refused(Status::Rejected, &format!("the result cannot be encoded: {error}"));
        }
    };
    if let Err(error) = codec::Default::encode(&value, &mut bytes) {
        return refused(Status::Decode, &format!("the result cannot be encoded: {error}"));
    }
    drop(value); // A user's `Drop` may panic: while nothing is kept.
    let (local, payload) = match port.offer_bytes((bytes, 0), header.checksum) {
        Ok(offered) => offered,
        Err(error) => {
            return refused(Status::Rejected, &format!("the result cannot be offered: {error}"));
        }
    };
    let header = Header { bulk: true, ..*header };
    let message = Message::from(header.message(&payload));

    let Some(mut state) = port.enter_state() else {
        return refused(Status::Rejected, &Error::Forked.to_string());
    };
    if !state.is_open() || state.protocol.serves.is_cancelled(origin, header.id) {
        drop(state);
        return refused(Status::Cancelled, "");
    }
    if !state.protocol.kept.results.admits(origin, local.len()) {
        drop(state);
        let text = "too many large results wait to be taken (`Builder::large_in_service_max`)";
        return refused(Status::Rejected, text);
    }
    let Protocol { kept, deferred, .. } = &mut state.protocol;
    kept.results.insert((origin, header.id), local.into(), None, deferred);
    message
}

impl Port {
    /// Registers encoded bytes, which begin at `start`, for a peer to pull, and describes them. They stay where they are.
    pub(crate) fn offer_bytes(
        &self,
        (bytes, start): (Vec<u8>, usize),
        checksum: bool,
    ) -> Result<(Local, Vec<u8>), Error> {
        let sum = if checksum { crc32c::crc32c(&bytes[start..]) } else { 0 };
        let local = self.register(Memory::tail(bytes, start), Rights::READ)?;
        let descriptor = local.descriptor(self.address.scheme());
        let payload = [&sum.to_le_bytes()[..], descriptor.as_bytes()].concat();
        Ok((local, payload))
    }

    /// Whether something of this encoded length is to travel by bulk.
    #[inline]
    pub(crate) fn is_large(&self, message_len: usize, message_max: usize) -> bool {
        message_len > message_max && self.shared.caps.one_sided
    }
}
