//! An owner's verdict on a put or get, as it travels.
//!
//! | offset | size | field |
//! |-------:|-----:|-------|
//! |      0 |    4 | code: 0 done, 1 stale, 2 denied, 3 out of range, 4 cancelled |
//! |      4 |    8 | denied: rights granted; out of range: size of the region |

use hg_na::{Error, Rights};

use crate::frame::VERDICT_LEN;

/// How a transfer ended at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    Stale,
    Denied(Rights),
    OutOfRange(u64),
    Cancelled,
}

impl Verdict {
    /// What an error of the owner's means to the initiator.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Denied { granted, .. } => Self::Denied(*granted),
            Error::OutOfRange { size, .. } => Self::OutOfRange(*size),
            _ => Self::Stale,
        }
    }

    /// The initiator's error, if it is one.
    pub(crate) fn error(self, needed: Rights, offset: u64, len: u64) -> Option<Error> {
        match self {
            Self::Ok => None,
            Self::Stale => Some(Error::StaleDescriptor),
            Self::Denied(granted) => Some(Error::Denied { granted, needed }),
            Self::OutOfRange(size) => Some(Error::OutOfRange { offset, len, size }),
            Self::Cancelled => Some(Error::Cancelled),
        }
    }

    /// The wire form.
    pub(crate) fn encode(self) -> [u8; VERDICT_LEN] {
        let (code, detail) = match self {
            Self::Ok => (0u32, 0),
            Self::Stale => (1, 0),
            Self::Denied(granted) => (2, u64::from(granted.bits())),
            Self::OutOfRange(size) => (3, size),
            Self::Cancelled => (4, 0),
        };
        let mut bytes = [0; VERDICT_LEN];
        bytes[..4].copy_from_slice(&code.to_le_bytes());
        bytes[4..].copy_from_slice(&detail.to_le_bytes());
        bytes
    }

    /// Reads the wire form.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (code, detail) = bytes.split_first_chunk::<4>()?;
        let detail = u64::from_le_bytes(detail.try_into().ok()?);
        match u32::from_le_bytes(*code) {
            0 => Some(Self::Ok),
            1 => Some(Self::Stale),
            2 => Some(Self::Denied(Rights::from_bits(u8::try_from(detail).ok()?)?)),
            3 => Some(Self::OutOfRange(detail)),
            4 => Some(Self::Cancelled),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_their_wire_form_and_others_are_refused() {
        for verdict in [
            Verdict::Ok,
            Verdict::Stale,
            Verdict::Denied(Rights::READ),
            Verdict::OutOfRange(u64::MAX),
            Verdict::Cancelled,
        ] {
            assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
        }
        let mut bytes = Verdict::Denied(Rights::READ).encode();
        bytes[4] = 4;
        assert_eq!(Verdict::decode(&bytes), None);
        bytes[0] = 5;
        assert_eq!(Verdict::decode(&bytes), None);
        assert_eq!(Verdict::decode(&bytes[..11]), None);
    }
}
