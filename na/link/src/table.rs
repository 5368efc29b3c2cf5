//! Values in places that are used again, each time under a new generation: peers, connections.

/// Names a value: its place, and which generation of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The place.
    pub index: u32,
    /// How often it had been used before.
    pub generation: u32,
}

impl Key {
    /// Both in one number.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key of a number.
    #[must_use]
    pub fn of(number: u64) -> Self {
        let half = |number: u64| u32::try_from(number & 0xffff_ffff).expect("32 bits");
        Self { index: half(number), generation: half(number >> 32) }
    }
}

/// One place of a table.
#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<Box<T>>,
}

/// Values by place and generation. One may be taken out while something is done with it, and put back.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    used: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Table<T> {
    /// A free place; [`Table::put`] fills it.
    pub fn reserve(&mut self) -> Key {
        self.used += 1;
        if let Some(index) = self.free.pop() {
            return Key { index, generation: self.places[index as usize].generation };
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 at a time");
        self.places.push(Place { generation: 0, value: None });
        Key { index, generation: 0 }
    }

    #[inline]
    fn place(&mut self, key: Key) -> Option<&mut Place<T>> {
        self.places.get_mut(key.index as usize).filter(|place| place.generation == key.generation)
    }

    /// Fills a place that was reserved, or puts back what was taken out.
    #[inline]
    pub fn put(&mut self, key: Key, value: Box<T>) {
        if let Some(place) = self.place(key) {
            place.value = Some(value);
        }
    }

    /// Takes a value out; its place stays its own.
    #[inline]
    pub fn take(&mut self, key: Key) -> Option<Box<T>> {
        self.place(key)?.value.take()
    }

    /// A value, to be changed.
    #[inline]
    pub fn find(&mut self, key: Key) -> Option<&mut T> {
        self.place(key)?.value.as_deref_mut()
    }

    /// A value, to be read.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place.value.as_deref().filter(|_| place.generation == key.generation)
    }

    /// The present value of a place.
    pub fn at(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.value.as_deref_mut()
    }

    /// Whether a place had this generation once, and has it no more.
    #[must_use]
    pub fn is_past(&self, key: Key) -> bool {
        let place = self.places.get(key.index as usize);
        place.is_some_and(|place| key.generation < place.generation)
    }

    /// Drops a value, if it is there, and frees its place.
    pub fn release(&mut self, key: Key) {
        let Some(place) = self.place(key) else { return };
        place.value = None;
        // A place that has seen every generation is not used again.
        if let Some(next) = key.generation.checked_add(1) {
            place.generation = next;
            self.free.push(key.index);
        }
        self.used -= 1;
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_deref())
    }

    /// All values, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_deref_mut())
    }

    /// Takes all values out.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<T>> {
        self.places.iter_mut().filter_map(|place| place.value.take())
    }

    /// Places in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether no place is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_and_its_former_names_find_nothing() {
        let mut table = Table::default();
        let first = table.reserve();
        table.put(first, Box::new('a'));
        assert_eq!((table.get(first), table.len()), (Some(&'a'), 1));
        let taken = table.take(first).unwrap();
        assert!(table.find(first).is_none() && table.len() == 1, "its place is its own");
        table.put(first, taken);
        table.release(first);
        assert!(table.is_empty() && table.is_past(first));
        let second = table.reserve();
        table.put(second, Box::new('b'));
        assert!(second.index == first.index && second != first && table.get(first).is_none());
        assert!(!table.is_past(second) && table.at(second.index) == Some(&mut 'b'));
        table.release(first);
        assert_eq!(table.iter().collect::<Vec<_>>(), [&'b'], "an old name frees nothing");
    }
}
