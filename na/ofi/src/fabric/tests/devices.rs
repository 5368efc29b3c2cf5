//! Tests of memory of devices over objects of libfabric's whose registration of it is replaced by one that notes what it is asked and
//! registers memory of the processor: no machine here has a device that a card reaches.

use std::{cell::RefCell, ffi::c_int, sync::Arc};

use hg_na::{Device, Memory, Segment};
use hg_na_memory::Held;
use libfabric_sys::{self as sys, calls};

use crate::fabric::{
    Endpoint,
    closing::tests::copied,
    open::register_once,
    rma::tests::{moved, pair},
};

thread_local! {
    /// Interface, number of the device, and access of each registration.
    static SEEN: RefCell<Vec<(c_int, i32, u64)>> = RefCell::default();
}

unsafe extern "C" fn registering(
    domain: *mut sys::Fid,
    attr: *const sys::MrAttr,
    _: u64,
    region: *mut *mut sys::FidMr,
) -> c_int {
    // SAFETY:
    // - as fi_mr_regattr(3) wants it.
    let attr = unsafe { &*attr };
    let number = *attr.device.to_ne_bytes().first_chunk().unwrap();
    let seen = (attr.iface, c_int::from_ne_bytes(number), attr.access);
    SEEN.with_borrow_mut(|all| all.push(seen));
    // SAFETY:
    // - as above: one run.
    let run = unsafe { *attr.mr_iov };
    let (base, len, key) = (run.iov_base, run.iov_len, attr.requested_key);
    // SAFETY:
    // - an open domain, and memory that stays: as the caller of this was promised.
    unsafe { calls::mr_reg(domain.cast(), base, len, attr.access, key, region) }
}

unsafe extern "C" fn refusing(
    _: *mut sys::Fid,
    _: *const sys::MrAttr,
    _: u64,
    _: *mut *mut sys::FidMr,
) -> c_int {
    -nix::libc::ENOSYS
}

type Register =
    unsafe extern "C" fn(*mut sys::Fid, *const sys::MrAttr, u64, *mut *mut sys::FidMr) -> c_int;

/// From now on memory of devices is registered so.
fn replace(endpoint: &Endpoint, register: Register) {
    let domain = endpoint.domain().raw();
    // SAFETY:
    // - open, and used by this thread alone.
    let memory = unsafe { &mut (*domain).mr };
    // SAFETY:
    // - a table of libfabric's.
    *memory = unsafe { copied(*memory) };
    // SAFETY:
    // - a copy of this test's.
    unsafe { (**memory).regattr = register };
}

/// Bytes that are said to be a device's, and where they are.
fn device(device: Device, bytes: Vec<u8>) -> (Held, *mut u8) {
    let len = bytes.len();
    let start = bytes.leak().as_mut_ptr();
    let segment = Segment { address: start.expose_provenance(), len };
    // SAFETY:
    // - leaked: they stay, and are looked at when nothing is moved.
    let memory = unsafe { Memory::on_device(device, vec![segment], true, Arc::new(())) };
    (Held::from(Arc::new(memory)), start)
}

#[test]
fn memory_of_a_device_is_registered_as_what_it_is_at_both_ends_and_moved() {
    const LEN: usize = 1000;
    for (of, iface, number) in [
        (Device::Cuda(2), sys::HMEM_CUDA, 2),
        (Device::Rocm, sys::HMEM_ROCR, 0),
        (Device::LevelZero(1), sys::HMEM_ZE, 1),
    ] {
        let Some(mut pair) = pair("tcp", 0) else { panic!("no tcp") };
        pair.iter().for_each(|(end, _)| replace(end, registering));
        let ((own, _), (lent, there)) = (device(of, vec![7; LEN]), device(of, vec![0; LEN]));
        let run = lent.segments()[0];
        let (number_lent, grant) = pair[1].0.lend(&lent, run, true).unwrap();
        assert_eq!(moved(&mut pair, &own, grant, true), None, "{of:?}");
        pair[1].0.revoke(number_lent);
        let seen = SEEN.take();
        // A move that libfabric did not take at once is tried again.
        let (first, moves) = seen.split_first().unwrap();
        assert_eq!(*first, (iface, number, sys::REMOTE_WRITE));
        let is_move = |it: &(c_int, i32, u64)| *it == (iface, number, sys::WRITE);
        assert!(!moves.is_empty() && moves.iter().all(is_move), "{seen:x?}");
        // SAFETY:
        // - so many bytes, which nobody moves any more.
        let bytes = unsafe { std::slice::from_raw_parts(there, LEN) };
        assert!(bytes.iter().all(|byte| *byte == 7), "{of:?}");
    }
}

#[test]
fn a_device_is_known_when_its_memory_is_registered_for_a_moment() {
    let Some(pair) = pair("tcp", 0) else { panic!("no tcp") };
    let (memory, _) = device(Device::Cuda(3), vec![0; 8]);
    let run = memory.segments()[0];
    for (register, fault) in [(registering as Register, None), (refusing, Some(nix::libc::ENOSYS))]
    {
        let (end, _) = &pair[0];
        replace(end, register);
        let known = register_once(end.domain(), Device::Cuda(3), run);
        assert_eq!(known.err().map(|it| it.number), fault);
    }
    assert_eq!(SEEN.take(), [(sys::HMEM_CUDA, 3, sys::WRITE)], "and nobody else reaches it");
}

#[test]
fn what_libfabric_does_not_register_is_not_lent() {
    let Some(mut pair) = pair("tcp", 0) else { panic!("no tcp") };
    pair.iter().for_each(|(end, _)| replace(end, refusing));
    let (lent, _) = device(Device::Cuda(0), vec![0; 8]);
    let run = lent.segments()[0];
    let fault = pair[0].0.lend(&lent, run, true).unwrap_err();
    assert!(fault.number == nix::libc::ENOSYS && !fault.is_again(), "{fault}");
}
