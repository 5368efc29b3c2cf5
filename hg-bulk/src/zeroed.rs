//! Memory of a size that a peer, or a caller's data, has chosen.

use hg_na::Error;

/// Sizes above this many bytes are tried out before memory of them is made.
const TRIED_OUT: u64 = 64 << 10;

/// Zeroed memory of `len` bytes, of which none is touched yet. A size beyond what the process can have is refused, where
/// `vec![0; len]` would end the process.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn zeroed(len: u64) -> Result<Vec<u8>, Error> {
    let refused = Error::NoMemory { len };
    let Ok(size) = usize::try_from(len) else { return Err(refused) };
    if len > TRIED_OUT && Vec::<u8>::new().try_reserve_exact(size).is_err() {
        return Err(refused);
    }
    Ok(vec![0; size])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_beyond_the_address_space_is_refused_by_name() {
        for len in [u64::MAX, 1 << 62] {
            let said = zeroed(len).unwrap_err().to_string();
            assert!(said.starts_with(&format!("there is no memory for {len} bytes")), "{said}");
        }
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert_eq!(zeroed(2 << 20).unwrap().len(), 2 << 20);
    }
}
