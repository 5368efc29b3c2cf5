//! Both codecs against the sentences of [`Codec`].

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use serde::{Serialize, de::DeserializeOwned};
use serde_bytes::{ByteBuf, Bytes};

use super::*;

/// Runs a generic test for every codec that is built in.
macro_rules! for_each_codec {
    ($($test:ident)*) => {
        #[cfg(feature = "bincode")]
        mod bincode { $(#[test] fn $test() { super::$test::<super::Bincode>(); })* }
        #[cfg(feature = "postcard")]
        mod postcard { $(#[test] fn $test() { super::$test::<super::Postcard>(); })* }
    };
}

for_each_codec! {
    any_value_survives_the_round_trip_in_exactly_its_size
    a_value_cut_short_anywhere_is_refused
    bytes_left_over_are_refused
    flipped_bits_never_panic
    random_bytes_never_panic
    strings_and_bytes_are_borrowed_from_the_message
    a_claimed_count_is_not_allocated_ahead_of_its_elements
    elements_without_bytes_are_counted
    all_sequences_of_a_message_share_one_budget_of_elements
    whatever_is_honest_stays_within_the_budget
    nesting_is_bounded
    a_nested_value_within_the_bound_survives
    a_value_without_room_says_how_much_there_was
    a_sequence_of_unknown_length_is_unencodable
    a_long_reason_is_shortened
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(u64),
    Tuple(i32, String),
    Struct { points: Vec<(f64, u8)>, label: Option<String> },
}

type Numbers = (i8, i16, i32, i64, i128, u8, u16, u32, u64, u128);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    numbers: Numbers,
    letter: char,
    yes: bool,
    shapes: Vec<Shape>,
    names: BTreeMap<String, u32>,
    body: ByteBuf,
}

/// A record, grown from few enough parts for a tuple strategy.
fn records() -> impl Strategy<Value = Record> {
    let shape = prop_oneof![
        Just(Shape::Unit),
        any::<u64>().prop_map(Shape::Newtype),
        any::<(i32, String)>().prop_map(|(a, b)| Shape::Tuple(a, b)),
        (vec((-1e300..1e300, any::<u8>()), 0..4), any::<Option<String>>())
            .prop_map(|(points, label)| Shape::Struct { points, label }),
    ];
    let body = vec(any::<u8>(), 0..40).prop_map(ByteBuf::from);
    let names = proptest::collection::btree_map(any::<String>(), any::<u32>(), 0..4);
    (any::<Numbers>(), any::<char>(), any::<bool>(), vec(shape, 0..4), names, body).prop_map(
        |(numbers, letter, yes, shapes, names, body)| Record {
            numbers,
            letter,
            yes,
            shapes,
            names,
            body,
        },
    )
}

fn encoded<C: Codec, T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0xa5; C::size(value).unwrap()];
    assert_eq!(C::encode(value, &mut bytes), Ok(bytes.len()));
    bytes
}

fn refuses<C: Codec, T: DeserializeOwned + fmt::Debug>(bytes: &[u8]) -> String {
    match C::decode::<T>(bytes) {
        Err(CodecError::Malformed(reason)) => reason.into(),
        other => panic!("{other:?} from {bytes:?}"),
    }
}

/// Bounded: these run in every build, on small machines.
fn cases() -> ProptestConfig {
    ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() }
}

fn any_value_survives_the_round_trip_in_exactly_its_size<C: Codec>() {
    proptest!(cases(), |(record in records())| {
        let bytes = encoded::<C, _>(&record);
        prop_assert_eq!(C::decode::<Record>(&bytes).unwrap(), record.clone());

        let mut roomy = vec![0; bytes.len() + 9];
        prop_assert_eq!(C::encode(&record, &mut roomy), Ok(bytes.len()));
        prop_assert_eq!(&roomy[..bytes.len()], &bytes[..]);
    });
}

fn a_value_cut_short_anywhere_is_refused<C: Codec>() {
    proptest!(cases(), |(record in records())| {
        let bytes = encoded::<C, _>(&record);
        for len in 0..bytes.len() {
            refuses::<C, Record>(&bytes[..len]);
        }
    });
}

fn bytes_left_over_are_refused<C: Codec>() {
    let mut bytes = encoded::<C, _>(&(7_u64, "seven"));
    bytes.push(0);
    refuses::<C, (u64, String)>(&bytes);
    refuses::<C, ()>(&[0]);
}

