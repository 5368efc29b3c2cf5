//! The operations that broken layers tell apart.

use hg_na::{Op, Peer, Tag};

/// What a layer remembers of an operation.
pub(crate) enum Kind {
    Request,
    Receive(Peer, Tag),
    Put,
    Other,
}

impl Kind {
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::SendUnexpected { .. } => Self::Request,
            Op::RecvExpected { from, tag } => Self::Receive(*from, *tag),
            Op::Put { .. } => Self::Put,
            _ => Self::Other,
        }
    }
}
