//! Signatures against types of every kind.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::{ByteBuf, Bytes};

use super::trace::words;

#[derive(Serialize, Deserialize)]
struct Point {
    x: f64,
    y: f64,
}

#[derive(Serialize, Deserialize)]
struct Swapped {
    y: f64,
    x: f64,
}

#[derive(Serialize, Deserialize)]
struct Id(u64);

#[derive(Serialize, Deserialize)]
enum Shape {
    Nothing,
    Circle(Point, f64),
    Line { from: Point, to: Option<Id> },
    Named(String),
}

#[derive(Serialize, Deserialize)]
enum Side {
    Left(Shape),
    #[serde(alias = "Starboard")]
    Right,
}

#[derive(Serialize, Deserialize)]
struct List {
    value: u8,
    next: Option<Box<List>>,
}

#[derive(Serialize, Deserialize)]
struct Tree {
    children: Vec<Tree>,
}

#[derive(Serialize, Deserialize)]
enum Sum {
    Of(Box<Sum>, Box<Product>),
    Number(i64),
}

#[derive(Serialize, Deserialize)]
enum Product {
    Of(Box<Sum>),
}

#[test]
fn words_say_order_width_and_names_at_every_depth() {
    for (said, expected) in [
        (words::<(i64, u64)>(), "(i64, u64)"),
        (words::<(&str, &Bytes)>(), "(str, bytes)"),
        (words::<(String, ByteBuf)>(), "(str, bytes)"),
        (words::<Vec<u8>>(), "bytes"),
        (words::<()>(), "()"),
        (words::<Id>(), "u64"),
        (words::<[u16; 8]>(), "[u16; 8]"),
        (words::<Point>(), "{x: f64, y: f64}"),
        (words::<Swapped>(), "{y: f64, x: f64}"),
        (words::<Duration>(), "{secs: u64, nanos: u32}"),
        (words::<BTreeMap<String, Vec<Option<u8>>>>(), "map<str, [option<u8>]>"),
        (
            words::<Shape>(),
            "enum{Nothing, Circle({x: f64, y: f64}, f64), Line{from: {x: f64, y: f64}, to: option<u64>}, Named(str)}",
        ),
        (words::<Result<u8, NonZeroU32>>(), "enum{Ok(u8), Err(u32)}"),
    ] {
        assert_eq!(said, expected);
    }
}

#[test]
fn variants_inside_of_variants_are_all_met() {
    let said = words::<(Side, Side)>();
    let shape = words::<Shape>();
    let side = format!("enum{{Left({shape}), Right}}");
    assert_eq!(said, format!("({side}, {side})"));
}

#[test]
fn types_that_contain_themselves_end() {
    assert_eq!(words::<List>(), "{value: u8, next: option<{value: u8, next: ...}>}");
    assert_eq!(words::<Tree>(), "{children: [...]}");
    let sum = words::<Sum>();
    assert!(sum.starts_with("enum{Of(") && sum.ends_with(", Number(i64)}"), "{sum}");
    assert!(sum.contains("...") && !sum.contains('?'), "{sum}");
    let product = words::<Product>();
    assert!(product.contains("...") && !product.contains('?'), "{product}");
}

/// Takes what passes its check, and no made-up value does.
#[derive(Serialize)]
struct Prime;

impl<'de> Deserialize<'de> for Prime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            2 | 3 | 5 | 7 => Ok(Self),
            other => Err(serde::de::Error::custom(other)),
        }
    }
}

struct Panics;

impl<'de> Deserialize<'de> for Panics {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("as ordered")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u8),
    Text(String),
}

#[test]
fn what_cannot_be_traced_is_known_up_to_there() {
    assert_eq!(words::<(u8, Prime, u8)>(), "(u8, u64) ?");
    assert_eq!(words::<(u8, Panics, u8)>(), "(u8, ?) ?");
    assert_eq!(words::<(u8, Untagged)>(), "(u8, ?) ?");
    assert_eq!(words::<crate::rpc::NoError>(), "?");
}

#[test]
fn types_with_too_many_parts_are_given_up() {
    type Eight<T> = (T, T, T, T, T, T, T, T);
    type Many = Eight<Eight<Eight<Eight<Eight<u8>>>>>;
    let said = words::<Many>();
    assert!(said.ends_with(" ?"), "{}", &said[said.len() - 20..]);
}