fn flipped_bits_never_panic<C: Codec>() {
    proptest!(cases(), |(record in records(), flips in vec(any::<prop::sample::Index>(), 1..8))| {
        let mut bytes = encoded::<C, _>(&record);
        for flip in flips {
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Another value or an error, both are fine; what decodes must encode again.
        if let Ok(other) = C::decode::<Record>(&bytes) {
            encoded::<C, _>(&other);
        }
    });
}

fn random_bytes_never_panic<C: Codec>() {
    proptest!(cases(), |(bytes in vec(any::<u8>(), 0..256))| {
        drop(C::decode::<Vec<Shape>>(&bytes));
        drop(C::decode::<Nested>(&bytes));
        drop(C::decode::<(&str, &Bytes, Option<Box<Record>>)>(&bytes));
    });
}

fn strings_and_bytes_are_borrowed_from_the_message<C: Codec>() {
    let bytes = encoded::<C, _>(&("key", Bytes::new(&[1, 2, 3])));
    let (key, value): (&str, &Bytes) = C::decode(&bytes).unwrap();
    assert_eq!((key, &value[..]), ("key", &[1, 2, 3][..]));
    let message = bytes.as_ptr_range();
    assert!(message.contains(&key.as_ptr()) && message.contains(&value.as_ptr()));
}

/// The size hint that a sequence's visitor is given.
struct Hint(usize);

impl<'de> Deserialize<'de> for Hint {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Hint;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Hint, A::Error> {
                // None: postcard itself does not pass on what the bytes cannot hold.
                Ok(Hint(seq.size_hint().unwrap_or(0)))
            }
        }
        from.deserialize_seq(Visitor)
    }
}

/// The encoded count of a sequence, without its elements.
struct Count(usize);

impl Serialize for Count {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde::ser::SerializeSeq::end(to.serialize_seq(Some(self.0))?)
    }
}

fn a_claimed_count_is_not_allocated_ahead_of_its_elements<C: Codec>() {
    let claim = encoded::<C, _>(&Count(1 << 40));
    assert!(C::decode::<Hint>(&claim).map_or(0, |hint| hint.0) <= claim.len());
    refuses::<C, Vec<Record>>(&claim);
    #[cfg(feature = "bincode")]
    assert_eq!(Bincode::decode::<Hint>(&encoded::<Bincode, _>(&Count(5))).unwrap().0, 5);
}

fn elements_without_bytes_are_counted<C: Codec>() {
    // Without the bound this would be 2^40 rounds of a loop.
    refuses::<C, Vec<()>>(&encoded::<C, _>(&Count(1 << 40)));
    assert_eq!(C::decode::<Vec<()>>(&encoded::<C, _>(&[()][..])).unwrap(), [()]);
}

thread_local! {
    /// How many values of [`Counted`] were read.
    static READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Takes no bytes, and counts how often it is read.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Counted;

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        READ.set(READ.get() + 1);
        <()>::deserialize(from).map(|()| Self)
    }
}

fn all_sequences_of_a_message_share_one_budget_of_elements<C: Codec>() {
    #[derive(Debug, Serialize, Deserialize)]
    enum Inner<T> {
        Tuple((), Vec<T>),
        Struct { items: Option<Vec<T>> },
    }
    // Each claims as many as the message has bytes.
    let counts: Vec<Count> = (0..1000).map(|_| Count(1000)).collect();
    let tuples: Vec<Inner<()>> = (0..1000).map(|_| Inner::Tuple((), vec![(); 1000])).collect();
    let structs: Vec<Inner<()>> =
        (0..1000).map(|_| Inner::Struct { items: Some(vec![(); 1000]) }).collect();
    let (counts, tuples, structs) =
        (encoded::<C, _>(&counts), encoded::<C, _>(&tuples), encoded::<C, _>(&structs));
    let read = |bytes: &[u8], is_refused: fn(&[u8]) -> bool| {
        READ.set(0);
        assert!(is_refused(bytes), "it is taken");
        assert!(READ.get() <= bytes.len(), "{} rounds for {} bytes", READ.get(), bytes.len());
    };
    read(&counts, |it| C::decode::<Vec<Vec<Counted>>>(it).is_err());
    read(&counts, |it| C::decode::<Vec<BTreeMap<Counted, ()>>>(it).is_err());
    read(&counts, |it| C::decode::<Vec<BTreeMap<(), Counted>>>(it).is_err());
    read(&counts, |it| C::decode::<Vec<Vec<(Counted, [u8; 0])>>>(it).is_err());
    read(&tuples, |it| C::decode::<Vec<Inner<Counted>>>(it).is_err());
    read(&structs, |it| C::decode::<Vec<Inner<Counted>>>(it).is_err());
}

