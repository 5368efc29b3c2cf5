//! A system that refuses some calls, to one thread.

use nix::{errno::Errno, libc, sys::prctl::set_no_new_privs};

/// Has the kernel refuse system calls to this thread from now on, as where something is used up.
pub(crate) fn deny(calls: &[libc::c_long], error: Errno) {
    let statement = |code: u32, jt: usize, k: u32| {
        let (code, jt) = (u16::try_from(code).unwrap(), u8::try_from(jt).unwrap());
        libc::sock_filter { code, jt, jf: 0, k }
    };
    let (load, skip_if) = (libc::BPF_LD | libc::BPF_W, libc::BPF_JMP | libc::BPF_JEQ);
    let number = u32::try_from(std::mem::offset_of!(libc::seccomp_data, nr)).unwrap();
    let mut filter = vec![statement(load | libc::BPF_ABS, 0, number)];
    for (at, call) in calls.iter().enumerate() {
        filter.push(statement(skip_if, calls.len() - at, u32::try_from(*call).unwrap()));
    }
    let refuse = libc::SECCOMP_RET_ERRNO | (error as i32).unsigned_abs();
    filter.push(statement(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(libc::BPF_RET, 0, refuse));
    let len = u16::try_from(filter.len()).unwrap();
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    set_no_new_privs().unwrap();
    #[expect(unsafe_code, reason = "seccomp(2), for which no crate of ours has a safe call")]
    // SAFETY:
    // - arguments: an operation, no flags, and a program that lives until the call is over.
    // - effects: further system calls of this thread, as the program says; memory is not touched.
    let answer = unsafe {
        let filter = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, filter, 0, &raw const program)
    };
    assert_eq!(answer, 0, "seccomp: {}", Errno::last());
}
