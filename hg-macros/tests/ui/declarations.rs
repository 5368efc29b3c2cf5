extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
async fn in_time();

#[hg::rpc(blocking)]
fn in_pool();

#[hg::rpc]
fn with_context(request: &hg::Request);

#[hg::rpc(implements = in_pool)]
fn circular();

fn main() {}
