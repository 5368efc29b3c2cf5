//! A deserializer around another one that keeps a peer's claims within the bytes that it sent.
//!
//! bincode and postcard check every length against the bytes that are left before they copy, but hand
//! a sequence's *count* on as it came. Four claims are left over, and this adaptor refuses them:
//!
//! | claim                                          | would cost                  | answer              |
//! |------------------------------------------------|-----------------------------|---------------------|
//! | a count far over the bytes of the message      | an allocation ahead of them | [`Fault::TooMany`]  |
//! | elements that take no bytes (`Vec<Vec<()>>`)   | a loop of 2^60 rounds       | [`Fault::TooMany`]  |
//! | a recursive type, nested once per byte or four | the stack, and the process  | [`Fault::TooDeep`]  |
//! | more than this process may allocate            | the process (`abort`)       | [`Fault::NoMemory`] |
//!
//! All sequences and maps of a message share one budget of elements, as many as it has bytes. An element that takes bytes has one
//! that no other element has: a number, or the count or variant that its containers begin with. So whatever is honest and has
//! no elements without bytes stays within it.
//!
//! Every container is wrapped on its way in (`Deserializer` -> `Visitor` -> `SeqAccess`, `MapAccess`,
//! `EnumAccess`) and every element on its way out (`Seed` -> `Deserializer`). All of it is generic and
//! inlined: around a tuple of integers the compiler removes it.

use std::{cell::Cell, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Nesting of containers (options, newtypes, tuples, structs, enums, sequences, maps) in one message.
pub(super) const MAX_DEPTH: u32 = 128;

/// What a message may still claim.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'b> {
    /// Elements that sequences and maps of the whole message may still have.
    elements: &'b Cell<usize>,
    /// Containers that may still open inside this one.
    depth: u32,
}

impl<'b> Bounds<'b> {
    /// The bounds of a message of so many bytes, which are the elements that it may have.
    #[inline]
    pub(super) fn of_message(bytes: &'b Cell<usize>) -> Self {
        Self { elements: bytes, depth: MAX_DEPTH }
    }

    /// Takes elements off the message's budget.
    #[inline]
    fn take<E: serde::de::Error>(self, elements: usize) -> Result<(), E> {
        let left = self.elements.get().checked_sub(elements);
        self.elements.set(left.ok_or_else(|| E::custom(Fault::TooMany))?);
        Ok(())
    }

    #[inline]
    fn inside<E: serde::de::Error>(self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth, ..self }),
            None => Err(E::custom(Fault::TooDeep)),
        }
    }
}

enum Fault {
    TooMany,
    TooDeep,
    NoMemory,
}

thread_local! {
    /// Bytes that were refused: a format may forget what an error says.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// How many bytes were refused in this thread since it was asked last, if any were.
#[cold]
pub(super) fn take_refused() -> Option<usize> {
    Some(REFUSED.take()).filter(|len| *len > 0)
}

#[cold]
fn refuse<E: serde::de::Error>(len: usize) -> E {
    REFUSED.set(len);
    E::custom(Fault::NoMemory)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => f.write_str("its sequences have more elements than it has bytes"),
            Self::TooDeep => write!(f, "nested deeper than {MAX_DEPTH} levels"),
            Self::NoMemory => f.write_str("there is no memory for it"),
        }
    }
}

/// A deserializer, or the visitor, access or seed that it deals with, together with its bounds.
pub(super) struct Bounded<'b, T> {
    inner: T,
    bounds: Bounds<'b>,
}

impl<'b, T> Bounded<'b, T> {
    #[inline]
    pub(super) fn new(inner: T, bounds: Bounds<'b>) -> Self {
        Self { inner, bounds }
    }
}

/// Scalars, strings and bytes open no container: handed on as they are.
macro_rules! forward {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        }
    )*};
}

/// A container whose number of elements the message does not choose.
macro_rules! fixed {
    ($($method:ident($($argument:ident: $kind:ty),*))*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            let bounds = self.bounds.inside()?;
            self.inner.$method($($argument,)* Container { visitor, bounds, is_counted: false })
        }
    )*};
}

/// A container whose number of elements the message claims.
macro_rules! counted {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let bounds = self.bounds.inside()?;
            self.inner.$method(Container { visitor, bounds, is_counted: true })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_bool deserialize_char
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64
        deserialize_str deserialize_bytes
        deserialize_unit deserialize_identifier
    }

    #[inline]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_str(Copied(visitor))
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_bytes(Copied(visitor))
    }

    fixed! {
        deserialize_option()
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }
    // The last two: whatever the bytes say they are, so a count that they claim.
    counted! { deserialize_seq deserialize_map deserialize_any deserialize_ignored_any }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// The visitor of a string or byte string that wants bytes of its own: copies them, if there is memory for them.
