//! Frozen memory among the arguments of a call: lent by the origin, seen or pulled by the target before the handler runs.
//!
//! ```text
//! origin                                        target
//! registers the memory, once for all calls
//! request with its descriptors (flag FROZEN) -> maps it, once for all calls; where it cannot, waits for its
//!                                               memory budget and pulls; decodes, runs the handler
//!                                           <-- ArgumentsTaken, for one-way calls only
//! ```
//! | bytes | payload of such a message |
//! |---:|---|
//! | 1 | count of descriptors, not 0 |
//! | ... | each: length `u16`, then an [`hg_bulk::Descriptor`] |
//! | ... | the encoded arguments, with numbers in place of the memory; or what says where they are (flag BULK) |
//!
//! The origin keeps the memory registered as long as there is a clone of it, and the call has one ([`hg_core::kept::Lent`]).

use hg_bulk::{Descriptor, Local};
use hg_core::error::Failure;
use hg_na::{Error, Frozen, Rights};

use crate::port::Port;

/// Pieces of frozen memory among the arguments of one call.
const FROZEN_MAX: usize = 64;

impl Port {
    /// Registers what was not registered before; the beginning of the payload.
    pub(crate) fn describe_frozen(&self, frozen: &[Frozen]) -> Result<Vec<u8>, Failure> {
        let count = u8::try_from(frozen.len()).ok().filter(|it| usize::from(*it) <= FROZEN_MAX);
        let too_many = Error::Limit {
            what: "pieces of frozen memory among the arguments of one call",
            limit: FROZEN_MAX as u64,
            remedy: "make fewer pieces of them, or more calls",
        };
        let mut payload = vec![count.ok_or(too_many)?];
        for memory in frozen {
            self.check_large(memory.len())?;
            if memory.bytes().as_slice().is_none() {
                return Err(Failure::NotMade(Error::Forked)); // This process did not inherit it.
            }
            let register = |memory| self.register(memory, Rights::READ);
            let local = memory.made_for::<Local, Error>(self.shared.id, register)?;
            let descriptor = local.descriptor(self.address.scheme());
            let bytes = descriptor.as_bytes();
            let len = u16::try_from(bytes.len()).expect("a region's descriptor is short");
            payload.extend(len.to_le_bytes());
            payload.extend(bytes);
        }
        Ok(payload)
    }
}

/// Reads what a payload begins with, and gives the rest of it.
pub(crate) fn read(payload: &[u8]) -> Result<(Vec<Descriptor>, &[u8]), Error> {
    let cut_short = Error::BadDescriptor("it is cut short");
    let (count, mut rest) = payload.split_first().ok_or(cut_short.clone())?;
    if !(1..=FROZEN_MAX).contains(&usize::from(*count)) {
        return Err(Error::BadDescriptor("there are none of frozen memory, or too many"));
    }
    let mut descriptors = Vec::with_capacity(usize::from(*count));
    for _ in 0..*count {
        let (len, more) = rest.split_first_chunk().ok_or(cut_short.clone())?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (bytes, more) = more.split_at_checked(len).ok_or(cut_short.clone())?;
        descriptors.push(Descriptor::decode(bytes)?);
        rest = more;
    }
    Ok((descriptors, rest))
}
