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

use crate::settings::Settings;

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

/// Which limit of a piece of so many bytes is at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Of each argument and result.
    Each,
    /// Of what is held at a time for one peer: a half of what is held for all ([`hg_core::shares`]).
    Held,
}

/// Whether so many bytes are ever taken.
///
/// # Errors
/// A sentence for whoever wanted to send more than a method of the builder allows, which it names.
pub(crate) fn check_len(
    settings: &Settings,
    what: &str,
    len: u64,
    bound: Bound,
) -> Result<(), String> {
    let (max, limit) = match bound {
        Bound::Each => (settings.large_max, "`Builder::large_max`"),
        Bound::Held => {
            let all = settings.limits.results_bytes_max;
            (all.div_ceil(2), "a half of `Builder::large_in_service_max`, for one peer")
        }
    };
    if len <= max {
        return Ok(());
    }
    Err(format!("{what}: {len} bytes are over the limit of {max} bytes ({limit})"))
}

/// Why a result that has come is not taken.
pub(crate) fn no_memory(error: &hg_na::Error) -> String {
    format!(
        "its result does not fit here: {error}; let it be pushed to memory that lies ready, or answer with a descriptor"
    )
}
