//! What a call learns from its transport: an answer, read, or a failure, in the caller's words.

use hg_na::{Failure as NaFailure, Message, Reached, Returned};

use super::{BulkAnswer, Operation, OperationId, Outcome};
use crate::{
    error::{Failure, Started, Status},
    header::{Header, Kind},
};

/// Whether the answer to a call is short and says nothing but that all went well.
#[inline(always)]
pub(super) fn is_plain_answer(id: OperationId, message: &Message) -> bool {
    let slot = message.slot();
    slot.is_some_and(|(bytes, len)| Header::is_plain_answer(bytes, len, id.to_bits()))
}

#[cold]
pub(super) fn read_answer(id: OperationId, call: &Operation, returned: &mut Returned) -> Outcome {
    let name = call.name;
    let Returned::Message(message) = returned else {
        return Outcome::Failed(Failure::Decode("the transport delivered no answer".to_owned()));
    };
    let (header, payload) = match Header::decode(message.as_slice()) {
        Ok(decoded) => decoded,
        Err(malformed) => {
            let failure = malformed.status().failure(name, malformed.to_string().as_bytes());
            return Outcome::Failed(failure.unwrap_or(Failure::Cancelled));
        }
    };
    if header.kind != Kind::Answer || header.id != id.to_bits() {
        let why = "the answer belongs to another request";
        return Outcome::Failed(Failure::Decode(why.to_owned()));
    }
    match Status::from_wire(header.code) {
        Some(status @ (Status::Ok | Status::HandlerError)) if header.bulk => {
            Outcome::Bulk(Box::new(BulkAnswer {
                peer: call.peer,
                id: header.id,
                deadline: call.deadline,
                message: std::mem::replace(message, Message::inline(0)),
                payload,
                handler_error: status == Status::HandlerError,
            }))
        }
        Some(Status::Ok) => answered(message, payload, false),
        Some(Status::HandlerError) => answered(message, payload, true),
        Some(status) => {
            let failure = status.failure(name, &message.as_slice()[payload..]);
            Outcome::Failed(failure.unwrap_or(Failure::Cancelled))
        }
        None => Outcome::Failed(Failure::Decode(format!("status {} is unknown", header.code))),
    }
}

#[inline]
fn answered(message: &mut Message, payload: usize, handler_error: bool) -> Outcome {
    let message = std::mem::replace(message, Message::from(Vec::new()));
    Outcome::Answered { message, payload, handler_error }
}

#[cold]
pub(super) fn transport_failure(failure: &NaFailure) -> Failure {
    let started = match failure.reached {
        Reached::Never => Started::No,
        Reached::Unknown => Started::Unknown,
    };
    Failure::of_transport(failure.error.clone(), started)
}
