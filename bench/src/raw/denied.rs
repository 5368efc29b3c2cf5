//! A filter on system calls (seccomp) that denies cross-memory attach, as containers do.

use std::mem::size_of;

use nix::errno::Errno;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::prctl::set_no_new_privs;

use crate::error::{Context, Error};

/// From now on `process_vm_readv` and `process_vm_writev` fail with `EPERM`, in this process and in those that it
/// starts.
pub(crate) fn deny_cma() -> Result<(), Error> {
    set_no_new_privs().context("prctl PR_SET_NO_NEW_PRIVS")?;
    let mut filter = [
        // The number of the system call is the first word of what the filter is given.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(EQUAL, number(libc::SYS_process_vm_readv), 1, 0),
        step(EQUAL, number(libc::SYS_process_vm_writev), 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs(), 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let len = u16::try_from(filter.len()).expect("a handful of steps");
    let program = sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY:
    // - the program: on this stack frame, with the filter's true length; the kernel copies it.
    // - what changes: two system calls fail, which is no unsafety.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    Errno::result(result).map(drop).context("seccomp")
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).expect("the codes of steps are small"), jt, jf, k }
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("numbers of system calls are small")
}

const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

const _: () = assert!(size_of::<sock_filter>() == 8);
