extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc(nam = "x")]
fn misspelt() {}

#[hg::rpc(name = "")]
fn nameless() {}

#[hg::rpc(name = 1)]
fn numbered() {}

#[hg::rpc(blocking, blocking)]
fn twice() {}

#[hg::rpc(blocking name = "x")]
fn no_comma() {}

#[hg::rpc(blocking)]
async fn blocking_async() {}

#[hg::rpc(name = "x", implements = misspelt)]
fn two_names() {}

fn main() {}
