//! How lent memory is reached, on the wire.

/// Bytes of a grant.
pub const GRANT_LEN: usize = 16;

/// What a peer's memory is reached by, as that peer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Where it starts.
    pub address: u64,
    /// What the peer's card wants to see.
    pub key: u64,
}

impl Grant {
    /// The wire form: address, key.
    #[must_use]
    pub fn encode(self) -> [u8; GRANT_LEN] {
        let mut bytes = [0; GRANT_LEN];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// The same, some bytes further on.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        Self { address: self.address.wrapping_add(offset), ..self }
    }
}
