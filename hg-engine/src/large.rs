//! Arguments and results beyond one message: they travel by bulk, and nobody has to know.
//!
//! ```text
//! origin                                        target
//! registers the encoded arguments
//! request with their descriptor (flag BULK) --> waits for its memory budget, pulls, runs the handler
//!                                           <-- ArgumentsTaken, for one-way calls only
//!                                               registers the encoded result
//!                                           <-- answer with its descriptor (flag BULK)
//! pulls, decodes
//! ResultTaken                               --> frees the result
//! ```
//! The payload of such a message is 4 bytes of CRC32C of the bytes to pull (0 unless checksums are on),
//! then the descriptor. Memory goes back in every case:
//!
//! | memory | freed when |
//! |---|---|
//! | arguments of a call | its outcome was taken, or its handle dropped |
//! | arguments of a one-way call | taken by the target, the target is gone, or the deadline has passed |
//! | result | taken, or not wanted (`ResultTaken`), the call was cancelled, the origin is gone |

use hg_bulk::Descriptor;
use hg_na::Error;

/// Bytes of the checksum before the descriptor.
const CHECKSUM_LEN: usize = 4;

/// What a message says about bytes to pull.
pub(crate) struct Claim {
    checksum: u32,
    pub(crate) descriptor: Descriptor,
}

impl Claim {
    pub(crate) fn read(payload: &[u8]) -> Result<Self, Error> {
        let Some((checksum, descriptor)) = payload.split_first_chunk::<CHECKSUM_LEN>() else {
            return Err(Error::BadDescriptor("it is cut short"));
        };
        let descriptor = Descriptor::decode(descriptor)?;
        Ok(Self { checksum: u32::from_le_bytes(*checksum), descriptor })
    }

    /// Compares what was pulled with what was said; 0 says nothing.
    pub(crate) fn check(&self, bytes: &[u8], wanted: bool) -> Result<(), &'static str> {
        if wanted && crc32c::crc32c(bytes) != self.checksum {
            return Err("the checksum of the bytes pulled is wrong");
        }
        Ok(())
    }
}

/// A sentence for whoever wanted to send more than this method of the builder allows.
pub(crate) fn too_large(what: &str, len: u64, (max, limit): (u64, &str)) -> String {
    format!("{what}: {len} bytes are over the limit of {max} bytes (`Builder::{limit}`)")
}

/// Why a result that has come is not taken.
pub(crate) fn no_memory(error: &hg_na::Error) -> String {
    format!(
        "its result does not fit here: {error}; let it be pushed to memory that lies ready, or answer with a descriptor"
    )
}
