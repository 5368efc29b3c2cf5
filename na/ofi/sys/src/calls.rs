//! The calls that C's headers write as static inline functions: each goes through the object's own table.
//!
//! # Safety, of all of them
//! Objects are alive, of the type that they are passed as, and used by as many threads as their domain allows;
//! pointers are good for what the manual page of the function says. Buffers of an operation stay where they are
//! until it has completed or its endpoint is closed.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use crate::{
    AvAttr, CqAttr, CqErrEntry, Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr, Info,
    MrAttr, Msg, MsgRma, MsgTagged,
    constants::{ENABLE, GETWAIT},
};

/// Writes each call as one line: its arguments, the table and the function, and what is passed on.
macro_rules! calls {
    ($(
        $(#[$attribute:meta])*
        $name:ident($object:ident: $kind:ty $(, $arg:ident: $of:ty)* $(,)?) -> $result:ty
            = $table:ident.$function:ident ($($pass:expr),* $(,)?);
    )*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As on the page of this module.
        #[inline]
        pub unsafe fn $name($object: $kind $(, $arg: $of)*) -> $result {
            // SAFETY:
            // - the caller vouches for the object, so its table is there and holds this function.
            let call = unsafe { (*(*$object).$table).$function };
            // SAFETY:
            // - the caller vouches for the arguments.
            unsafe { call($($pass),*) }
        }
    )*};
}

