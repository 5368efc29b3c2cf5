//! What an RPC's arguments and results look like on the wire: in words, and as a fingerprint in its id.
//!
//! The codecs do not describe what they write, so two sides that declare an RPC of one name differently could read an `(i64, u64)`
//! as `(f64, f64)`. Therefore an RPC's [`RpcId`] on the wire is 40 bits of its name and 24 of its signature: a
//! target that serves the name with another signature finds nothing under that id, sees that the bits of the name are known,
//! and answers with its own signature ([`crate::error::CallError::SignatureMismatch`]). A call pays nothing for it.
//!
//! A signature is what a `Deserialize` asks of the codec: order and width of all fields, names of the fields of structs and of
//! the variants of enums, in every depth. What changes no byte is no part of it: names of types, newtypes, whether text is
//! borrowed, boxed or owned. It is the same for every codec.
//!
//! # What cannot be traced
//! A type is traced by having it deserialize made-up values. One that refuses all of those (it checks more than its shape), panics,
//! asks what it is to read (`deserialize_any`), or has more parts than [`VISITS_MAX`] ends with a `?`, and what is behind that part is
//! not compared. So are parts of a type that contains itself: `...`.

mod shape;
#[cfg(test)]
mod tests;
mod trace;

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

pub use self::trace::VISITS_MAX;
use serde::Deserialize;

use crate::rpc_id::RpcId;

/// The signature of one RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    id: RpcId,
    words: Box<str>,
}

impl Signature {
    /// Traces the types of an RPC: its arguments, its result, its handler's error. Runs their `Deserialize`: takes microseconds, once ([`SignatureCell`]).
    #[must_use]
    pub fn of<A, O, E>(name: &str) -> Self
    where
        A: Deserialize<'static>,
        O: Deserialize<'static>,
        E: Deserialize<'static>,
    {
        let [args, output, error] = [trace::words::<A>(), trace::words::<O>(), trace::words::<E>()];
        let words = match error.as_str() {
            // It asks for nothing: there is none.
            "?" => format!("{args} -> {output}"),
            _ => format!("{args} -> result<{output}, {error}>"),
        };
        let id = RpcId::of_name(name).with_fingerprint(fingerprint(&words));
        Self { id, words: words.into_boxed_str() }
    }

    #[cfg(test)]
    pub(crate) fn new(id: RpcId, words: &str) -> Self {
        Self { id, words: words.into() }
    }

    /// In words: `(i64, str) -> result<bytes, enum{NotFound, Io(i32)}>`.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }

    /// The RPC's number on the wire.
    #[must_use]
    pub fn id(&self) -> RpcId {
        self.id
    }
}

/// Of which a [`RpcId`] takes the lower bits.
fn fingerprint(words: &str) -> u64 {
    let hash = RpcId::of_name(words).0;
    hash ^ hash >> 24 ^ hash >> 48
}

/// Where an RPC's signature is kept, once it was traced: one for each type that implements [`crate::rpc::Rpc`].
#[derive(Debug, Default)]
pub struct SignatureCell {
    /// The id, or 0 before it is known: at hand for every call.
    id: AtomicU64,
    signature: OnceLock<Signature>,
}

impl SignatureCell {
    /// Nothing is traced yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { id: AtomicU64::new(0), signature: OnceLock::new() }
    }

    /// The number on the wire of the RPC whose cell it is, which `trace` traces.
    #[inline]
    pub fn id(&self, trace: fn() -> Signature) -> RpcId {
        // Relaxed: the number is all that is read.
        match self.id.load(Ordering::Relaxed) {
            0 => self.trace_id(trace),
            id => RpcId(id),
        }
    }

    #[cold]
    #[inline(never)]
    fn trace_id(&self, trace: fn() -> Signature) -> RpcId {
        let id = self.signature(trace).id;
        self.id.store(id.0, Ordering::Relaxed); // Relaxed: as above.
        id
    }

    /// The signature of the RPC whose cell it is, which `trace` traces.
    pub fn signature(&self, trace: fn() -> Signature) -> &Signature {
        self.signature.get_or_init(trace)
    }
}
