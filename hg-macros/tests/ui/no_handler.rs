extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
fn add(a: i64, b: i64) -> i64;

fn register<R: __private::Serve<Request>>(_: R) {}

fn call<R: __private::Rpc>(_: R, _: R::Args<'_>) {}

fn main() {
    register(add);
    call(add, (1, "2"));
}
