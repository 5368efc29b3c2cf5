//! The name of a group, which is its secret, too.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// 128 random bits. Whoever knows them, and is at a member's address, can join: give them to members only. Never printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupId(pub(crate) [u64; 2]);

impl GroupId {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(Error::Random)?;
        Ok(Self::from_bytes(bytes))
    }

    /// One that was told.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        let [low, high] = [number, number >> 64].map(|it| it & u128::from(u64::MAX));
        let half = |it| u64::try_from(it).expect("masked");
        Self([half(low), half(high)])
    }

    /// To be told.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.0[1]) << 64 | u128::from(self.0[0])).to_le_bytes()
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("GroupId")
    }
}
