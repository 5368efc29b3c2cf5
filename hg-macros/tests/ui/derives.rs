extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

struct Place;

#[derive(serde::Serialize)]
struct OnlyWritten;

#[hg_macros::rpc]
fn put(number: u64, place: Place) {}

#[hg_macros::rpc]
fn result() -> OnlyWritten;

fn main() {}
