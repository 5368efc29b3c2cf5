//! How an endpoint is closed: memory is freed when nothing can reach it any more.

use std::mem;

use libfabric_sys as sys;

use crate::fabric::{Endpoint, handles::Handle, rma::OneSided};

impl Endpoint {
    /// All registrations that are open.
    pub(super) fn registrations(&mut self) -> impl Iterator<Item = &mut Handle<sys::FidMr>> {
        let one_sided = self.one_sided.iter_mut().flat_map(OneSided::registrations);
        self.regions.iter_mut().chain(one_sided)
    }

    /// Closes what reaches memory: the endpoint and its registrations. Memory is freed when all of that is closed; what the
    /// library does not close keeps its memory until the process ends.
    ///
    /// A registration that is bound goes first: cxi closes no endpoint that has any. By fi_mr(3) a provider may refuse that
    /// while its endpoint is open: then, and where it is not bound, it goes behind.
    pub(super) fn close_reach(&mut self) {
        if self.is_bound {
            for region in self.registrations() {
                // What is refused is tried again below.
                let _ = region.close();
            }
        }
        if let Err(fault) = self.ep.close() {
            tracing::error!(%fault, "libfabric did not close an endpoint: its memory is never freed");
            self.leave_open();
        } else if let Some(fault) = self.regions.iter_mut().find_map(|it| it.close().err()) {
            tracing::error!(%fault, "libfabric did not close a registration: frames are never freed");
            self.leak_frames();
        }
    }

    /// Nothing that the endpoint may reach is closed or freed.
    fn leave_open(&mut self) {
        self.ep.leave_open();
        self.cq.leave_open();
        self.av.leave_open();
        self.domain.leave_open();
        self.fabric.leave_open();
        mem::forget(self.one_sided.take());
        self.leak_frames();
    }

    fn leak_frames(&mut self) {
        mem::forget(mem::take(&mut self.regions));
        self.transmit.leak();
        self.intake.leak();
        self.injected.leak();
    }
}

#[cfg(test)]
pub(in crate::fabric) mod tests;
