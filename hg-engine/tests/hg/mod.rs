//! What the facade is to users: where `#[hg::rpc]` finds what it writes.

pub(crate) mod __private {
    pub(crate) use hg_core::rpc::*;
}
