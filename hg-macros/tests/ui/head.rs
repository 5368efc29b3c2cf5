extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
fn generic<T>(a: T) -> T
where
    T: Copy,
{
    a
}

#[hg::rpc]
fn lifetime<'a>(a: &'a str) {}

#[hg::rpc]
unsafe fn dangerous() {}

#[hg::rpc]
const fn early() {}

#[hg::rpc]
extern "C" fn foreign() {}

#[hg::rpc]
fn method(&self, a: u8) {}

fn main() {}
