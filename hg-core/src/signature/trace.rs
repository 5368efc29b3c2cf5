//! A deserializer that makes values up, and writes down what it was asked for.
//!
//! One run makes one value of a type. It meets one variant of each enum, so runs are repeated until every variant was met.
//! A type that is met inside of itself is not looked at again: it is given the smallest value that it takes, which is no
//! sequence, no option, and the first variant that ends.

use std::{
    any::type_name,
    cell::{Cell, RefCell},
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
    },
};

use super::shape::{Made, Shape, Variant};
use hg_na::Frozen;

/// Values that are made up for one type at most, over all runs.
pub const VISITS_MAX: u32 = 20_000;
/// Levels of nesting at most.
const DEPTH_MAX: usize = 64;

/// What a type asks of a deserializer, in words; `?` where that cannot be found out.
pub(super) fn words<'de, T: Deserialize<'de>>() -> String {
    let mut first = None;
    for filler in FILLERS {
        match traced::<T>(filler) {
            Ok(shape) => return shape.to_string(),
            // As far as the first one has come.
            Err(shape) => first = first.or(Some(shape)),
        }
    }
    match first {
        None | Some(Shape::Unknown) => "?".to_owned(),
        Some(shape) => format!("{shape} ?"),
    }
}

/// What values are made of; a type that refuses one may take the next (`NonZeroU32`, a UUID).
struct Filler {
    number: u8,
    text: &'static str,
    bytes: &'static [u8],
}

const FILLERS: &[Filler] =
    &[Filler { number: 0, text: "", bytes: b"" }, Filler { number: 1, text: "1", bytes: &[1; 16] }];

/// The shape, as far as it was found out when it is an error.
fn traced<'de, T: Deserialize<'de>>(filler: &'static Filler) -> Result<Shape, Shape> {
    let mut shape = Shape::default();
    let trace = Trace::new(filler);
    loop {
        let seed = std::marker::PhantomData::<T>;
        let run = AssertUnwindSafe(|| enter(&trace, Some(&mut shape), seed).map(drop));
        match catch_unwind(run) {
            Ok(Ok(())) if shape.is_complete() => return Ok(shape),
            Ok(Ok(())) => {}
            Ok(Err(_)) if trace.again.take() => {}
            Ok(Err(_)) | Err(_) => return Err(shape),
        }
        trace.begin_again();
    }
}

/// What all parts of a run share.
struct Trace {
    filler: &'static Filler,
    visits: Cell<u32>,
    /// The types that are being made, from the outermost on.
    types: RefCell<Vec<&'static str>>,
    /// The enums among them that get their smallest value, with the number of their variants.
    smallest: RefCell<Vec<(&'static str, u32)>>,
    /// Which variant is the smallest of an enum; the first one unless that was found not to end.
    choices: RefCell<HashMap<&'static str, u32>>,
    /// The run was given up, but the next one will come further.
    again: Cell<bool>,
}

impl Trace {
    fn new(filler: &'static Filler) -> Self {
        Self {
            filler,
            visits: Cell::new(VISITS_MAX),
            types: RefCell::default(),
            smallest: RefCell::default(),
            choices: RefCell::default(),
            again: Cell::new(false),
        }
    }

    fn begin_again(&self) {
        self.types.borrow_mut().clear();
        self.smallest.borrow_mut().clear();
    }

    /// The smallest value of an enum was found not to end: another variant is taken in the next run, of this enum or of one
    /// around it.
    fn choose_others(&self) -> Stop {
        let mut choices = self.choices.borrow_mut();
        for (name, variants) in self.smallest.borrow().iter().rev() {
            let choice = choices.entry(name).or_insert(0);
            *choice += 1;
            if *choice < *variants {
                self.again.set(true);
                break;
            }
            *choice = 0;
        }
        Stop
    }
}

/// A run was given up.
#[derive(Debug)]
struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the type cannot be traced")
    }
}

impl std::error::Error for Stop {}

impl serde::de::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Makes a value of one more type, inside of those that are being made. Without a shape it is the smallest one.
fn enter<'de, S: DeserializeSeed<'de>>(
    trace: &Trace,
    mut shape: Option<&mut Shape>,
    seed: S,
) -> Result<S::Value, Stop> {
    let name = type_name::<S::Value>();
    let left = trace.visits.get().checked_sub(1).ok_or(Stop)?;
    trace.visits.set(left);
    if trace.types.borrow().len() >= DEPTH_MAX {
        return Err(Stop);
    }
    if trace.types.borrow().contains(&name)
        && let Some(shape) = shape.take()
    {
        *shape = Shape::Recursive;
    }
    trace.types.borrow_mut().push(name);
    let value = seed.deserialize(Tracer { trace, shape, name })?;
    trace.types.borrow_mut().pop();
    Ok(value)
}

/// Makes up one value.
struct Tracer<'t> {
    trace: &'t Trace,
    shape: Option<&'t mut Shape>,
    name: &'static str,
}

