//! Keys of lent memory, where this side chooses them.

use hg_na_parts::regions;
use libfabric_sys as sys;

use crate::fabric::Fault;

/// Keys of the frames are not above this.
const FRAME_KEYS: u64 = 2;

/// A key that nobody guesses, of so many bytes at most. Never one of the frames' ([`Endpoint::open`]), nor what stands for none.
pub(super) fn random_key(size: usize) -> Result<u64, Fault> {
    let bits = u32::try_from(size.clamp(1, 8) * 8).unwrap_or(u64::BITS);
    loop {
        let random = regions::random().map_err(|_| Fault::new("getrandom", nix::libc::EAGAIN))?;
        let key = u64::from_le_bytes(*random.first_chunk().expect("16 bytes hold 8"));
        let key = key >> (u64::BITS - bits);
        if key > FRAME_KEYS && key != sys::KEY_NOTAVAIL {
            return Ok(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_all_bytes_that_there_are_and_none_is_a_frame_s() {
        for (size, most) in [(1, 0xFF), (2, 0xFFFF), (4, u64::from(u32::MAX)), (8, u64::MAX)] {
            let keys: Vec<_> = (0..200).map(|_| random_key(size).unwrap()).collect();
            assert!(keys.iter().all(|key| *key > FRAME_KEYS && *key <= most), "{size}: {keys:?}");
            assert!(keys.iter().any(|key| *key > most / 2), "{size}: {keys:?}");
        }
    }
}
