//! What an RPC is to the rest of Hydrargyrum: a name, its hash, what travels both ways, a handler.
//!
//! `#[hg::rpc]` (package `hydrargyrum-macros`) writes the implementations of both traits:
//!
//! | trait     | who has it                                     | what it adds                       |
//! |-----------|------------------------------------------------|------------------------------------|
//! | [`Rpc`]   | every RPC, declared or with a body             | name, id, types: enough to call it |
//! | [`Serve`] | an RPC with a body (or `implements = ...`)     | the handler: enough to register it |
//!
//! # Natural types and wire types
//! Callers and handlers use natural types: `(&str, &[u8])`, `Vec<u8>`. Serde sees the wire types that
//! `pack` makes of them: the same tuple with byte slices as [`serde_bytes::Bytes`] and byte vectors as
//! [`serde_bytes::ByteBuf`], so that bytes move as one copy instead of one by one. The bytes on the
//! wire are the fields one after another, as of a tuple.

use std::{fmt, future::Future, pin::Pin};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// For the code that `#[hg::rpc]` writes.
#[doc(hidden)]
pub use serde_bytes;

pub use crate::{
    rpc_id::RpcId,
    signature::{Signature, SignatureCell},
};

/// A remote procedure: what it is called and what travels. Written by `#[hg::rpc]`.
///
/// The implementing type is a unit struct with the function's name, so that the name itself is the
/// value that is registered and called: `engine.call(add, &peer, (2, 3))`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an RPC",
    label = "not an RPC",
    note = "`#[hg::rpc]` on a function makes it one"
)]
pub trait Rpc: Copy + Send + Sync + 'static {
    /// The full name: `crate::module::function` unless `name = "..."` says otherwise.
    const NAME: &'static str;
    /// The hash of [`Rpc::NAME`], computed at compile time. On the wire it is [`Rpc::wire_id`].
    const ID: RpcId = RpcId::of_name(Self::NAME);

    /// What a caller passes: the tuple of the function's arguments, `&str` and `&[u8]` borrowed.
    type Args<'a>;
    /// [`Rpc::Args`] as serde sees them.
    type WireArgs<'a>: Serialize + Deserialize<'a>;
    /// What the function returns: the `T` of `Result<T, E>`, or the plain value.
    type Output: Send + 'static;
    /// [`Rpc::Output`] as serde sees it.
    type WireOutput: Serialize + DeserializeOwned + Send + 'static;
    /// The handler's own error: the `E` of `Result<T, E>`, or [`NoError`].
    type Error: Serialize + DeserializeOwned + Send + 'static;

    /// Arguments to their wire form; moves, never copies bytes.
    fn pack<'a>(args: Self::Args<'a>) -> Self::WireArgs<'a>;
    /// The inverse of [`Rpc::pack`].
    fn unpack<'a>(args: Self::WireArgs<'a>) -> Self::Args<'a>;
    /// A result to its wire form; moves, never copies bytes.
    fn pack_output(output: Self::Output) -> Self::WireOutput;
    /// The inverse of [`Rpc::pack_output`].
    fn unpack_output(output: Self::WireOutput) -> Self::Output;

    /// Where its signature is kept: a `static` of its own.
    fn signature_cell() -> &'static SignatureCell;

    /// What its arguments and results look like on the wire.
    #[must_use]
    fn signature() -> &'static Signature {
        Self::signature_cell().signature(signature_of::<Self>)
    }

    /// Its number on the wire: 40 bits of its name, 24 of its signature.
    #[inline]
    #[must_use]
    fn wire_id() -> RpcId {
        Self::signature_cell().id(signature_of::<Self>)
    }
}

fn signature_of<R: Rpc>() -> Signature {
    Signature::of::<R::WireArgs<'static>, R::WireOutput, R::Error>(R::NAME)
}

/// An RPC with a handler. `Cx` is the context of a request, a type of the engine's (`hg::Request`).
///
/// Written by `#[hg::rpc]` for functions with bodies: for the engine's type when the function takes
/// `&Request`, for every `Cx` otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no handler to register",
    label = "declared without a body, or not with `#[hg::rpc]`",
    note = "a function with a body is registered once it has the attribute `#[hg::rpc]`",
    note = "`serve` a declaration with a closure, or `register` a function with a body and `#[hg::rpc(implements = path::to::the_declaration)]`"
)]
pub trait Serve<Cx>: Rpc {
    /// Who runs it, and whether the answer comes later.
    const KIND: ServeKind;
    /// Whether the handler is given `cx`; what only that tells need not be found out otherwise. One that looks at it all the same finds
    /// who asks, and perhaps no deadline.
    const TAKES_CONTEXT: bool = true;

    /// Runs the handler on decoded arguments, and hands over what it gives. May panic: that is the handler's bug, and the
    /// caller of `serve` is who catches it.
    fn serve<A>(cx: &Cx, args: Self::WireArgs<'_>, to: A) -> A::Done
    where
        A: Responder<Self::Output, Self::Error>;
}

/// What can be an argument, a result or an error of an RPC. Every type that serde can write and read is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel",
    label = "not readable and writable by serde",
    note = "`#[derive(serde::Serialize, serde::Deserialize)]` makes a type of yours travel"
)]
pub trait Travels {}

impl<T: Serialize + DeserializeOwned> Travels for T {}

/// For the code that `#[hg::rpc]` writes: says of each type by itself whether it can travel.
#[doc(hidden)]
pub const fn travels<T: Travels>() {}

/// Which of the three kinds of handler an RPC has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServeKind {
    /// A plain function, run by the thread that progresses the engine. Answers [`Responder::now`].
    Plain,
    /// An `async fn`. Answers [`Responder::later`]; borrowed arguments were copied.
    Async,
    /// `#[hg::rpc(blocking)]`: a plain function that wants a thread of its own, which
    /// [`Serve::serve`] then blocks. Answers [`Responder::now`].
    Blocking,
}

/// What calling an async handler as a plain function gives, without any engine: in unit tests.
pub type LocalCall<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// Takes what a handler gives. The future of an `async fn` comes as the type that it is: it is put where there is room for it.
pub trait Responder<T, E> {
    /// What comes of it.
    type Done;

    /// The answer.
    fn now(self, result: Result<T, E>) -> Self::Done;

    /// A future of the answer, not polled yet. It owns everything that it needs.
    fn later<F>(self, future: F) -> Self::Done
    where
        F: Future<Output = Result<T, E>> + Send + 'static;
}

/// The error of a handler that returns a plain value: there is none, and none can be made.
///
/// A peer that claims to send one is answered by a decoding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoError {}

impl fmt::Display for NoError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for NoError {}

impl Serialize for NoError {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        match *self {}
    }
}

impl<'de> Deserialize<'de> for NoError {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("an error from an RPC that has none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_published_fnv_1a_vectors() {
        assert_eq!(RpcId::of_name(""), RpcId(0xcbf2_9ce4_8422_2325));
        assert_eq!(RpcId::of_name("a"), RpcId(0xaf63_dc4c_8601_ec8c));
        assert_eq!(RpcId::of_name("foobar"), RpcId(0x8594_4171_f739_67e8));
    }

    #[test]
    fn an_id_is_printed_as_sixteen_hexadecimal_digits() {
        assert_eq!(RpcId(0x1f).to_string(), "000000000000001f");
        assert_eq!(format!("{:?}", RpcId(0x1f)), "RpcId(000000000000001f)");
    }
}
