extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

mod interface {
    #[hg::rpc]
    pub fn add(a: i64, b: i64) -> i64;
}

#[hg::rpc(implements = interface::add)]
fn add(a: i64, b: u64) -> i64 {
    a + b as i64
}

fn main() {}
