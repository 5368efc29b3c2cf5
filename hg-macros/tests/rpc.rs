//! What `#[hg::rpc]` writes, used as an engine uses it: this crate plays the facade.

extern crate self as hg;

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use hg_core::{
    codec::{self, Codec},
    rpc::{Responder, Rpc, RpcId, Serve, ServeKind},
};
use serde::{Deserialize, Serialize};

/// The facade's part that the macro uses.
#[doc(hidden)]
pub mod __private {
    pub use hg_core::rpc::{
        LocalCall, NoError, Responder, Rpc, Serve, ServeKind, SignatureCell, serde_bytes, travels,
    };
}

/// The context of a request.
#[derive(Clone, Debug)]
pub struct Request(u64);

pub use hg_macros::rpc;

/// Asks and answers through bytes, as two processes would.
fn call<R: Serve<Request>>(_: R, args: R::Args<'_>) -> Result<R::Output, R::Error> {
    let mut message = [0; 256];
    let used = codec::Default::encode(&R::pack(args), &mut message).expect("there is room");
    let args =
        codec::Default::decode::<R::WireArgs<'_>>(&message[..used]).expect("what was encoded");
    let output = R::serve(&Request(40), args, AtOnce)?;
    let used =
        codec::Default::encode(&R::pack_output(output), &mut message).expect("there is room");
    Ok(R::unpack_output(codec::Default::decode(&message[..used]).expect("what was encoded")))
}

/// Gives the answer, also of a future that never waits.
struct AtOnce;

impl<T, E> Responder<T, E> for AtOnce {
    type Done = Result<T, E>;

    fn now(self, result: Result<T, E>) -> Self::Done {
        result
    }

    fn later<F>(self, future: F) -> Self::Done
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        ready(future)
    }
}

/// The value of a future that never waits.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

fn name<R: Rpc>(_: R) -> &'static str {
    R::NAME
}

fn kind<R: Serve<Request>>(_: R) -> ServeKind {
    R::KIND
}

/// The sum.
#[hg::rpc]
pub fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[hg::rpc]
fn tick() {}

#[hg::rpc(name = "store/v1/put")]
fn put(key: &str, value: &[u8], copies: Vec<u8>) -> Vec<u8> {
    [key.as_bytes(), value, &copies].concat()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NoSuchKey(String);

#[hg::rpc(blocking)]
fn find(key: &str) -> Result<u32, NoSuchKey> {
    if key == "answer" { Ok(42) } else { Err(NoSuchKey(key.to_owned())) }
}

#[hg::rpc]
fn who(request: &hg::Request, plus: u64) -> u64 {
    request.0 + plus
}

#[hg::rpc]
async fn later(request: &Request, text: &str, bytes: &[u8], mut number: u64) -> String {
    number += request.0;
    std::future::ready(()).await;
    format!("{text} {bytes:?} {number}")
}

#[hg::rpc]
async fn later_or_never(number: u8) -> std::result::Result<(), NoSuchKey> {
    if number == 0 { Ok(()) } else { Err(NoSuchKey(number.to_string())) }
}

mod other {
    pub(super) use crate::{__private, Request};
}

#[hg::rpc(crate = crate::other)]
fn elsewhere(request: &Request) -> u64 {
    request.0
}

#[hg::rpc]
fn r#type(a: u8) -> u8 {
    a
}

#[hg::rpc]
fn own_name() -> String {
    name(own_name).to_owned()
}

#[hg::rpc]
#[inline(never)]
fn factorial(n: u64) -> u64 {
    if n == 0 { 1 } else { n * factorial(n - 1) }
}

#[hg::rpc]
#[cfg(any())]
fn absent(a: NoSuchType);

#[hg::rpc]
#[deprecated]
fn old(a: u8) -> u8 {
    a
}

macro_rules! first {
    ($name:ident, $of:ty, $with:ty) => {
        #[hg::rpc]
        fn $name(value: $of, _with: $with) -> $of {
            value
        }
    };
}
first!(first_of_bytes, Vec<u8>, &str);

macro_rules! asks {
    ($name:ident, $request:ty) => {
        #[hg::rpc]
        fn $name(request: $request) -> u64 {
            request.0
        }
    };
}
asks!(ask, &Request);

fn __twice(a: u8) -> u8 {
    2 * a
}

#[hg::rpc]
fn twice(a: u8) -> u8 {
    __twice(a)
}

/// Of a user's own, with room for so many.
mod fixed {
    #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) struct Vec<T, const N: usize>(pub(super) T);
}

#[hg::rpc]
fn same(value: fixed::Vec<u8, 8>) -> fixed::Vec<u8, 8> {
    value
}

mod interface {
    #[hg::rpc]
    pub(super) fn scale(values: Vec<f64>, by: f64) -> Result<Vec<f64>, String>;
}

