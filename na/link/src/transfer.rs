//! A put or get as it was posted, and what of it travels.

use std::{any::Any, sync::Arc};

use hg_na::{
    Completion, Error, LocalSlice, OpId, Reached, RegionState, RemoteSlice, Returned, Rights, Token,
};
use hg_na_parts::regions::{CLAIM_LEN, Claim, Entry, ServedRegion};

use crate::{grant::Grant, sending::ended};

/// Bytes of an [`Access`].
pub const ACCESS_LEN: usize = CLAIM_LEN + 16;

/// What a put or get names, as it travels: claim, offset, length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Names the region, and proves that its owner has told of it.
    pub claim: Claim,
    /// Where in the region.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Access {
    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; ACCESS_LEN] {
        let mut bytes = [0; ACCESS_LEN];
        bytes[..CLAIM_LEN].copy_from_slice(&self.claim.encode());
        bytes[CLAIM_LEN..CLAIM_LEN + 8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[CLAIM_LEN + 8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads the wire form; nothing may follow it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (claim, rest) = bytes.split_at_checked(CLAIM_LEN)?;
        let (offset, len) = rest.split_first_chunk::<8>()?;
        let (offset, len) = (u64::from_le_bytes(*offset), u64::from_le_bytes(len.try_into().ok()?));
        Some(Self { claim: Claim::decode(claim).ok()?, offset, len })
    }
}

/// A put or get of this side's.
#[derive(Debug)]
pub struct Transfer {
    /// Names its operation.
    pub id: OpId,
    /// Its poster's.
    pub token: Token,
    /// A put: bytes leave.
    pub is_put: bool,
    /// This side's memory.
    pub slice: LocalSlice,
    /// The same, as it is reached.
    pub entry: Arc<Entry>,
    /// The owner's.
    pub access: Access,
    /// Its memory cannot be lent to the owner.
    pub in_frames: bool,
    /// Its owner was told of it before, and has perhaps moved some of it.
    pub(crate) has_begun: bool,
    /// Memory that is lent to the owner, who is still to be told of it.
    pub lent: Option<Loan>,
}

/// Memory that the transport has lent.
#[derive(Debug, Clone, Copy)]
pub struct Loan {
    /// The transport's name of it.
    pub name: usize,
    /// What the owner needs.
    pub grant: Grant,
    /// How often its region had been abandoned before it was shared for that ([`Entry::times_left`]).
    pub times_left: u64,
}

impl Transfer {
    /// One that [`check`] has allowed.
    #[must_use]
    pub fn new(
        id: OpId,
        token: Token,
        is_put: bool,
        slice: LocalSlice,
        remote: &RemoteSlice,
    ) -> Self {
        let claim = Claim::decode(remote.descriptor().opaque()).expect("checked before");
        let entry = served(slice.region().as_ref()).expect("checked before").entry();
        let entry = Arc::clone(entry);
        let access = Access { claim, offset: remote.offset(), len: remote.len() };
        let (in_frames, has_begun, lent) = (false, false, None);
        Self { id, token, is_put, slice, entry, access, in_frames, has_begun, lent }
    }

    /// Whether either side's memory is a device's: its bytes travel over lent memory, or not at all.
    #[must_use]
    pub fn must_be_lent(&self) -> bool {
        self.entry.is_on_device() || self.access.claim.is_on_device()
    }

    /// What the owner must have granted.
    pub(crate) fn needed(&self) -> Rights {
        if self.is_put { Rights::WRITE } else { Rights::READ }
    }

    /// What its owner knows of it while it waits to be told of it.
    pub(crate) fn reached(&self) -> Reached {
        if self.has_begun { Reached::Unknown } else { Reached::Never }
    }

    pub(crate) fn end(self, failure: Option<(Error, Reached)>) -> Completion {
        ended(self.id, self.token, failure, Returned::Slice(self.slice))
    }
}

/// Whether a put or get can be posted at all.
///
/// # Errors
/// What is wrong with its memory.
pub fn check(local: &LocalSlice, remote: &RemoteSlice, is_put: bool) -> Result<(), Error> {
    let (offset, len) = (remote.offset(), remote.len());
    if local.len() != len {
        return Err(Error::OutOfRange { offset, len, size: local.len() });
    }
    Claim::decode(remote.descriptor().opaque())?;
    let Some(region) = served(local.region().as_ref()) else {
        return Err(Error::Unsupported("memory that was registered with another transport"));
    };
    if !is_put && !region.is_writable() {
        return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
    }
    Ok(())
}

fn served(region: &dyn RegionState) -> Option<&ServedRegion> {
    (region as &dyn Any).downcast_ref()
}
