//! Vectored input and output straight between a descriptor and memory.

use std::{io, os::fd::BorrowedFd, sync::PoisonError};

use hg_na::{Error, Memory};

use crate::{
    copy::{check_reached, check_writable},
    pieces, raw,
};

/// Writes `before`, then `len` bytes of `memory` from `offset` on, then `after`, in one `sendmsg(2)` without `SIGPIPE`: as many as
/// the socket takes, or as 1,024 vectors hold. The result counts all three.
///
/// # Errors
/// [`Error::OutOfRange`] (outer); what the system says (inner), `WouldBlock` among it.
pub fn write_vectored(
    fd: BorrowedFd<'_>,
    (before, after): (&[u8], &[u8]),
    memory: &Memory,
    (offset, len): (u64, u64),
) -> Result<io::Result<usize>, Error> {
    check_reached(memory)?;
    let runs: Vec<_> = pieces(memory, offset, len)?.collect();
    let _shared = memory.exclusion().read().unwrap_or_else(PoisonError::into_inner);
    Ok(raw::write(fd, (before, after), memory, &runs))
}

/// Reads into `len` bytes of `memory` from `offset` on, and what comes behind them into `after`, in one
/// `readv(2)`: as many as there are. 0 is the end of the stream.
///
/// # Errors
/// [`Error::OutOfRange`], [`Error::Denied`] (outer); what the system says (inner).
pub fn read_vectored(
    fd: BorrowedFd<'_>,
    memory: &Memory,
    (offset, len): (u64, u64),
    after: &mut [u8],
) -> Result<io::Result<usize>, Error> {
    check_writable(memory)?;
    let runs: Vec<_> = pieces(memory, offset, len)?.collect();
    // More runs than one call takes would let `after` receive what belongs to the rest of them: `raw`
    // leaves `after` out then.
    let _exclusive = memory.exclusion().write().unwrap_or_else(PoisonError::into_inner);
    Ok(raw::read(fd, memory, &runs, after))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn a_header_and_memory_leave_in_one_call_and_arrive_in_one() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let from = Memory::from(vec![vec![1u8, 2], vec![3, 4, 5]]);
        assert_eq!(
            write_vectored(other.as_fd(), (b"hd", b"t"), &from, (1, 3)).unwrap().unwrap(),
            6
        );
        let mut seen = [0; 6];
        one.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"hd\x02\x03\x04t");
        one.write_all(&[7, 8, 9, 10]).unwrap();
        let into = Memory::from(vec![vec![0u8; 1], vec![0; 2]]);
        let mut behind = [0; 4];
        assert_eq!(read_vectored(other.as_fd(), &into, (0, 3), &mut behind).unwrap().unwrap(), 4);
        assert_eq!(into.into_vecs().unwrap(), [vec![7], vec![8, 9]]);
        assert_eq!(behind[0], 10);
    }

    #[test]
    fn two_thousand_segments_take_two_calls_and_nothing_runs_ahead() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&vec![5; 2_000]).unwrap();
        let into = Memory::from(vec![vec![0u8; 1]; 1_500]);
        let mut behind = [0; 4];
        let read = read_vectored(other.as_fd(), &into, (0, 1_500), &mut behind).unwrap().unwrap();
        assert_eq!(read, 1_024);
        assert_eq!(behind, [0; 4]);
        let rest = (1_024, 476);
        let read = read_vectored(other.as_fd(), &into, rest, &mut behind).unwrap().unwrap();
        assert_eq!((read, behind), (480, [5; 4]));
        assert!(into.into_vecs().unwrap().iter().all(|piece| piece == &[5]));
    }

    #[test]
    fn wrong_ranges_and_read_only_memory_are_refused() {
        let (one, _other) = UnixStream::pair().unwrap();
        let memory = Memory::from(std::sync::Arc::<[u8]>::from([0u8; 4].as_slice()));
        assert!(write_vectored(one.as_fd(), (b"", b""), &memory, (1, 4)).is_err());
        let refused = read_vectored(one.as_fd(), &memory, (0, 4), &mut []);
        assert!(matches!(refused, Err(Error::Denied { .. })));
    }
}