calls! {
    /// `fi_domain(3)`.
    domain(fabric: *mut FidFabric, info: *mut Info, domain: *mut *mut FidDomain) -> c_int
        = ops.domain(fabric, info, domain, ptr::null_mut());
    /// `fi_trywait(3)`: whether a thread may wait on the descriptors of these queues now.
    trywait(fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int = ops.trywait(fabric, fids, count);
    /// `fi_av_open(3)`.
    av_open(domain: *mut FidDomain, attr: *mut AvAttr, av: *mut *mut FidAv) -> c_int
        = ops.av_open(domain, attr, av, ptr::null_mut());
    /// `fi_cq_open(3)`.
    cq_open(domain: *mut FidDomain, attr: *mut CqAttr, cq: *mut *mut FidCq) -> c_int
        = ops.cq_open(domain, attr, cq, ptr::null_mut());
    /// `fi_endpoint(3)`.
    endpoint(domain: *mut FidDomain, info: *mut Info, ep: *mut *mut FidEp) -> c_int
        = ops.endpoint(domain, info, ep, ptr::null_mut());
    /// `fi_mr_reg(3)`: the memory stays until the region is closed.
    mr_reg(
        domain: *mut FidDomain, buffer: *const c_void, len: usize, access: u64, key: u64, mr: *mut *mut FidMr,
    ) -> c_int = mr.reg(domain.cast(), buffer, len, access, 0, key, 0, mr, ptr::null_mut());
    /// `fi_mr_regattr(3)`: as `mr_reg`; the attributes are read before this returns.
    mr_regattr(domain: *mut FidDomain, attr: *const MrAttr, mr: *mut *mut FidMr) -> c_int
        = mr.regattr(domain.cast(), attr, 0, mr);

    /// `fi_av_insert(3)`.
    av_insert(av: *mut FidAv, names: *const c_void, count: usize, addresses: *mut u64) -> c_int
        = ops.insert(av, names, count, addresses, 0, ptr::null_mut());
    /// `fi_av_remove(3)`.
    av_remove(av: *mut FidAv, addresses: *mut u64, count: usize) -> c_int = ops.remove(av, addresses, count, 0);
    /// `fi_av_straddr(3)`.
    av_straddr(av: *mut FidAv, address: *const c_void, text: *mut c_char, len: *mut usize) -> *const c_char
        = ops.straddr(av, address, text, len);

    /// `fi_cq_read(3)`: room for so many entries of the queue's format.
    cq_read(cq: *mut FidCq, entries: *mut c_void, count: usize) -> isize = ops.read(cq, entries, count);
    /// `fi_cq_readerr(3)`.
    cq_readerr(cq: *mut FidCq, entry: *mut CqErrEntry) -> isize = ops.readerr(cq, entry, 0);
    /// `fi_cq_strerror(3)`.
    cq_strerror(
        cq: *mut FidCq, number: c_int, data: *const c_void, text: *mut c_char, len: usize,
    ) -> *const c_char = ops.strerror(cq, number, data, text, len);

    /// `fi_recv(3)`.
    recv(
        ep: *mut FidEp, buffer: *mut c_void, len: usize, descriptor: *mut c_void, from: u64, context: *mut c_void,
    ) -> isize = msg.recv(ep, buffer, len, descriptor, from, context);
    /// `fi_recvmsg(3)`.
    recvmsg(ep: *mut FidEp, message: *const Msg, flags: u64) -> isize = msg.recvmsg(ep, message, flags);
    /// `fi_sendmsg(3)`: the description is read before this returns.
    sendmsg(ep: *mut FidEp, message: *const Msg, flags: u64) -> isize = msg.sendmsg(ep, message, flags);
    /// `fi_trecv(3)`: takes a message with this tag.
    #[expect(clippy::too_many_arguments, reason = "C's")]
    trecv(
        ep: *mut FidEp, buffer: *mut c_void, len: usize, descriptor: *mut c_void, from: u64, tag: u64, ignore: u64,
        context: *mut c_void,
    ) -> isize = tagged.recv(ep, buffer, len, descriptor, from, tag, ignore, context);
    /// `fi_tsendmsg(3)`: the description is read before this returns.
    tsendmsg(ep: *mut FidEp, message: *const MsgTagged, flags: u64) -> isize
        = tagged.sendmsg(ep, message, flags);
    /// `fi_readmsg(3)`: reads memory of a peer.
    readmsg(ep: *mut FidEp, message: *const MsgRma, flags: u64) -> isize = rma.readmsg(ep, message, flags);
    /// `fi_write(3)`: writes memory of a peer.
    #[expect(clippy::too_many_arguments, reason = "C's")]
    write(
        ep: *mut FidEp, buffer: *const c_void, len: usize, descriptor: *mut c_void, to: u64, address: u64,
        key: u64, context: *mut c_void,
    ) -> isize = rma.write(ep, buffer, len, descriptor, to, address, key, context);
    /// `fi_writemsg(3)`: the same, with flags.
    writemsg(ep: *mut FidEp, message: *const MsgRma, flags: u64) -> isize = rma.writemsg(ep, message, flags);
    /// `fi_getname(3)`: the address of an endpoint. `len` is the room, and then the length.
    getname(ep: *mut FidEp, name: *mut c_void, len: *mut usize) -> c_int = cm.getname(ep.cast(), name, len);
    /// `fi_setopt(3)`, of a number, which is read before this returns.
    setopt(ep: *mut FidEp, level: c_int, name: c_int, value: usize) -> c_int
        = ops.setopt(ep.cast(), level, name, (&raw const value).cast(), size_of::<usize>());
    /// `fi_cancel(3)`: asks for an operation to end early; it completes anyway.
    cancel(ep: *mut FidEp, context: *mut c_void) -> isize = ops.cancel(ep.cast(), context);

    /// `fi_close(3)`, of any object, which is not used afterwards unless this fails.
    close(object: *mut Fid) -> c_int = ops.close(object);
    /// `fi_ep_bind(3)` and its like: binds one object to another.
    bind(object: *mut Fid, other: *mut Fid, flags: u64) -> c_int = ops.bind(object, other, flags);
    /// `fi_control(3)`: the argument is what the command takes.
    control(object: *mut Fid, command: c_int, argument: *mut c_void) -> c_int = ops.control(object, command, argument);
    /// `fi_enable(3)`: an endpoint or a region.
    enable(object: *mut Fid) -> c_int = ops.control(object, ENABLE, ptr::null_mut());
}

/// The file descriptor of a queue that was opened with one (`FI_GETWAIT`).
///
/// # Safety
/// As on the page of this module.
///
/// # Errors
/// The negative number of libfabric's.
pub unsafe fn wait_fd(cq: *mut FidCq) -> Result<c_int, c_int> {
    let mut fd: c_int = -1;
    // SAFETY:
    // - the command fills one `int`; a queue begins with its `fid`.
    let result = unsafe { control(cq.cast(), GETWAIT, (&raw mut fd).cast()) };
    if result == 0 { Ok(fd) } else { Err(result) }
}
