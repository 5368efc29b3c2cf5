//! The number of an RPC.

use std::fmt;

/// An RPC's number: the 64-bit hash of its full name, never 0. On the wire its lower 24 bits are the fingerprint of the RPC's
/// signature ([`crate::signature`]): they catch all but one of 16 million changes, and 40 bits tell 1,000 names apart in all but
/// one of two million cases, which a registry refuses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RpcId(pub u64);

impl RpcId {
    /// The id of an RPC called `name`: FNV-1a, 64 bits; 0 becomes the hash's offset basis.
    ///
    /// # Examples
    /// ```
    /// use hg_core::rpc::RpcId;
    /// const ADD: RpcId = RpcId::of_name("calculator::add");
    /// assert_ne!(ADD, RpcId::of_name("calculator::sub"));
    /// ```
    #[must_use]
    pub const fn of_name(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut hash = FNV_OFFSET_BASIS;
        let mut at = 0;
        while at < bytes.len() {
            // A byte widens without loss; `u64::from` is not const.
            hash = (hash ^ bytes[at] as u64).wrapping_mul(FNV_PRIME);
            at += 1;
        }
        if hash == 0 { Self(FNV_OFFSET_BASIS) } else { Self(hash) }
    }

    /// The same RPC with this signature: the lower bits are the fingerprint's.
    #[must_use]
    pub const fn with_fingerprint(self, fingerprint: u64) -> Self {
        let id = (self.0 & !FINGERPRINT) | (fingerprint & FINGERPRINT);
        // 0 is no RPC.
        if id == 0 { Self(FINGERPRINT + 1) } else { Self(id) }
    }

    /// Whether both are of one name, whatever their signatures.
    #[must_use]
    pub const fn has_name_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & !FINGERPRINT == 0
    }
}

impl fmt::Display for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RpcId({self})")
    }
}

/// Bits of an id that are its signature's.
const FINGERPRINT: u64 = (1 << 24) - 1;

const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
