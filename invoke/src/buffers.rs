//! Functions that are given a buffer, and the buffers that others are reading. No I/O.

use hg_core::rpc::Rpc;
use hg_na::LocalSlice;
use rustc_hash::FxHashMap;

use crate::Synchronizer;

/// Arguments that end with one of this type: `(A, B, Last)` is made of `(A, B)` and a `Last`.
///
/// It says of a function that it can be called with a buffer: its last argument is `&[u8]` for [`Worker::call_buffer`](crate::Worker::call_buffer),
/// and [`Written`](crate::Written) for [`Worker::call_buffer_written`](crate::Worker::call_buffer_written). Tuples of up to 12 have it.
pub trait EndsWith<Last> {
    /// Those in front of it.
    type Front;
    /// All of them.
    fn join(front: Self::Front, last: Last) -> Self;
    /// Those in front of it again.
    fn front(self) -> Self::Front;
}

/// The arguments of a function in front of the last one.
pub type FrontOf<'a, F, Last> = <<F as Rpc>::Args<'a> as EndsWith<Last>>::Front;

impl<Last> EndsWith<Last> for (Last,) {
    type Front = ();

    fn join((): (), last: Last) -> Self {
        (last,)
    }

    fn front(self) {}
}

macro_rules! ends_with {
    (@ $($front:ident $Front:ident)*) => {
        impl<$($Front,)* Last> EndsWith<Last> for ($($Front,)* Last,) {
            type Front = ($($Front,)*);

            fn join(front: Self::Front, last: Last) -> Self {
                let ($($front,)*) = front;
                ($($front,)* last,)
            }

            fn front(self) -> Self::Front {
                let ($($front,)* _last,) = self;
                ($($front,)*)
            }
        }
    };
    ($($done:ident $Done:ident)+ ;) => { ends_with!(@ $($done $Done)*); };
    ($($done:ident $Done:ident)+ ; $next:ident $Next:ident $($rest:tt)*) => {
        ends_with!(@ $($done $Done)*);
        ends_with!($($done $Done)* $next $Next ; $($rest)*);
    };
}

ends_with!(a A; b B c C d D e E f F g G h H i I j J k K);

/// The calls of a worker whose receivers have not read their buffers yet.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    of: FxHashMap<u64, Buffered>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Buffered {
    end: u32,
    /// Is reached as long as this is there.
    _bytes: LocalSlice,
    /// Whoever is told.
    pub(crate) told: Option<Synchronizer>,
}

impl Unread {
    /// Whether none is to be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether as many are to be read as may.
    pub(crate) fn is_full(&self) -> bool {
        self.of.len() >= UNREAD_MAX
    }

    /// One that this end will read.
    pub(crate) fn add(
        &mut self,
        number: u64,
        end: u32,
        bytes: LocalSlice,
        told: Option<Synchronizer>,
    ) {
        self.of.insert(number, Buffered { end, _bytes: bytes, told });
    }

    /// This end is done with it.
    pub(crate) fn remove(&mut self, number: u64, end: u32) -> Option<Buffered> {
        if self.of.get(&number)?.end != end {
            return None;
        }
        self.of.remove(&number)
    }

    /// Those of an end that is gone.
    pub(crate) fn remove_all(&mut self, end: u32) -> Vec<Buffered> {
        self.of.extract_if(|_, it| it.end == end).map(|(_, it)| it).collect()
    }

    /// Whoever waits, when nothing will come any more.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Synchronizer> + use<> {
        std::mem::take(&mut self.of).into_values().filter_map(|it| it.told)
    }
}

/// Buffers of a worker that others are to read at once.
pub(crate) const UNREAD_MAX: usize = 1024;
