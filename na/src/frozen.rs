//! Bytes that nobody can change any more: memory that is given out as a slice, and an argument of calls.
//!
//! Among arguments there travels a number in place of the bytes. Whoever encodes them collects what they stand for
//! ([`departing`]), and whoever decodes them has it at hand ([`arriving`], [`decoding`]); how it comes from there to here is theirs to say.
//! ```text
//! origin: departing(|| encode(&(7, image)))  ->  bytes of (7, 0), [image]
//! target: arriving([image], || decoding(|| decode(bytes)))  ->  (7, image)
//! ```

use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    thread::LocalKey,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Error as _},
    ser::Error as _,
};

use crate::{Memory, SharedBytes};

/// Bytes that nobody can change any more. Cheap to clone; a slice, wherever they lie: in memory of this process's own, in that of
/// a peer, mapped, or in a copy of it.
///
/// In a forked child, those that lie in memory which it did not inherit have no byte.
#[derive(Clone)]
pub struct Frozen(Arc<Inner>);

struct Inner {
    bytes: SharedBytes,
    made: Mutex<Vec<(u64, Arc<dyn Any + Send + Sync>)>>,
}

/// For how many users something is kept with the same bytes; who was first goes first.
const USERS_MAX: usize = 8;

impl Frozen {
    /// What serde calls it: a newtype around the number that stands for it. A deserializer that makes values up calls
    /// [`serde::de::Visitor::visit_unit`], which gives one without a byte.
    pub const NAME: &'static str = "hg::Frozen";

    /// The same bytes, as a view.
    #[must_use]
    pub fn bytes(&self) -> &SharedBytes {
        &self.0.bytes
    }

    /// What a user, known by a number, has made of these bytes: now, or before for any clone of it. It is dropped with the last
    /// clone, unless that user still has it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn made_for<T: Any + Send + Sync, E>(
        &self,
        user: u64,
        make: impl FnOnce(Memory) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut made = self.0.made.lock().unwrap_or_else(PoisonError::into_inner);
        let before = made.iter().filter(|(of, _)| *of == user);
        if let Some(found) = before.filter_map(|(_, it)| Arc::clone(it).downcast().ok()).next() {
            return Ok(found);
        }
        let new = Arc::new(make(Memory::from(self))?);
        made.push((user, Arc::clone(&new) as _));
        let oldest = if made.len() > USERS_MAX { Some(made.remove(0)) } else { None };
        drop(made);
        drop(oldest);
        Ok(new)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes.as_slice().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Frozen {
    fn from(bytes: Vec<u8>) -> Self {
        let bytes = SharedBytes::from(bytes);
        Self(Arc::new(Inner { bytes, made: Mutex::default() }))
    }
}

impl TryFrom<SharedBytes> for Frozen {
    type Error = SharedBytes;

    /// What is seen, where it can never change; the bytes themselves, where their owner may write them.
    fn try_from(bytes: SharedBytes) -> Result<Self, SharedBytes> {
        if bytes.as_slice().is_none() {
            return Err(bytes);
        }
        Ok(Self(Arc::new(Inner { bytes, made: Mutex::default() })))
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Frozen({} bytes)", self.len())
    }
}

/// What is collected in this thread, for the innermost [`departing`] and those around it: one word, since every call looks at it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scope {
    /// How many there are in the list.
    count: u32,
    /// Where the innermost one's begin in the list; [`CLOSED`]: nobody collects.
    first: u32,
}

const CLOSED: u32 = u32::MAX;

thread_local! {
    /// Has no destructor, so that a look at it costs an instruction.
    static SCOPE: Cell<Scope> = const { Cell::new(Scope { count: 0, first: CLOSED }) };
    static DEPARTING: RefCell<Vec<Frozen>> = const { RefCell::new(Vec::new()) };
    /// This thread is in [`arriving`]. Has no destructor, either.
    static ARRIVES: Cell<bool> = const { Cell::new(false) };
    /// For the next [`decoding`].
    static ARRIVED: RefCell<Vec<Frozen>> = const { RefCell::new(Vec::new()) };
    /// For the innermost one that is under way.
    static DECODED: RefCell<Vec<Frozen>> = const { RefCell::new(Vec::new()) };
}

/// Ends a scope, also where what was called in it has panicked.
struct Open(Scope);

