//! What libfabric's own checks of lent memory do not keep from who has its key, or who has none.

use std::{io::IoSliceMut, ptr, sync::Arc, time::Instant};

use hg_na::Memory;
use hg_na_link::Grant;
use hg_na_memory::Held;
use libfabric_sys::{self as sys, calls};
use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use watchdog::in_time;

use crate::fabric::{
    Endpoint,
    rma::tests::{moved, pair},
};

fn held(byte: u8) -> Held {
    Held::from(Arc::new(Memory::from(vec![byte; 100_000])))
}

/// `ofi_mr_map_verify` adds address and length without a look at whether that wraps: `rma=off` lends nothing. When this fails, a later
/// version looks, and `THREATS.md` may say so.
#[test]
fn over_tcp_who_was_lent_memory_writes_behind_it() {
    let mut pair = pair("tcp", 0).expect("tcp");
    let mut both = [held(0), held(0)];
    both.sort_by_key(|it| it.segments()[0].address);
    let [lent, other] = both;
    let (run, victim) = (lent.segments()[0], other.segments()[0]);
    let (_, grant) = pair[1].0.lend(&lent, run, true).unwrap();
    assert_eq!(moved(&mut pair, &held(1), grant, true), None, "they are connected");
    let bytes = vec![9u8; 16];
    let own = sys::Iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let addr = grant.address.wrapping_add((victim.address - run.address) as u64);
    // From there up to the start of what was lent, around the end of all addresses.
    let len = run.address.wrapping_sub(victim.address);
    let theirs = sys::RmaIov { addr, len, key: grant.key };
    let mut descriptor = ptr::null_mut();
    let message = sys::MsgRma {
        msg_iov: &raw const own,
        desc: &raw mut descriptor,
        iov_count: 1,
        addr: pair[0].1,
        rma_iov: &raw const theirs,
        rma_iov_count: 1,
        context: ptr::null_mut(),
        data: 0,
    };
    // SAFETY:
    // - open; the bytes stay until the endpoint has closed. What is written lies in memory of this test's.
    let posted = unsafe { calls::writemsg(pair[0].0.raw(), &raw const message, sys::COMPLETION) };
    assert_eq!(posted, 0);
    let (start, mut seen, mut events) = (Instant::now(), [0; 16], Vec::new());
    while seen != [9; 16] {
        in_time!(start, "libfabric looks whether it wraps");
        pair.iter_mut().for_each(|end| end.0.poll(&mut events).unwrap());
        hg_na_memory::copy_out(&other, 0, &mut seen).unwrap();
    }
    drop(pair);
    drop(bytes);
}

/// Only processes of one user are peers over it. From 2.0 on it is not used within a process.
#[test]
#[expect(clippy::print_stdout, reason = "says what this machine lacks")]
fn shm_compares_no_key() {
    let reaches = |pair: &[(Endpoint, u64); 2]| pair[0].0.reaches_memory_of(pair[0].1);
    let Some(mut pair) = pair("shm", 0).filter(reaches) else {
        return println!("SKIPPED: shm_compares_no_key: this libfabric's is not used in a process");
    };
    // Where it may not, shm asks the owner, who looks at the key.
    let (byte, mut read) = ([7u8], [0u8]);
    let own = [RemoteIoVec { base: byte.as_ptr().addr(), len: 1 }];
    if process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut read)], &own).is_err() {
        let why = "the kernel moves no memory between processes here";
        return println!("SKIPPED: shm_compares_no_key: {why}");
    }
    let lent = held(7);
    let (_, grant) = pair[1].0.lend(&lent, lent.segments()[0], false).unwrap();
    let forged = Grant { key: grant.key ^ 1, ..grant };
    assert_eq!(moved(&mut pair, &held(0), forged, false), None);
}
