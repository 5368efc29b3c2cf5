extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
fn unnamed() -> impl Copy {}

#[hg::rpc]
fn borrowed(a: &str) -> &str {
    a
}

#[hg::rpc]
fn no_error() -> std::io::Result<u8> {
    Ok(1)
}

#[hg::rpc]
fn borrowed_error(a: &str) -> Result<u8, &str> {
    Err(a)
}

fn main() {}
