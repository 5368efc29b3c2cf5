//! A table whose keys are never good for a second entry: an index, and how many entries there were before.

/// Bits of a key that say where its entry is.
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Bits above a key.
const SPARE_BITS: u32 = 4;

/// Entries of a table at a time.
pub const ENTRIES_MAX: usize = 1 << INDEX_BITS;

/// Key of an entry: its number above 28 bits of index, so 60 bits in all.
///
/// It serves as the id on the wire, too, and leaves four bits for whoever needs a kind beside it. Numbers count the
/// entries of a table from its first one on, so that keys are in the order in which they were made; a key comes again
/// after 2^32 entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// Of the entry with this number at this place.
    #[inline(always)]
    #[must_use]
    pub fn new(place: u32, number: u32) -> Self {
        Self(u64::from(number) << INDEX_BITS | u64::from(place))
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
        Self(bits & (u64::MAX >> SPARE_BITS))
    }

    /// Whether it was made after another key of the same table, and not 2^31 or more entries after.
    #[must_use]
    pub fn is_after(self, other: Self) -> bool {
        (1..1 << 31).contains(&self.number().wrapping_sub(other.number()))
    }

    /// The place of its entry.
    #[inline(always)]
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The same as it is kept.
    #[inline(always)]
    #[must_use]
    pub fn place(self) -> u32 {
        (self.0 & INDEX_MASK) as u32
    }

    /// The number of its entry.
    #[expect(clippy::cast_possible_truncation, reason = "a key has 60 bits")]
    #[inline(always)]
    #[must_use]
    pub fn number(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32
    }
}

/// A table of `T` with keys that count. Places are reused last in, first out.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    /// Of the next entry.
    next: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// Of its entry, or of the last one that it had.
    number: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), next: 0 }
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
    /// At [`ENTRIES_MAX`]: the caller limits them long before.
    #[inline]
    pub fn insert(&mut self, value: T) -> Key {
        let key = self.next_key();
        self.insert_next(key, || value);
        key
    }

    /// Adds an entry that is made where it stays, under [`Table::next_key`], which this is.
    #[inline(always)]
    pub(crate) fn insert_next(&mut self, key: Key, make: impl FnOnce() -> T) {
        debug_assert!(key == self.next_key(), "the key of the next entry");
        self.free.pop();
        let place = &mut self.places[key.index()];
        // Nothing is dropped: a free place holds nothing.
        std::mem::forget(place.value.replace(make()));
        place.number = key.number();
        self.next = key.number().wrapping_add(1);
    }

    /// The key that the next entry will have.
    ///
    /// # Panics
    /// At [`ENTRIES_MAX`]: the caller limits them long before.
    #[inline(always)]
    pub fn next_key(&mut self) -> Key {
        if self.free.is_empty() {
            self.grow();
        }
        let index = self.free.last().copied().expect("a free place was made");
        Key::new(index, self.next)
    }

    #[cold]
    fn grow(&mut self) {
        assert!(self.places.len() < ENTRIES_MAX, "fewer than {ENTRIES_MAX} entries");
        let index = u32::try_from(self.places.len()).expect("fewer than 2^28 entries");
        self.places.push(Place { number: 0, value: None });
        self.free.push(index);
    }

    /// The entry, if it is still the same one.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index())?;
        place.value.as_ref().filter(|_| place.number == key.number())
    }

    /// The entry, if it is still the same one.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        place.value.as_mut().filter(|_| place.number == key.number())
    }

    /// Takes the entry out; its key is never good again.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index())?;
        if place.number != key.number() {
            return None;
        }
        let value = place.value.take()?;
        self.free.push(key.place());
        Some(value)
    }

    /// Forgets an entry that is there and owns nothing, where it is; its key is never good again.
    #[inline(always)]
    pub fn forget(&mut self, key: Key) {
        debug_assert!(self.get(key).is_some(), "an entry is forgotten once");
        let Some(place) = self.places.get_mut(key.index()) else { return };
        std::mem::forget(place.value.take());
        self.free.push(key.place());
    }

    /// Every entry, without its key.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().filter_map(|place| place.value)
    }

    /// Every entry.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().zip(0..).filter_map(|(place, index)| {
            place.value.as_ref().map(|value| (Key::new(index, place.number), value))
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
    fn keys_are_in_the_order_in_which_they_were_made_whatever_places_they_name() {
        let mut table = Table { next: u32::MAX - 2, ..Table::default() };
        let mut keys = Vec::new();
        for count in 0..6 {
            keys.push(table.insert(count));
            if count % 2 == 1 {
                table.remove(keys[0]);
                table.remove(keys[count]);
            }
        }
        for (at, key) in keys.iter().enumerate() {
            assert!(!key.is_after(*key));
            assert!(
                keys[..at].iter().all(|before| key.is_after(*before) && !before.is_after(*key))
            );
        }
    }

    #[test]
    fn numbers_wrap_without_growing_into_the_spare_bits() {
        let mut table = Table { next: u32::MAX, ..Table::default() };
        let last = table.insert(1);
        assert_eq!(Key::from_bits(last.to_bits() | 0xF << 60), last);
        table.remove(last);
        let wrapped = table.insert(2);
        assert_eq!(wrapped.to_bits() >> INDEX_BITS, 0);
        assert!(wrapped.is_after(last));
    }
}