impl<'t> Tracer<'t> {
    fn leaf(self, word: &'static str) -> &'static Filler {
        if let Some(shape) = self.shape {
            *shape = Shape::Leaf(word);
        }
        self.trace.filler
    }

    /// `count` fields; those of a struct have names.
    fn fields(self, names: &'static [&'static str], count: usize) -> Parts<'t> {
        let shapes = self.shape.map(|shape| shape.parts(Made::Fields, names));
        Parts { trace: self.trace, shapes, at: 0, count }
    }

    /// So many parts of something of any length, of which the smallest has none.
    fn some(self, made: Made, count: usize) -> Parts<'t> {
        let count = if self.shape.is_some() { count } else { 0 };
        let shapes = self.shape.map(|shape| shape.parts(made, &[]));
        Parts { trace: self.trace, shapes, at: 0, count }
    }
}

macro_rules! leaves {
    ($($method:ident $visit:ident $word:literal $value:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
            let value: fn(&'static Filler) -> _ = $value;
            visitor.$visit(value(self.leaf($word)))
        }
    )*};
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Stop;

    leaves! {
        deserialize_bool visit_bool "bool" |it| it.number != 0;
        deserialize_i8 visit_i8 "i8" |it| it.number.cast_signed();
        deserialize_i16 visit_i16 "i16" |it| i16::from(it.number);
        deserialize_i32 visit_i32 "i32" |it| i32::from(it.number);
        deserialize_i64 visit_i64 "i64" |it| i64::from(it.number);
        deserialize_i128 visit_i128 "i128" |it| i128::from(it.number);
        deserialize_u8 visit_u8 "u8" |it| it.number;
        deserialize_u16 visit_u16 "u16" |it| u16::from(it.number);
        deserialize_u32 visit_u32 "u32" |it| u32::from(it.number);
        deserialize_u64 visit_u64 "u64" |it| u64::from(it.number);
        deserialize_u128 visit_u128 "u128" |it| u128::from(it.number);
        deserialize_f32 visit_f32 "f32" |it| f32::from(it.number);
        deserialize_f64 visit_f64 "f64" |it| f64::from(it.number);
        deserialize_char visit_char "char" |it| char::from(b'0' + it.number);
        deserialize_str visit_borrowed_str "str" |it| it.text;
        deserialize_bytes visit_borrowed_bytes "bytes" |it| it.bytes;
        deserialize_string visit_string "str" |it| it.text.to_owned();
        deserialize_byte_buf visit_byte_buf "bytes" |it| it.bytes.to_vec();
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.leaf("()");
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        if name == Frozen::NAME {
            self.leaf("frozen");
            return visitor.visit_unit();
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.shape.map(|shape| shape.parts(Made::Option, &[])) {
            Some(parts) => visitor.visit_some(Tracer { shape: part(parts, 0), ..self }),
            None => visitor.visit_none(),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.some(Made::Seq, 1))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_map(self.some(Made::Map, 2))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.fields(&[], len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.fields(&[], len))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.fields(fields, fields.len()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let Self { trace, shape, name } = self;
        let Some(shape) = shape else {
            if trace.smallest.borrow().iter().any(|(around, _)| *around == name) {
                return Err(trace.choose_others());
            }
            let count = u32::try_from(variants.len()).map_err(|_many| Stop)?;
            trace.smallest.borrow_mut().push((name, count));
            let choice = trace.choices.borrow().get(name).copied().unwrap_or(0);
            let value = visitor.visit_enum(Choice { trace, choice, variant: None })?;
            trace.smallest.borrow_mut().pop();
            return Ok(value);
        };
        let (choice, variant) = shape.next_variant(variants);
        visitor.visit_enum(Choice { trace, choice, variant: Some(variant) })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// What something is made of, one after the other.
struct Parts<'t> {
    trace: &'t Trace,
    shapes: Option<&'t mut Vec<Shape>>,
    at: usize,
    count: usize,
}

/// The shape of one of them, of which all before were met.
fn part(parts: &mut Vec<Shape>, at: usize) -> Option<&mut Shape> {
    if parts.len() == at {
        parts.push(Shape::default());
    }
    parts.get_mut(at)
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = Stop;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        if self.at == self.count {
            return Ok(None);
        }
        let shape = self.shapes.as_mut().and_then(|shapes| part(shapes, self.at));
        self.at += 1;
        enter(self.trace, shape, seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.count - self.at)
    }
}

/// A key and its value.
impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Stop> {
        self.next_element_seed(seed)?.ok_or(Stop)
    }
}

/// One variant of an enum.
struct Choice<'t> {
    trace: &'t Trace,
    choice: u32,
    variant: Option<Variant<'t>>,
}

impl<'de, 't> EnumAccess<'de> for Choice<'t> {
    type Error = Stop;
    type Variant = Tracer<'t>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Tracer<'t>), Stop> {
        let Self { trace, choice, variant } = self;
        let number: serde::de::value::U32Deserializer<Stop> = choice.into_deserializer();
        let Ok(value) = seed.deserialize(number) else {
            // Variants have other names besides, which are counted among them: it was the last one.
            if let Some(variant) = variant {
                trace.again.set(variant.end_before());
            }
            return Err(Stop);
        };
        let shape = variant.map(Variant::into_shape);
        Ok((value, Tracer { trace, shape, name: "" }))
    }
}

impl<'de> VariantAccess<'de> for Tracer<'_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        self.leaf("");
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Stop> {
        self.fields(&[], 1).next_element_seed(seed)?.ok_or(Stop)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.fields(&[], len))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_seq(self.fields(fields, fields.len()))
    }
}
