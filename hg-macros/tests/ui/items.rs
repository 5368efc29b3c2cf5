extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
struct NotAFunction;

#[hg::rpc]
const NUMBER: u8 = 1;

#[hg::rpc]
impl Request {}

fn main() {}
