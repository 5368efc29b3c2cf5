//! An owner's verdict on a put or get, as it travels.
//!
//! | offset | size | field |
//! |-------:|-----:|-------|
//! |      0 |    4 | code: 0 done, 1 stale, 2 denied, 3 out of range, 4 cancelled, 5 in frames |
//! |      4 |    8 | denied: rights granted; out of range: size of the region |

use hg_na::{Error, Rights};

/// Bytes of a verdict.
pub const VERDICT_LEN: usize = 12;

/// How a transfer ended at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All bytes are where they belong.
    Ok,
    /// There is no such region (any more).
    Stale,
    /// The region has only these rights.
    Denied(Rights),
    /// The region has only so many bytes.
    OutOfRange(u64),
    /// Its initiator has given it up.
    Cancelled,
    /// Lent memory cannot be reached: the same again, in frames.
    InFrames,
}

impl Verdict {
    /// What an error of the owner's means to the initiator.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Denied { granted, .. } => Self::Denied(*granted),
            Error::OutOfRange { size, .. } => Self::OutOfRange(*size),
            _ => Self::Stale,
        }
    }

    /// The initiator's error, if it is one.
    #[must_use]
    pub fn error(self, needed: Rights, offset: u64, len: u64) -> Option<Error> {
        match self {
            Self::Ok => None,
            Self::Stale => Some(Error::StaleDescriptor),
            Self::Denied(granted) => Some(Error::Denied { granted, needed }),
            Self::OutOfRange(size) => Some(Error::OutOfRange { offset, len, size }),
            Self::Cancelled => Some(Error::Cancelled),
            Self::InFrames => Some(Error::Unsupported("memory that its owner does not reach")),
        }
    }

    /// The wire form.
    #[must_use]
    pub fn encode(self) -> [u8; VERDICT_LEN] {
        let (code, detail) = match self {
            Self::Ok => (0u32, 0),
            Self::Stale => (1, 0),
            Self::Denied(granted) => (2, u64::from(granted.bits())),
            Self::OutOfRange(size) => (3, size),
            Self::Cancelled => (4, 0),
            Self::InFrames => (5, 0),
        };
        let mut bytes = [0; VERDICT_LEN];
        bytes[..4].copy_from_slice(&code.to_le_bytes());
        bytes[4..].copy_from_slice(&detail.to_le_bytes());
        bytes
    }

    /// Reads the wire form.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (code, detail) = bytes.split_first_chunk::<4>()?;
        let detail = u64::from_le_bytes(detail.try_into().ok()?);
        match u32::from_le_bytes(*code) {
            0 => Some(Self::Ok),
            1 => Some(Self::Stale),
            2 => Some(Self::Denied(Rights::from_bits(u8::try_from(detail).ok()?)?)),
            3 => Some(Self::OutOfRange(detail)),
            4 => Some(Self::Cancelled),
            5 => Some(Self::InFrames),
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
            Verdict::InFrames,
        ] {
            assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
        }
        let mut bytes = Verdict::Denied(Rights::READ).encode();
        bytes[4] = 4;
        assert_eq!(Verdict::decode(&bytes), None);
        bytes[0] = 6;
        assert_eq!(Verdict::decode(&bytes), None);
        assert_eq!(Verdict::decode(&bytes[..11]), None);
    }
}