impl Open {
    #[inline(always)]
    fn begin() -> Self {
        let outer = SCOPE.get();
        SCOPE.set(Scope { first: outer.count, ..outer });
        Self(outer)
    }

    /// Whether something was collected.
    #[inline(always)]
    fn has_any(&self) -> bool {
        SCOPE.get().count != self.0.count
    }

    #[cold]
    fn take(&self) -> Vec<Frozen> {
        let first = self.0.count as usize;
        let taken = DEPARTING.try_with(|list| {
            let mut list = list.borrow_mut();
            let first = first.min(list.len());
            list.split_off(first)
        });
        taken.unwrap_or_default()
    }
}

impl Drop for Open {
    #[inline(always)]
    fn drop(&mut self) {
        let has_any = self.has_any();
        SCOPE.set(self.0);
        if has_any {
            drop(self.take());
        }
    }
}

/// Encodes something, and collects what it holds of frozen memory: the number that stands for each is its place.
pub fn departing<T>(encode: impl FnOnce() -> T) -> (T, Vec<Frozen>) {
    let open = Open::begin();
    let encoded = encode();
    let list = if open.has_any() { open.take() } else { Vec::new() };
    SCOPE.set(open.0);
    (encoded, list)
}

/// The same for what is only looked at: whether it holds any.
#[inline(always)]
pub fn holds_frozen<T>(encode: impl FnOnce() -> T) -> (T, bool) {
    let open = Open::begin();
    let encoded = encode();
    (encoded, open.has_any())
}

/// Runs what decodes something that holds the frozen memory of this list, by the first [`decoding`]. What else it decodes has none of it:
/// a handler that is run here may serve others, whose requests are claims.
pub fn arriving<T>(list: Vec<Frozen>, run: impl FnOnce() -> T) -> T {
    let before = Replaced::new(&ARRIVED, list);
    let result = run();
    drop(before);
    result
}

/// Decodes something, with the frozen memory that has [arrived](arriving) for it, if any.
#[inline(always)]
pub fn decoding<T>(decode: impl FnOnce() -> T) -> T {
    if ARRIVES.get() { decoding_arrived(decode) } else { decode() }
}

#[cold]
fn decoding_arrived<T>(decode: impl FnOnce() -> T) -> T {
    let before = Replaced::new(&DECODED, ARRIVED.take());
    let decoded = decode();
    drop(before);
    decoded
}

/// A list that another one has the place of until this is dropped, also where what was called meanwhile has panicked.
struct Replaced {
    place: &'static LocalKey<RefCell<Vec<Frozen>>>,
    before: Vec<Frozen>,
    arrives: bool,
}

impl Replaced {
    #[cold]
    fn new(place: &'static LocalKey<RefCell<Vec<Frozen>>>, list: Vec<Frozen>) -> Self {
        Self { place, before: place.replace(list), arrives: ARRIVES.replace(true) }
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        ARRIVES.set(self.arrives);
        let before = std::mem::take(&mut self.before);
        let _ended = self.place.try_with(|list| list.replace(before));
    }
}

impl Serialize for Frozen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scope = SCOPE.get();
        if scope.first == CLOSED {
            return Err(S::Error::custom(
                "frozen memory travels only among the arguments of a call",
            ));
        }
        let _ended = DEPARTING.try_with(|list| {
            list.borrow_mut().push(self.clone());
            SCOPE.set(Scope { count: scope.count + 1, ..scope });
        });
        serializer.serialize_newtype_struct(Self::NAME, &(scope.count - scope.first))
    }
}

impl<'de> Deserialize<'de> for Frozen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(Self::NAME, Number)
    }
}

struct Number;

