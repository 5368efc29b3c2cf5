//! Memory that the card reaches.

use std::{ffi::c_int, fmt, mem, ptr, sync::Arc};

use hg_na::Segment;
use hg_na_memory::Held;
use rdma_core_sys as sys;

use crate::card::{Device, Fault};

/// A registered run of memory (`ibv_mr`). Once it is dropped the card reaches it no more.
pub(crate) struct Registration {
    device: Arc<Device>,
    mr: *mut sys::Mr,
    /// Stays until the registration was ended; there until it is dropped.
    memory: Option<Held>,
}

// SAFETY:
// - libibverbs takes calls from any thread; whoever has this has it alone.
unsafe impl Send for Registration {}

// SAFETY:
// - what is shared reads its keys, which do not change.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers a run of memory that is kept meanwhile.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn of(
        device: &Arc<Device>,
        memory: &Held,
        run: Segment,
        access: c_int,
    ) -> Result<Self, Fault> {
        // SAFETY:
        // - the run is of memory that is kept below.
        let mut this = unsafe { Self::raw(device, run, access) }?;
        this.memory = Some(memory.clone());
        Ok(this)
    }

    /// The same, without keeping the memory.
    ///
    /// # Safety
    /// The run stays where it is until this is dropped, and is not freed before.
    pub(super) unsafe fn raw(
        device: &Arc<Device>,
        run: Segment,
        access: c_int,
    ) -> Result<Self, Fault> {
        let start = ptr::with_exposed_provenance_mut(run.address);
        // SAFETY:
        // - open; the run exists: the caller's.
        let mr = unsafe { (device.library.reg_mr)(device.pd, start, run.len, access) };
        if mr.is_null() {
            return Err(Fault::last("ibv_reg_mr"));
        }
        Ok(Self { device: Arc::clone(device), mr, memory: None })
    }

    /// What this side names it by, and what peers do.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY:
        // - alive until this is dropped; the keys do not change.
        let mr = unsafe { &*self.mr };
        mr.keys()
    }
}

impl Registration {
    /// Ends it; `false`: the card may reach the memory for ever.
    pub(super) fn end(&mut self) -> bool {
        let mr = mem::replace(&mut self.mr, ptr::null_mut());
        if mr.is_null() {
            return true;
        }
        // SAFETY:
        // - made by `raw`, and ended once.
        let result = unsafe { (self.device.library.dereg_mr)(mr) };
        let ended = Fault::check("ibv_dereg_mr", result);
        if let Err(fault) = ended {
            tracing::error!(%fault, "a registration does not end: its memory is never freed");
            mem::forget(self.memory.take());
        }
        ended.is_ok()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Registration")
    }
}
