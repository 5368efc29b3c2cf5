extern crate self as hg;

pub mod __private {
    pub use hg_core::rpc::*;
}

pub struct Request;

pub use hg_macros::rpc;

#[hg::rpc]
fn unnamed(a: impl Copy) {}

#[hg::rpc]
fn references(a: &u64, b: &String, c: &Vec<u8>, d: &[f64], e: &std::path::Path) {}

#[hg::rpc]
fn changes(a: &mut [u8]) {}

#[hg::rpc]
fn inside(a: Option<&str>, b: Vec<std::borrow::Cow<'_, str>>) {}

#[hg::rpc]
fn forever(a: &'static str) {}

#[hg::rpc]
fn pattern((a, b): (u8, u8), _: u8) {}

#[hg::rpc]
fn attribute(#[cfg(any())] a: u8) {}

#[hg::rpc]
fn late(a: u8, request: &hg::Request) {}

#[hg::rpc]
fn many(
    a: u8,
    b: u8,
    c: u8,
    d: u8,
    e: u8,
    f: u8,
    g: u8,
    h: u8,
    i: u8,
    j: u8,
    k: u8,
    l: u8,
    m: u8,
    n: u8,
    o: u8,
    p: u8,
    q: u8,
) {
}

#[hg::rpc]
fn taken(request: hg::Request, a: u8) {}

fn main() {}
