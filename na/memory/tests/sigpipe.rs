//! A process that dies of `SIGPIPE`, as programs in C do by default, outlives a write to a peer that is gone.

#![expect(unsafe_code, reason = "signal(2), to undo what the standard library of Rust has set")]

use std::{io::ErrorKind, os::fd::AsFd as _, os::unix::net::UnixStream};

use hg_na::Memory;
use hg_na_memory::write_vectored;
use nix::sys::signal::{SigHandler, Signal, signal};

#[test]
fn a_write_to_a_closed_socket_is_an_error_and_no_signal() {
    // SAFETY:
    // - the default action runs no code of this process's.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.expect("a signal that can be caught");
    let (one, other) = UnixStream::pair().expect("a pair of sockets");
    drop(other);
    let memory = Memory::from(vec![1u8; 8]);
    let written = write_vectored(one.as_fd(), (b"head", b""), &memory, (0, 8)).expect("in range");
    assert_eq!(written.expect_err("nobody reads").kind(), ErrorKind::BrokenPipe);
}