fn whatever_is_honest_stays_within_the_budget<C: Codec>() {
    type Maps = Vec<BTreeMap<u8, ()>>;
    type Dense = (Vec<Vec<Option<()>>>, Vec<Vec<Vec<u8>>>, Maps, Vec<(Vec<bool>, Vec<Shape>)>);
    let values = |n: std::ops::Range<usize>| vec(vec(any::<u8>(), n.clone()), n);
    proptest!(cases(), |(
        options in vec(vec(any::<Option<()>>(), 0..9), 0..9), bytes in vec(values(0..5), 0..5),
        keys in values(0..9), flags in vec(vec(any::<bool>(), 0..9), 0..9),
    )| {
        let maps = keys.into_iter().map(|it| it.into_iter().map(|key| (key, ())).collect()).collect();
        let pairs = flags.into_iter().map(|it| (it.clone(), it.iter().map(|_| Shape::Unit).collect()));
        let value: Dense = (options, bytes, maps, pairs.collect());
        prop_assert_eq!(C::decode::<Dense>(&encoded::<C, _>(&value)).unwrap(), value);
    });
}

/// One byte or four for each level, as deep as the bytes go.
#[derive(Debug, Serialize, Deserialize)]
enum Nested {
    Leaf,
    Node(Box<Nested>),
}

fn nest(levels: u32) -> Nested {
    (0..levels).fold(Nested::Leaf, |inner, _| Nested::Node(Box::new(inner)))
}

fn nesting_is_bounded<C: Codec>() {
    refuses::<C, Nested>(&encoded::<C, _>(&nest(bounded::MAX_DEPTH)));
}

fn a_nested_value_within_the_bound_survives<C: Codec>() {
    let bytes = encoded::<C, _>(&nest(bounded::MAX_DEPTH - 1));
    assert_eq!(encoded::<C, _>(&C::decode::<Nested>(&bytes).unwrap()), bytes);
}

fn a_value_without_room_says_how_much_there_was<C: Codec>() {
    for room in 0..C::size(&(u64::MAX, "abc")).unwrap() {
        let refused = C::encode(&(u64::MAX, "abc"), &mut vec![0; room]);
        assert_eq!(refused, Err(CodecError::TooLong { room }));
    }
}

fn a_sequence_of_unknown_length_is_unencodable<C: Codec>() {
    struct Endless;
    impl Serialize for Endless {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            serde::ser::SerializeSeq::end(to.serialize_seq(None)?)
        }
    }
    assert!(matches!(C::size(&Endless), Err(CodecError::Unencodable(_))));
    assert!(matches!(C::encode(&Endless, &mut [0; 64]), Err(CodecError::Unencodable(_))));
}

fn a_long_reason_is_shortened<C: Codec>() {
    struct Talkative;
    impl Serialize for Talkative {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("ü".repeat(1000)))
        }
    }
    match C::encode(&Talkative, &mut [0; 8]) {
        Err(CodecError::Unencodable(reason)) => assert!(reason.len() <= REASON_MAX),
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg(feature = "bincode")]
fn bincode_is_the_documented_bytes() {
    assert_eq!(encoded::<Bincode, _>(&(1_i64, -2_i16)), [1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff]);
    assert_eq!(encoded::<Bincode, _>(&("ab",)), [2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
    assert_eq!(encoded::<Bincode, _>(&Some(true)), [1, 1]);
    assert_eq!(encoded::<Bincode, _>(&Shape::Newtype(5)), [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded::<Bincode, _>(&()), [0_u8; 0]);
}

#[test]
#[cfg(feature = "bincode")]
fn bounds_name_themselves_in_the_error() {
    let nested = refuses::<Bincode, Nested>(&encoded::<Bincode, _>(&nest(bounded::MAX_DEPTH)));
    assert!(nested.contains("nested deeper than 128 levels"), "{nested}");
    let counted = refuses::<Bincode, Vec<()>>(&encoded::<Bincode, _>(&Count(1 << 40)));
    assert!(counted.contains("more elements"), "{counted}");
}

#[test]
#[cfg(feature = "postcard")]
fn postcard_is_the_documented_bytes() {
    assert_eq!(encoded::<Postcard, _>(&(1_i64, -2_i16)), [2, 3]);
    assert_eq!(encoded::<Postcard, _>(&300_u32), [0xac, 0x02]);
    assert_eq!(encoded::<Postcard, _>(&Shape::Newtype(5)), [1, 5]);
}

#[test]
fn whoever_asks_for_postcard_gets_it_though_bincode_is_on_by_default() {
    let expected = if cfg!(feature = "postcard") { "postcard" } else { "bincode" };
    assert_eq!(Default::NAME, expected);
}

#[test]
#[cfg(all(feature = "bincode", feature = "postcard"))]
fn codecs_have_distinct_ids() {
    assert_ne!(Bincode::ID, Postcard::ID);
}
