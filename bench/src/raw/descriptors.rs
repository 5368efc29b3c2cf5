//! File descriptors received from a unix socket (`SCM_RIGHTS`), and of processes.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;

use crate::error::{Context, Error};

/// Receives one message and the descriptors in it, at most [`MAX_DESCRIPTORS`] of them.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Error> {
    let mut space = nix::cmsg_space!([i32; MAX_DESCRIPTORS]);
    let mut buffers = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)
        .context("recvmsg")?;
    let mut owned = Vec::new();
    for control in message.cmsgs().context("recvmsg")? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            owned.extend(numbers.into_iter().map(own));
        }
    }
    Ok((message.bytes, owned))
}

/// A descriptor of a process, which becomes readable when that ends.
pub(crate) fn of_process(pid: Pid) -> Result<OwnedFd, Error> {
    // SAFETY: two numbers, each of the width of a register, as pidfd_open(2) has them.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid.as_raw()), 0) };
    let fd = Errno::result(fd).context("pidfd_open")?;
    Ok(own(i32::try_from(fd).expect("a descriptor is an int")))
}

/// Takes ownership of a number that the kernel has just put into this process.
fn own(number: i32) -> OwnedFd {
    // SAFETY:
    // - open: the kernel installed it for this message, or call; a cut message lists only installed ones.
    // - owned by nobody else: the number is new, and each message is read once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// The most descriptors that one message carries.
pub(crate) const MAX_DESCRIPTORS: usize = 4;
