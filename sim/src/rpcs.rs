//! The remote procedures of a story: one for each kind of handler. What a handler does, the story says: a call carries its
//! number only, and whatever bytes make it as long as it is to be.

use std::fmt;

use hg_bulk::Descriptor;
use hg_core::{rpc::Rpc, signature::SignatureCell};
use hg_na::Frozen;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

/// Which kind of handler a call goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Run by whoever makes progress.
    Plain,
    /// A future, polled by whoever makes progress.
    Async,
    /// Is given an answer to send when it likes.
    Later,
    /// Run by another thread.
    Blocking,
}

/// What travels to the target.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Which call of the story it is.
    pub(crate) call: u64,
    /// Memory of the caller's, to pull from or to push to.
    pub(crate) memory: Option<Descriptor>,
    pub(crate) frozen: Option<Frozen>,
    pub(crate) bytes: ByteBuf,
}

/// What travels back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answered {
    pub(crate) call: u64,
    /// The process that has served it.
    pub(crate) by: u64,
    pub(crate) poison: Poison,
    pub(crate) bytes: ByteBuf,
}

/// What panics when it is encoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Poison(pub(crate) bool);

impl Serialize for Poison {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0 {
            panic_quietly("an answer that panics when it is encoded");
        }
        0u8.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Poison {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        u8::deserialize(from).map(|_| Self(false))
    }
}

/// A panic that nobody is told of.
pub(crate) fn panic_quietly(why: &'static str) -> ! {
    std::panic::resume_unwind(Box::new(why))
}

/// The handler's own error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused(pub(crate) u64);

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "call {} was refused", self.0)
    }
}

macro_rules! rpc {
    ($name:ident, $text:literal) => {
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name;

        impl Rpc for $name {
            const NAME: &'static str = $text;
            type Args<'a> = Asked;
            type WireArgs<'a> = Asked;
            type Output = Answered;
            type WireOutput = Answered;
            type Error = Refused;

            fn pack<'a>(args: Self::Args<'a>) -> Self::WireArgs<'a> {
                args
            }

            fn unpack<'a>(args: Self::WireArgs<'a>) -> Self::Args<'a> {
                args
            }

            fn pack_output(output: Answered) -> Answered {
                output
            }

            fn unpack_output(output: Answered) -> Answered {
                output
            }

            fn signature_cell() -> &'static SignatureCell {
                static CELL: SignatureCell = SignatureCell::new();
                &CELL
            }
        }
    };
}

rpc!(Plain, "sim::plain");
rpc!(Async, "sim::async");
rpc!(Later, "sim::later");
rpc!(Blocking, "sim::blocking");
