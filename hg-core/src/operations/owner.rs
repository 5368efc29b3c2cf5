//! Whose an operation of the transport is, as a token says it.

use hg_na::{QUIET, Token};

use super::{Half, OperationId};

/// What a token says: whose operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A call's.
    Call(OperationId, Half),
    /// A transfer's.
    Transfer(OperationId),
    /// Nobody's: answers and control messages look after themselves.
    Nobody,
}

const SEND_BIT: Token = 1 << 60;
const RECEIVE_BIT: Token = 1 << 61;
const TRANSFER_BITS: Token = SEND_BIT | RECEIVE_BIT;

impl Owner {
    /// As a token.
    #[inline]
    #[must_use]
    pub fn token(self) -> Token {
        match self {
            Self::Call(id, Half::Send) => id.to_bits() | SEND_BIT,
            Self::Call(id, Half::Receive) => id.to_bits() | RECEIVE_BIT,
            Self::Transfer(id) => id.to_bits() | TRANSFER_BITS,
            Self::Nobody => 0,
        }
    }

    /// As a token of a send whose success is of no interest: the answer tells.
    #[inline]
    #[must_use]
    pub fn quiet_token(self) -> Token {
        self.token() | QUIET
    }

    /// From a token of ours.
    #[inline]
    #[must_use]
    pub fn of(token: Token) -> Self {
        match token & (SEND_BIT | RECEIVE_BIT) {
            SEND_BIT => Self::Call(OperationId::from_bits(token), Half::Send),
            RECEIVE_BIT => Self::Call(OperationId::from_bits(token), Half::Receive),
            TRANSFER_BITS => Self::Transfer(OperationId::from_bits(token)),
            _ => Self::Nobody,
        }
    }
}