impl<'de> de::Visitor<'de> for Number {
    type Value = Frozen;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the number of frozen memory among the arguments of a call")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Frozen, D::Error> {
        let number = u32::deserialize(deserializer)?;
        let found = usize::try_from(number).ok().and_then(|number| {
            DECODED.try_with(|list| list.borrow().get(number).cloned()).ok().flatten()
        });
        found.ok_or_else(|| D::Error::custom("no frozen memory has come under this number"))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Frozen, E> {
        Ok(Frozen::from(Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde::de::value::{Error as Wrong, U32Deserializer};

    use super::*;

    /// Reads the number of the only argument.
    fn decode(number: u32) -> Result<Frozen, Wrong> {
        struct Newtype(u32);
        impl<'de> Deserializer<'de> for Newtype {
            type Error = Wrong;
            fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
                visitor.visit_newtype_struct(U32Deserializer::new(self.0))
            }
            serde::forward_to_deserialize_any! {
                bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
                unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
            }
        }
        Frozen::deserialize(Newtype(number))
    }

    /// Its number, as a formatter of serde's writes it.
    fn encode(frozen: &Frozen) -> Result<String, fmt::Error> {
        struct Shown<'f>(&'f Frozen);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.serialize(out)
            }
        }
        let mut text = String::new();
        fmt::Write::write_fmt(&mut text, format_args!("{}", Shown(frozen)))?;
        Ok(text)
    }

    #[test]
    fn what_departs_arrives_under_its_number_also_from_inside_of_another_one() {
        let [one, two, three] = [1, 2, 3].map(|byte| Frozen::from(vec![byte]));
        let ((first, inner, last), list) = departing(|| {
            let first = encode(&one).unwrap();
            let inner = departing(|| encode(&three).unwrap());
            (first, inner, encode(&two).unwrap())
        });
        assert_eq!((first.as_str(), inner.0.as_str(), last.as_str()), ("0", "0", "1"));
        assert_eq!(inner.1.iter().map(|it| it[0]).collect::<Vec<_>>(), [3]);
        assert_eq!(list.iter().map(|it| it[0]).collect::<Vec<_>>(), [1, 2]);
        arriving(list, || {
            decoding(|| {
                assert_eq!(&*decode(1).unwrap(), [2]);
                let inner = || decoding(|| assert_eq!(&*decode(0).unwrap(), [3]));
                arriving(vec![three], inner);
                assert!(decoding(|| decode(0)).is_err(), "it is another one's");
                assert_eq!(&*decode(0).unwrap(), [1]);
                assert!(decode(2).is_err());
            });
            assert!(decode(0).is_err());
            assert!(decoding(|| decode(0)).is_err(), "it was decoded");
        });
        assert!(decoding(|| decode(0)).is_err());
    }

    #[test]
    fn nothing_departs_outside_of_a_scope_nor_from_one_that_has_panicked() {
        let frozen = Frozen::from(vec![1]);
        assert!(encode(&frozen).is_err());
        let encode_and_panic = || {
            departing(|| {
                encode(&frozen).unwrap();
                panic!("a Serialize of a user's");
            })
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode_and_panic));
        assert!(panicked.is_err() && encode(&frozen).is_err());
        assert_eq!(Arc::strong_count(&frozen.0), 1);
        let (_, list) = departing(|| ());
        assert!(list.is_empty());
    }

    #[test]
    fn it_is_memory_that_nobody_can_write_and_comes_back() {
        let frozen = Frozen::from(vec![1, 2, 3]);
        let memory = Memory::from(&frozen);
        assert!(!memory.writable() && memory.len() == 3);
        assert_eq!(memory.segments()[0].address, frozen.as_ptr().expose_provenance());
        let memory = memory.into_vec().unwrap_err();
        let back = Frozen::try_from(memory).unwrap();
        assert_eq!((&*back, back.as_ptr()), (&[1, 2, 3][..], frozen.as_ptr()));
        assert!(Frozen::try_from(Memory::from(vec![1])).is_err());
    }

    #[test]
    fn what_is_made_of_it_is_made_once_for_each_user_and_goes_with_the_last_clone() {
        static ALIVE: AtomicUsize = AtomicUsize::new(0);
        struct Made(Memory);
        impl Drop for Made {
            fn drop(&mut self) {
                ALIVE.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let frozen = Frozen::from(vec![1, 2]);
        let make = |memory| {
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(Made(memory))
        };
        let first = frozen.made_for(7, make).unwrap();
        assert!(Arc::ptr_eq(&first, &frozen.clone().made_for(7, make).unwrap()));
        assert!(!Arc::ptr_eq(&first, &frozen.made_for(8, make).unwrap()));
        assert_eq!((first.0.len(), ALIVE.load(Ordering::Relaxed)), (2, 2));
        assert!(frozen.made_for::<Made, _>(9, |_| Err("full")).is_err_and(|it| it == "full"));
        for user in 100..200 {
            frozen.made_for(user, make).unwrap();
        }
        assert_eq!(ALIVE.load(Ordering::Relaxed), USERS_MAX + 1, "and the one that is held");
        drop(frozen);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 1);
        drop(first);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    }
}