#[hg::rpc(implements = interface::scale)]
fn scale(values: Vec<f64>, by: f64) -> Result<Vec<f64>, String> {
    if by.is_finite() { Ok(values.iter().map(|v| v * by).collect()) } else { Err(by.to_string()) }
}

#[test]
fn names_are_paths_unless_given() {
    assert_eq!(name(add), "rpc::add");
    assert_eq!(name(interface::scale), "rpc::interface::scale");
    assert_eq!(name(put), "store/v1/put");
    assert_eq!(name(r#type), "rpc::type");
    assert_eq!(add::ID, RpcId::of_name("rpc::add"));
}

#[test]
fn arguments_and_results_of_every_shape_travel() {
    assert_eq!(call(add, (2, 3)), Ok(5));
    assert_eq!(call(tick, ()), Ok(()));
    assert_eq!(call(r#type, (7,)), Ok(7));
    let value = vec![1, 2];
    assert_eq!(call(put, ("k", &value, vec![3])).unwrap(), b"k\x01\x02\x03");
}

#[test]
fn functions_from_other_macros_have_the_same_shapes() {
    let packed: (serde_bytes::ByteBuf, &str) = first_of_bytes::pack((vec![1], "x"));
    assert_eq!(packed.0.as_slice(), [1]);
    assert_eq!(call(first_of_bytes, (vec![1], "x")).unwrap(), [1]);
}

#[test]
fn a_request_is_known_through_another_macro_too() {
    assert_eq!(call(ask, ()), Ok(40));
}

#[test]
fn a_helper_may_have_the_name_with_two_underscores() {
    assert_eq!(call(twice, (2,)), Ok(4));
}

#[test]
fn a_type_called_vec_with_another_argument_is_no_list_of_bytes() {
    assert_eq!(call(same, (fixed::Vec(7),)), Ok(fixed::Vec(7)));
}

#[test]
#[expect(deprecated, reason = "that is the test")]
fn a_deprecated_rpc_still_works_and_only_its_users_are_told() {
    assert_eq!(call(old, (1,)), Ok(1));
}

#[test]
fn a_handlers_error_reaches_its_caller() {
    assert_eq!(call(find, ("answer",)), Ok(42));
    assert_eq!(call(find, ("x",)), Err(NoSuchKey("x".to_owned())));
    assert_eq!(call(later_or_never, (0,)), Ok(()));
    assert_eq!(call(later_or_never, (9,)), Err(NoSuchKey("9".to_owned())));
}

#[test]
fn the_context_is_passed_and_does_not_travel() {
    assert_eq!(call(who, (2,)), Ok(42));
    assert_eq!(call(elsewhere, ()), Ok(40));
    assert_eq!(call(later, ("t", &[1, 2], 2)).unwrap(), "t [1, 2] 42");
}

#[test]
fn kinds_follow_from_the_function() {
    assert_eq!(kind(add), ServeKind::Plain);
    assert_eq!(kind(later), ServeKind::Async);
    assert_eq!(kind(find), ServeKind::Blocking);
}

#[test]
fn an_rpc_can_be_called_as_the_function_that_it_is() {
    assert_eq!(add(2, 3), 5);
    assert_eq!(who(&Request(1), 2), 3);
    assert_eq!(put("a", b"b", vec![b'c']), b"abc");
    assert_eq!(factorial(5), 120);
    let text = String::from("t");
    assert_eq!(ready(later(&Request(1), &text, &[], 1)), "t [] 2");
    assert_eq!(ready(later_or_never(0)), Ok(()));
}

#[test]
fn in_its_own_body_the_name_is_the_rpc() {
    assert_eq!(call(own_name, ()).unwrap(), "rpc::own_name");
}

#[test]
fn an_implementation_has_the_declarations_name_and_types() {
    assert_eq!(name(scale), name(interface::scale));
    assert_eq!(scale::ID, interface::scale::ID);
    assert_eq!(call(scale, (vec![1.0, 2.0], 2.0)).unwrap(), [2.0, 4.0]);
    assert_eq!(call(scale, (vec![], f64::INFINITY)), Err("inf".to_owned()));
}

#[test]
fn byte_arguments_are_borrowed_from_the_message() {
    let mut message = [0; 64];
    let packed = put::pack(("key", b"value", vec![]));
    let used = codec::Default::encode(&packed, &mut message).unwrap();
    let wire = codec::Default::decode::<<put as Rpc>::WireArgs<'_>>(&message[..used]).unwrap();
    let (key, value, _) = put::unpack(wire);
    let range = message.as_ptr_range();
    assert!(range.contains(&key.as_ptr()) && range.contains(&value.as_ptr()));
}

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
