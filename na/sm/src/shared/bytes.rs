//! The memfd of memory that peers map: what it is sealed against by its owner, and must be for a peer.

use std::os::fd::OwnedFd;

use hg_na::Error;
use nix::fcntl::SealFlag;

use crate::os::{
    mapping::{Access, FUTURE_WRITE, Mapping, new_memfd as sized_memfd, seal},
    room,
};

/// A new memfd of `len` bytes that can neither shrink nor grow. Pages come into being when they are touched.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::Limit`], [`Error::Os`].
pub(crate) fn new_memfd(len: usize) -> Result<OwnedFd, Error> {
    let fd = sized_memfd(c"hg-sm-shared", len)?;
    room::set_aside(&fd, 0..len.max(1))?;
    seal(&fd, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)?;
    Ok(fd)
}

/// Maps what a peer has sent, after its seals and its size were verified.
///
/// # Errors
/// As [`Mapping::open`].
pub(crate) fn open(fd: &OwnedFd, len: usize, access: Access) -> Result<Mapping, Error> {
    let seals = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | match access {
            Access::Write => SealFlag::empty(),
            Access::Read => FUTURE_WRITE,
            Access::Frozen => SealFlag::F_SEAL_WRITE,
        };
    Mapping::open(fd, len, seals, access)
}

#[cfg(test)]
mod tests {
    use hg_na::GoneReason;

    use super::*;
    use crate::os::mapping::huge_memfd;

    fn why(opened: Result<Mapping, Error>) -> String {
        match opened {
            Err(Error::PeerGone(GoneReason::Misbehaved(why))) => why.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_sealed_memfds_of_the_published_size_are_mapped() {
        let fd = new_memfd(10_000).unwrap();
        assert!(open(&fd, 10_000, Access::Write).is_ok());
        assert!(why(open(&fd, 10_001, Access::Write)).contains("size"));
        assert!(why(open(&fd, 10_000, Access::Read)).contains("seals"));
        seal(&fd, FUTURE_WRITE).unwrap();
        assert!(open(&fd, 10_000, Access::Read).is_ok());
        assert!(matches!(open(&fd, 10_000, Access::Write), Err(Error::Os { .. })));
        assert!(why(open(&fd, 10_000, Access::Frozen)).contains("seals"));
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
        assert_eq!(open(&fd, 10_000, Access::Frozen).unwrap().frozen().unwrap()[9_999], 0);
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(why(open(&file, 10_000, Access::Read)).contains("no memfd"));
        let loose = sized_memfd(c"x", 10_000).unwrap();
        assert!(why(open(&loose, 10_000, Access::Write)).contains("seals"));
        let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        if let Some((huge, len)) = huge_memfd(sealed) {
            for access in [Access::Write, Access::Frozen] {
                assert!(why(open(&huge, len, access)).contains("huge pages"));
            }
        }
    }

    #[test]
    fn memory_that_somebody_writes_is_not_sealed() {
        let fd = new_memfd(1).unwrap();
        let writer = Mapping::map(&fd, 1, Access::Write).unwrap();
        assert!(seal(&fd, SealFlag::F_SEAL_WRITE).is_err());
        assert!(writer.frozen().is_none());
        drop(writer);
        seal(&fd, SealFlag::F_SEAL_WRITE).unwrap();
    }
}