struct Copied<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Copied<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    #[inline]
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        let mut copy = String::new();
        copy.try_reserve_exact(text.len()).map_err(|_refused| refuse(text.len()))?;
        copy.push_str(text);
        self.0.visit_string(copy)
    }

    #[inline]
    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<V::Value, E> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len()).map_err(|_refused| refuse(bytes.len()))?;
        copy.extend_from_slice(bytes);
        self.0.visit_byte_buf(copy)
    }
}

/// The visitor of a container: bounds what it will visit.
struct Container<'b, V> {
    visitor: V,
    /// Of the elements.
    bounds: Bounds<'b>,
    /// The message chooses how many elements there are.
    is_counted: bool,
}

impl<'b, V> Container<'b, V> {
    /// The elements of this one, as many as they are said to be.
    #[inline]
    fn elements<A, E: serde::de::Error>(
        &self,
        inner: A,
        claimed: Option<usize>,
    ) -> Result<Elements<'b, A>, E> {
        let (bounds, is_counted) = (self.bounds, self.is_counted);
        let left = claimed.filter(|_| is_counted).unwrap_or(0);
        bounds.take(left)?;
        let untried = if left > FEW { left } else { 0 };
        Ok(Elements { inner, bounds, is_counted, left, untried })
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Container<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    #[inline]
    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    #[inline]
    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Bounded::new(inner, self.bounds))
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Bounded::new(inner, self.bounds))
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let elements = self.elements(inner, claimed)?;
        self.visitor.visit_seq(elements)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let elements = self.elements(inner, claimed)?;
        self.visitor.visit_map(elements)
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Bounded::new(inner, self.bounds))
    }
}

/// The elements of a sequence or map: counted.
struct Elements<'b, A> {
    inner: A,
    bounds: Bounds<'b>,
    is_counted: bool,
    /// Taken off the budget already; where that was not known, each is taken when it comes.
    left: usize,
    /// How many there are, before the memory for them was tried out.
    untried: usize,
}

/// So many elements are taken without a trial.
const FEW: usize = 4096;

impl<A> Elements<'_, A> {
    /// Tries out the memory for all elements when the first one comes. A vector doubles its room from what it begins with, so
    /// that it has room for twice as many at most.
    #[inline(always)]
    fn try_out<E: serde::de::Error>(&mut self, size: usize) -> Result<(), E> {
        if self.untried == 0 { Ok(()) } else { self.try_out_now(size) }
    }

    #[cold]
    #[inline(never)]
    fn try_out_now<E: serde::de::Error>(&mut self, size: usize) -> Result<(), E> {
        let len = std::mem::take(&mut self.untried).saturating_mul(2).saturating_mul(size);
        Vec::<u8>::new().try_reserve_exact(len).map_err(|_refused| refuse(len))
    }

    #[inline]
    fn count<T, E: serde::de::Error>(&mut self, element: Option<T>) -> Result<Option<T>, E> {
        if self.is_counted && element.is_some() {
            match self.left.checked_sub(1) {
                Some(left) => self.left = left,
                None => self.bounds.take(1)?,
            }
        }
        Ok(element)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.try_out(size_of::<T::Value>())?;
        let element = self.inner.next_element_seed(Bounded::new(seed, self.bounds))?;
        self.count(element)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let key = self.inner.next_key_seed(Bounded::new(seed, self.bounds))?;
        self.count(key)
    }

    #[inline]
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.try_out(size_of::<T::Value>() + size_of::<usize>())?;
        self.inner.next_value_seed(Bounded::new(seed, self.bounds))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'b, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant>;

    #[inline]
    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, Self::Variant), A::Error> {
        // The variant's number: a scalar.
        let (number, variant) = self.inner.variant_seed(seed)?;
        Ok((number, Bounded::new(variant, self.bounds)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Bounded::new(seed, self.bounds))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let bounds = self.bounds.inside()?;
        self.inner.tuple_variant(len, Container { visitor, bounds, is_counted: false })
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let bounds = self.bounds.inside()?;
        self.inner.struct_variant(fields, Container { visitor, bounds, is_counted: false })
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, T> {
    type Value = T::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.inner.deserialize(Bounded::new(inner, self.bounds))
    }
}
