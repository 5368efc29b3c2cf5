//! What tests and the fuzzer ask of region tables beyond what the transport does.

use hg_na::{Error, Rights};

#[cfg(feature = "fuzzing")]
use super::OwnedTable;
use super::PeerTable;
use crate::{
    descriptor::RegionClaim,
    os::mapping::Shared,
    region::{
        pins::{self, Pin},
        plan::Run,
    },
    sync::{AtomicU32, AtomicU64},
};

// SAFETY:
// - an atomic of fixed width: any bit pattern, no pointer.
unsafe impl Shared for AtomicU64 {}

#[cfg(feature = "fuzzing")]
impl OwnedTable {
    /// Any word of it, for a fuzzer that overwrites it.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        self.mapping.view(at * size_of::<u64>())
    }
}

impl PeerTable {
    /// Pins a region in `words` (this side's own) and appends the runs of a range of it to `into`.
    ///
    /// # Errors
    /// As [`PeerTable::admit`] and [`PeerTable::append_runs`].
    pub(crate) fn resolve<'a>(
        &self,
        claim: &RegionClaim,
        needed: Rights,
        range: (u64, u64),
        words: &'a [AtomicU64],
        into: &mut Vec<Run>,
    ) -> Result<Pin<'a>, Error> {
        let heed = AtomicU32::new(0);
        pins::heed(&heed);
        let (pin, _sharing) = self.admit(claim, needed, range, (words, &heed))?;
        self.append_runs(claim.index, range, into)?;
        Ok(pin)
    }
}
