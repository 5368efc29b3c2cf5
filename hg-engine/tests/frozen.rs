//! Frozen memory among arguments, over the in-process reference transport.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fmt, sync::mpsc, thread, time::Duration};

use hg_core::error::CallError;
use hg_engine::{Answer, Builder, CallOptions, Engine, Progress, Request};
use hg_macros::rpc;
use hg_na::Frozen;
use hg_na_conformance::Mem;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use watchdog::Watchdog;

mod hg;

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().copied().map(u64::from).sum()
}

#[rpc(crate = crate::hg)]
fn sum(image: Frozen) -> u64 {
    sum_of(&image)
}

#[rpc(crate = crate::hg)]
async fn sum_later(image: Frozen) -> u64 {
    sum_of(&image)
}

#[rpc(crate = crate::hg, blocking)]
fn sum_blocking(image: Frozen) -> u64 {
    sum_of(&image)
}

#[rpc(crate = crate::hg)]
fn sum_given(image: Frozen) -> u64;

/// What stands for frozen memory among arguments, without any: its number.
struct Forged;

impl Serialize for Forged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(Frozen::NAME, &0_u32)
    }
}

/// As that of frozen memory: the signature is the same.
impl<'de> Deserialize<'de> for Forged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Made;
        impl de::Visitor<'_> for Made {
            type Value = Forged;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("nothing")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Forged, E> {
                Ok(Forged)
            }
        }
        deserializer.deserialize_newtype_struct(Frozen::NAME, Made)
    }
}

/// Requests that say that they hold frozen memory, and lend none.
mod forged {
    use super::Forged;

    #[hg_macros::rpc(crate = crate::hg, name = "frozen::shown")]
    pub(super) fn shown(image: Forged) -> u64;

    #[hg_macros::rpc(crate = crate::hg, name = "frozen::shown_later")]
    pub(super) fn shown_later(image: Forged) -> u64;
}

#[rpc(crate = crate::hg, name = "frozen::shown")]
fn shown(image: Frozen) -> u64;

#[rpc(crate = crate::hg, name = "frozen::shown_later")]
fn shown_later(image: Frozen) -> u64;

#[rpc(crate = crate::hg)]
fn slow();

/// Nested, and more than one.
#[derive(Serialize, Deserialize)]
struct Scene {
    name: String,
    layers: Vec<Layer>,
    mask: Option<Frozen>,
}

#[derive(Serialize, Deserialize)]
enum Layer {
    Plain(u8),
    Image { at: u32, image: Frozen },
}

#[rpc(crate = crate::hg)]
fn describe(first: Frozen, scene: Scene, padding: &[u8]) -> String {
    let layer = |layer: &Layer| match layer {
        Layer::Plain(color) => format!("plain {color}"),
        Layer::Image { at, image } => format!("{:?} at {at}", &**image),
    };
    let layers: Vec<_> = scene.layers.iter().map(layer).collect();
    let mask = scene.mask.map(|it| it.to_vec());
    format!("{:?} {} {layers:?} {mask:?} {}", &*first, scene.name, padding.len())
}

#[rpc(crate = crate::hg)]
fn give_back(image: Frozen) -> Frozen {
    image
}

#[rpc(crate = crate::hg)]
fn pass_on(image: Frozen) -> u64;

#[rpc(crate = crate::hg)]
fn unknown(image: Frozen);

#[rpc(crate = crate::hg)]
fn never(image: Frozen);

#[rpc(crate = crate::hg)]
fn tell(image: Frozen);

const MIB: usize = 1 << 20;

fn builder() -> Builder {
    Builder::new().plugin(Mem::default())
}

fn pair(target: Builder, origin: Builder) -> (Engine, Engine) {
    let mem = Mem::default();
    let target = target.plugin(mem.clone()).listen(true).open("mem://").unwrap();
    target.register(sum).unwrap();
    target.register(sum_later).unwrap();
    target.register(sum_blocking).unwrap();
    target.register(describe).unwrap();
    target.register(give_back).unwrap();
    let on = |request: Request, (image,): (Frozen,)| async move {
        let engine = request.engine();
        Ok(engine.call(sum, &request.origin(), (image,)).await.unwrap())
    };
    target.serve_async(pass_on, on).unwrap();
    let given = |_: &Request, (image,): (Frozen,), answer: Answer<sum_given>| {
        answer.send(Ok(sum_of(&image)));
    };
    target.serve_later(sum_given, given).unwrap();
    let origin = origin.plugin(mem).open("mem://").unwrap();
    origin.register(sum).unwrap();
    (target, origin)
}

fn numbers(len: usize) -> Frozen {
    Frozen::from((0..=u8::MAX).cycle().take(len).collect::<Vec<_>>())
}

