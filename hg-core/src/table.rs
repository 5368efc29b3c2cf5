//! A table whose keys are never good for a second entry: an index and how often it was used.

/// Bits of a key that count how often its place was used before.
const GENERATION_BITS: u32 = 28;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// Key of an entry: 28 bits of generation above 32 bits of index, so 60 bits in all.
///
/// It serves as the id on the wire, too, and leaves four bits for whoever needs a kind beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// Bits above a key.
    pub const SPARE_BITS: u32 = 4;

    #[inline(always)]
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    /// As a number below 2^60.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From a number; spare bits are ignored.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & (u64::MAX >> Self::SPARE_BITS))
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    #[inline(always)]
    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("a key has 60 bits")
    }
}

/// A table of `T` with generational keys. Places are reused last in, first out.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Entries.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// At 2^32 entries: the caller limits them long before.
    #[inline]
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|| value)
    }

    /// Adds an entry that is made where it stays.
    ///
    /// # Panics
    /// At 2^32 entries: the caller limits them long before.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Key {
        if self.free.is_empty() {
            self.grow();
        }
        let index = self.free.pop().expect("a free place was made");
        let place = &mut self.places[index as usize];
        // Nothing is dropped: a free place holds nothing.
        std::mem::forget(place.value.replace(make()));
        Key::new(index, place.generation)
    }

    /// The key that the next entry will have.
    ///
    /// # Panics
    /// At 2^32 entries: the caller limits them long before.
    #[inline(always)]
    pub fn next_key(&mut self) -> Key {
        if self.free.is_empty() {
            self.grow();
        }
        let index = self.free.last().copied().expect("a free place was made");
        Key::new(index, self.places[index as usize].generation)
    }

    #[cold]
    fn grow(&mut self) {
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 entries");
        self.places.push(Place { generation: 0, value: None });
        self.free.push(index);
    }

    /// The entry, if it is still the same one.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        place.value.as_ref().filter(|_| place.generation == key.generation())
    }

    /// The entry, if it is still the same one.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        place.value.as_mut().filter(|_| place.generation == key.generation())
    }

    /// Takes the entry out; its key is never good again.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation != key.generation() {
            return None;
        }
        let value = place.value.take()?;
        place.generation = (place.generation + 1) & GENERATION_MASK;
        self.free.push(u32::try_from(key.index()).expect("an index has 32 bits"));
        Some(value)
    }

    /// Drops the entry where it is; its key is never good again.
    #[inline(always)]
    pub fn discard(&mut self, key: Key) {
        let Some(place) = self.places.get_mut(key.index()) else { return };
        if place.generation == key.generation() && place.value.is_some() {
            place.value = None;
            place.generation = (place.generation + 1) & GENERATION_MASK;
            self.free.push(u32::try_from(key.index()).expect("an index has 32 bits"));
        }
    }

    /// Looks at an entry and, when `look` says so, forgets it without dropping it: its key is never good again.
    /// `None` when it is not the same entry any more.
    #[inline(always)]
    pub fn look_and_forget<R>(
        &mut self,
        key: Key,
        look: impl FnOnce(&mut T) -> (R, bool),
    ) -> Option<R> {
        let place = self.places.get_mut(key.index())?;
        let value = place.value.as_mut().filter(|_| place.generation == key.generation())?;
        let (found, is_over) = look(value);
        if is_over {
            std::mem::forget(place.value.take());
            place.generation = (place.generation + 1) & GENERATION_MASK;
            self.free.push(u32::try_from(key.index()).expect("an index has 32 bits"));
        }
        Some(found)
    }

    /// Every entry, without its key.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().filter_map(|place| place.value)
    }

    /// Every entry.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().zip(0..).filter_map(|(place, index)| {
            place.value.as_ref().map(|value| (Key::new(index, place.generation), value))
        })
    }

    /// Every entry.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.places.iter_mut().zip(0..).filter_map(|(place, index)| {
            let generation = place.generation;
            place.value.as_mut().map(|value| (Key::new(index, generation), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_for_one_entry_only() {
        let mut table = Table::default();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let next = table.next_key();
        let second = table.insert('b');
        assert_ne!(first, second);
        assert_eq!(next, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&'b'));
    }

    #[test]
    fn generations_wrap_without_growing_into_the_spare_bits() {
        let mut table = Table {
            places: vec![Place { generation: GENERATION_MASK, value: None }],
            free: vec![0],
        };
        let last = table.insert(1);
        assert_eq!(Key::from_bits(last.to_bits() | 0xF << 60), last);
        table.remove(last);
        let wrapped = table.insert(2);
        assert_eq!(wrapped.to_bits() >> 32, 0);
    }
}
