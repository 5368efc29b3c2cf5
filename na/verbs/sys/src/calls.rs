//! The calls that C's headers write as static inline functions: each goes through the table of the object's context.
//!
//! # Safety, of all of them
//! Objects are alive and of the type that they are passed as; pointers are good for what the manual page of the function says. Memory of
//! an operation stays registered, and where it is, until it has completed or its queue pair is destroyed.

use std::ffi::c_int;

use crate::{Cq, Qp, RecvWr, SendWr, Srq, Wc};

/// Writes each call as one line: its arguments, and the function.
macro_rules! calls {
    ($(
        $(#[$attribute:meta])*
        $name:ident($object:ident: $kind:ty $(, $arg:ident: $of:ty)* $(,)?);
    )*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As on the page of this module.
        #[inline]
        pub unsafe fn $name($object: $kind $(, $arg: $of)*) -> c_int {
            // SAFETY:
            // - the caller vouches for the object, so its context is there.
            let context = unsafe { (*$object).context };
            // SAFETY:
            // - and so is its table, which holds this function.
            let call = unsafe { (*context).ops.$name };
            // SAFETY:
            // - the caller vouches for the arguments.
            unsafe { call($object $(, $arg)*) }
        }
    )*};
}

calls! {
    /// `ibv_poll_cq(3)`: room for so many completions; answers how many there are.
    poll_cq(cq: *mut Cq, count: c_int, completions: *mut Wc);
    /// `ibv_req_notify_cq(3)`: the next completion makes the channel readable.
    req_notify_cq(cq: *mut Cq, solicited_only: c_int);
    /// `ibv_post_srq_recv(3)`: descriptions are read before this returns.
    post_srq_recv(srq: *mut Srq, list: *mut RecvWr, bad: *mut *mut RecvWr);
    /// `ibv_post_send(3)`: descriptions are read before this returns.
    post_send(qp: *mut Qp, list: *mut SendWr, bad: *mut *mut SendWr);
}