fn assert_nothing_kept(handles: &[&Engine]) {
    for handle in handles {
        while handle.large_untaken() != 0 || handle.requests_in_service() != 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_kind_of_handler_is_given_the_bytes_of_any_length() {
    for checksum in [false, true] {
        let (target, origin) = pair(builder(), builder().checksum(checksum));
        let peer = origin.lookup(target.address()).unwrap();
        for len in [0, 1, 5000, MIB, 8 * MIB] {
            let image = numbers(len);
            let expected = sum_of(&image);
            for _ in 0..2 {
                let image = || (image.clone(),);
                assert_eq!(origin.call(sum, &peer, image()).wait().unwrap(), expected);
                assert_eq!(origin.call(sum_later, &peer, image()).wait().unwrap(), expected);
                assert_eq!(origin.call(sum_blocking, &peer, image()).wait().unwrap(), expected);
                assert_eq!(origin.call(sum_given, &peer, image()).wait().unwrap(), expected);
            }
        }
        assert_nothing_kept(&[&target, &origin]);
    }
}

#[test]
fn several_of_them_nested_and_beside_arguments_beyond_one_message_each_come_to_their_place() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    for padding in [0, MIB] {
        let shared = Frozen::from(vec![4, 5]);
        let layers = vec![
            Layer::Plain(9),
            Layer::Image { at: 1, image: shared.clone() },
            Layer::Image { at: 2, image: Frozen::from(Vec::new()) },
            Layer::Image { at: 3, image: shared },
        ];
        let mask = Some(Frozen::from(vec![6]));
        let scene = Scene { name: "hall".to_owned(), layers, mask };
        let padding = vec![0; padding];
        let args = (Frozen::from(vec![1]), scene, &*padding);
        let said = origin.call(describe, &peer, args).wait().unwrap();
        let layers = r#"["plain 9", "[4, 5] at 1", "[] at 2", "[4, 5] at 3"]"#;
        assert_eq!(said, format!("[1] hall {layers} Some([6]) {}", padding.len()));
    }
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn what_a_handler_was_given_it_passes_on() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let image = numbers(MIB);
    let expected = sum_of(&image);
    assert_eq!(origin.call(pass_on, &peer, (image,)).wait().unwrap(), expected);
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn one_way_calls_keep_the_memory_until_it_was_taken() {
    let (target, origin) = pair(builder(), builder());
    let (sender, arrived) = mpsc::channel();
    target
        .serve(tell, move |_request, (image,)| {
            sender.send(sum_of(&image)).unwrap();
            Ok(())
        })
        .unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let expected = sum_of(&numbers(MIB));
    // The only clone goes with the call.
    origin.notify(tell, &peer, (numbers(MIB),)).wait().unwrap();
    drop(origin.notify(tell, &peer, (numbers(MIB),)));
    // Nobody serves this one; its memory goes all the same.
    origin.notify(unknown, &peer, (numbers(MIB),)).wait().unwrap();
    assert_eq!((arrived.recv().unwrap(), arrived.recv().unwrap()), (expected, expected));
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn it_is_an_argument_of_calls_and_nothing_else() {
    let (target, origin) = pair(builder(), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(give_back, &peer, (numbers(10),)).wait();
    let Err(CallError::Decode(why)) = &answer else { panic!("{answer:?}") };
    // Postcard keeps no sentence of a type's.
    let says = <hg_core::codec::Default as hg_core::codec::Codec>::NAME != "postcard";
    let is_said = |why: &str| !says || why.contains("only among");
    assert!(is_said(why), "{why}");
    let apart = <hg_core::codec::Default as hg_core::codec::Codec>::size(&numbers(1));
    assert!(apart.is_err_and(|it| is_said(&it.to_string())));
    // What was serialized in vain is no argument of the next call.
    assert_eq!(origin.call(sum, &peer, (numbers(2),)).wait().unwrap(), 1);
}

#[test]
fn a_declaration_with_another_type_in_its_place_is_another_signature() {
    mod number {
        #[hg_macros::rpc(crate = crate::hg, name = "sums")]
        pub(super) fn sums(image: u32) -> u64;
    }
    mod image {
        use hg_na::Frozen;
        #[hg_macros::rpc(crate = crate::hg, name = "sums")]
        pub(super) fn sums(image: Frozen) -> u64;
    }
    let (target, origin) = pair(builder(), builder());
    target.serve(image::sums, |_, (image,)| Ok(sum_of(&image))).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(number::sums, &peer, (0,)).wait();
    assert!(matches!(answer, Err(CallError::SignatureMismatch(_))), "{answer:?}");
    assert_eq!(origin.call(image::sums, &peer, (numbers(2),)).wait().unwrap(), 1);
}

#[test]
fn more_than_a_limit_is_refused_on_either_side_with_a_sentence_that_names_it() {
    let (target, origin) = pair(builder().large_max(MIB as u64), builder());
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(sum, &peer, (numbers(MIB + 1),)).wait();
    assert!(matches!(&answer, Err(CallError::Rejected(why)) if why.contains("large_max")));
    assert_eq!(origin.call(sum, &peer, (numbers(MIB),)).wait().unwrap(), sum_of(&numbers(MIB)));
    let (target, origin) = pair(builder(), builder().large_max(MIB as u64));
    let peer = origin.lookup(target.address()).unwrap();
    let answer = origin.call(sum, &peer, (numbers(MIB + 1),)).wait();
    assert!(
        matches!(&answer, Err(own @ CallError::NotMade(_)) if own.to_string().contains("large_max"))
    );
    let layers = (0..65).map(|at| Layer::Image { at, image: numbers(1) }).collect();
    let scene = Scene { name: String::new(), layers, mask: None };
    let answer = origin.call(describe, &peer, (numbers(1), scene, &[])).wait();
    let Err(CallError::NotMade(why)) = &answer else { panic!("{answer:?}") };
    assert!(why.to_string().contains("64"), "{why}");
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn deadlines_and_cancellation_end_such_calls_and_the_next_one_works() {
    let (target, origin) = pair(builder(), builder());
    target
        .serve_async(never, |request, (_image,)| async move {
            request.cancelled().await;
            Ok(())
        })
        .unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let options = CallOptions::within(Duration::from_millis(20));
    let answer = origin.call_with(never, &peer, (numbers(MIB),), options).wait();
    assert!(matches!(answer, Err(CallError::DeadlineExceeded(_))), "{answer:?}");
    let call = origin.call(never, &peer, (numbers(MIB),));
    call.cancel();
    assert!(matches!(call.wait(), Err(CallError::Cancelled)));
    drop(origin.call(never, &peer, (numbers(MIB),)));
    let answer = origin.call(unknown, &peer, (numbers(MIB),)).wait();
    assert!(matches!(answer, Err(CallError::NoSuchRpc { .. })));
    assert_eq!(origin.call(sum, &peer, (numbers(2),)).wait().unwrap(), 1);
    assert_nothing_kept(&[&target, &origin]);
}

#[test]
fn an_origin_that_goes_leaves_nothing_at_its_target() {
    let (target, origin) = pair(builder(), builder());
    let (sender, begun) = mpsc::channel();
    target
        .serve_async(never, move |request, (image,)| {
            sender.send(image.len()).unwrap();
            async move {
                request.cancelled().await;
                drop(image);
                Ok(())
            }
        })
        .unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let call = origin.call(never, &peer, (numbers(MIB),));
    assert_eq!(begun.recv().unwrap(), MIB);
    std::mem::forget(call);
    drop(origin);
    assert_nothing_kept(&[&target]);
}

/// While a handler that was given frozen memory waits, its thread serves others.
#[test]
fn what_one_request_lends_is_no_argument_of_another_one() {
    let _watchdog = Watchdog::start();
    let mem = Mem::default();
    let open = |builder: Builder| builder.plugin(mem.clone()).listen(true).open("mem://").unwrap();
    let third = open(Builder::new());
    let (give, given) = mpsc::channel();
    third.serve_later(slow, move |_, (), answer| give.send(answer).unwrap()).unwrap();

    // Nobody makes its progress but the test, until the handler waits, and then the handler.
    let target = open(Builder::new().progress(Progress::Own));
    target.serve(shown, |_, (image,)| Ok(sum_of(&image))).unwrap();
    target.serve_async(shown_later, |_, (image,)| async move { Ok(sum_of(&image)) }).unwrap();
    let address = third.address().clone();
    let wait = move |request: &Request, (image,): (Frozen,)| {
        let engine = request.engine();
        engine.call(slow, &engine.lookup(&address).unwrap(), ()).wait().unwrap();
        Ok(sum_of(&image))
    };
    target.serve_blocking(sum_blocking, wait).unwrap();

    let honest = open(Builder::new());
    let peer = honest.lookup(target.address()).unwrap();
    let mut call = honest.call(sum_blocking, &peer, (numbers(MIB),));
    let answer: Answer<slow> = loop {
        target.progress(Duration::ZERO);
        match given.try_recv() {
            Ok(answer) => break answer,
            Err(_) => thread::yield_now(),
        }
    };
    let thief = open(Builder::new());
    let peer = thief.lookup(target.address()).unwrap();
    let taken = thief.call(forged::shown, &peer, (Forged,)).wait();
    assert!(matches!(taken, Err(CallError::Decode(_))), "{taken:?}");
    let taken = thief.call(forged::shown_later, &peer, (Forged,)).wait();
    assert!(matches!(taken, Err(CallError::Decode(_))), "{taken:?}");
    answer.send(Ok(()));
    let seen = loop {
        target.progress(Duration::ZERO);
        match call.try_wait() {
            Some(seen) => break seen,
            None => thread::yield_now(),
        }
    };
    assert_eq!(seen.unwrap(), sum_of(&numbers(MIB)));
    assert_nothing_kept(&[&target, &honest]);
}
