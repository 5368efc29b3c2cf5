//! Values in places that are used again, each time under a new generation: peers, connections.

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
    /// A free place and its generation; [`Table::put`] fills it.
    pub fn reserve(&mut self) -> (u32, u32) {
        self.used += 1;
        if let Some(index) = self.free.pop() {
            return (index, self.places[index as usize].generation);
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 at a time");
        self.places.push(Place { generation: 0, value: None });
        (index, 0)
    }

    #[inline]
    fn place(&mut self, index: u32, generation: u32) -> Option<&mut Place<T>> {
        self.places.get_mut(index as usize).filter(|place| place.generation == generation)
    }

    /// Fills a place that was reserved, or puts back what was taken out.
    #[inline]
    pub fn put(&mut self, index: u32, generation: u32, value: Box<T>) {
        if let Some(place) = self.place(index, generation) {
            place.value = Some(value);
        }
    }

    /// Takes a value out; its place stays its own.
    #[inline]
    pub fn take(&mut self, index: u32, generation: u32) -> Option<Box<T>> {
        self.place(index, generation)?.value.take()
    }

    /// A value, to be changed.
    #[inline]
    pub fn find(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        self.place(index, generation)?.value.as_deref_mut()
    }

    /// A value, to be read.
    #[must_use]
    pub fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let place = self.places.get(index as usize)?;
        place.value.as_deref().filter(|_| place.generation == generation)
    }

    /// The present value of a place.
    pub fn at(&mut self, index: u32) -> Option<&mut T> {
        self.places.get_mut(index as usize)?.value.as_deref_mut()
    }

    /// Whether a place had this generation once, and has it no more.
    #[must_use]
    pub fn is_past(&self, index: u32, generation: u32) -> bool {
        let place = self.places.get(index as usize);
        place.is_some_and(|place| generation < place.generation)
    }

    /// Drops a value, if it is there, and frees its place.
    pub fn release(&mut self, index: u32, generation: u32) {
        let Some(place) = self.place(index, generation) else { return };
        place.value = None;
        // A place that has seen every generation is not used again.
        if let Some(next) = generation.checked_add(1) {
            place.generation = next;
            self.free.push(index);
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
        let (index, first) = table.reserve();
        table.put(index, first, Box::new('a'));
        assert_eq!((table.get(index, first), table.len()), (Some(&'a'), 1));
        let taken = table.take(index, first).unwrap();
        assert!(table.find(index, first).is_none() && table.len() == 1, "its place is its own");
        table.put(index, first, taken);
        table.release(index, first);
        assert!(table.is_empty() && table.is_past(index, first));
        let (again, second) = table.reserve();
        table.put(again, second, Box::new('b'));
        assert!(again == index && second != first && table.get(index, first).is_none());
        assert!(!table.is_past(again, second) && table.at(index) == Some(&mut 'b'));
        table.release(index, first);
        assert_eq!(table.iter().collect::<Vec<_>>(), [&'b'], "an old name frees nothing");
    }
}
