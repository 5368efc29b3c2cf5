//! Messages: bytes that are written once, straight into the memory that the transport sends from.

use std::{any::Any, cell::RefCell, fmt, sync::Arc};

/// Bytes that a message carries inside itself, without any memory of its own.
///
/// The payload of one cache-line slot (`na/sm`): 64 bytes less sequence and length.
pub const INLINE_MAX: usize = 56;

/// Bytes of a received message up to which its memory is used again ([`Message::joined`]).
pub const WIDE_MAX: usize = 4 * INLINE_MAX;

/// So many of those a thread keeps: of the messages that it takes from one peer in a round.
const SPARE_MAX: usize = 32;

/// Memory of a transport behind a [`Message`]: a piece of a ring, a registered buffer, a pool's.
///
/// The plugin gets its own type back through `Any` ([`Message::into_body`], [`Message::body_mut`]). Nobody is given it to
/// change while a borrow of [`MessageBody::bytes`] lasts: what lets its bytes go takes `&mut self`.
pub trait MessageBody: Any + Send + Sync + fmt::Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Keeps the first `len` bytes; `len` is at most the present length.
    fn truncate(&mut self, len: usize);
}

impl MessageBody for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }
}

/// One message, outgoing or received.
///
/// Outgoing: ask the context for one ([`crate::Context::message`]), write it, post it. Any other
/// message is copied by the transport once more. Received: private memory that no peer can write.
pub struct Message(Repr);

enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_MAX] },
    Owned(Vec<u8>),
    Wide(Wide),
    Body(Box<dyn MessageBody>),
    Shared(Arc<dyn MessageBody>),
}

impl Message {
    /// A zeroed message that carries its bytes inside itself.
    ///
    /// # Panics
    /// When `len` is over [`INLINE_MAX`]: the caller's own bug.
    #[inline]
    #[must_use]
    pub fn inline(len: usize) -> Self {
        assert!(len <= INLINE_MAX, "an inline message holds {INLINE_MAX} bytes");
        let len = u8::try_from(len).expect("INLINE_MAX fits in a byte");
        Self(Repr::Inline { len, bytes: [0; INLINE_MAX] })
    }

    /// Makes it a zeroed message as [`Message::inline`] gives, where it is: for a message that is used again.
    ///
    /// # Panics
    /// When `len` is over [`INLINE_MAX`]: the caller's own bug.
    #[inline(always)]
    pub fn make_inline(&mut self, len: usize) -> &mut [u8] {
        if !matches!(self.0, Repr::Inline { .. }) {
            self.release();
        }
        let Repr::Inline { len: present, bytes } = &mut self.0 else { return &mut [] };
        *bytes = [0; INLINE_MAX];
        assert!(len <= INLINE_MAX, "an inline message holds {INLINE_MAX} bytes");
        *present = u8::try_from(len).expect("INLINE_MAX fits in a byte");
        &mut bytes[..len]
    }

    /// Lets its memory go.
    #[cold]
    fn release(&mut self) {
        *self = Self::inline(0);
    }

    /// A message of a whole slot's bytes, of which the first `len` count.
    ///
    /// # Panics
    /// When `len` is over [`INLINE_MAX`]: check it first.
    #[inline]
    #[must_use]
    pub fn from_slot(bytes: [u8; INLINE_MAX], len: usize) -> Self {
        assert!(len <= INLINE_MAX, "an inline message holds {INLINE_MAX} bytes");
        let len = u8::try_from(len).expect("INLINE_MAX fits in a byte");
        Self(Repr::Inline { len, bytes })
    }

    /// Makes it such a message where it is.
    ///
    /// # Panics
    /// When `len` is over [`INLINE_MAX`]: check it first.
    #[inline(always)]
    pub fn set_slot(&mut self, slot: [u8; INLINE_MAX], len: usize) {
        if !matches!(self.0, Repr::Inline { .. }) {
            self.release();
        }
        let Repr::Inline { len: present, bytes } = &mut self.0 else { return };
        assert!(len <= INLINE_MAX, "an inline message holds {INLINE_MAX} bytes");
        (*present, *bytes) = (u8::try_from(len).expect("INLINE_MAX fits in a byte"), slot);
    }

    /// A message in the transport's own memory.
    #[must_use]
    pub fn from_body(body: Box<dyn MessageBody>) -> Self {
        Self(Repr::Body(body))
    }

    /// A received message in the transport's own memory, which others may hold on to ([`Message::shared`]).
    #[must_use]
    pub fn from_shared(body: Arc<dyn MessageBody>) -> Self {
        Self(Repr::Shared(body))
    }

    /// The memory of a received message, where the transport lets others hold on to it: what stands in it stays as it is.
    #[inline]
    #[must_use]
    pub fn shared(&self) -> Option<&Arc<dyn MessageBody>> {
        match &self.0 {
            Repr::Shared(body) => Some(body),
            Repr::Inline { .. } | Repr::Owned(_) | Repr::Wide(_) | Repr::Body(_) => None,
        }
    }

    /// Where others hold on to what is about to change, changes a copy.
    #[cold]
    fn unshare(&mut self) {
        if let Repr::Shared(body) = &mut self.0
            && Arc::get_mut(body).is_none()
        {
            self.0 = Repr::Owned(body.bytes().to_vec());
        }
    }

    /// A copy of some bytes.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        if bytes.len() > INLINE_MAX {
            return Self(Repr::Owned(bytes.to_vec()));
        }
        let mut message = Self::inline(bytes.len());
        message.as_mut_slice().copy_from_slice(bytes);
        message
    }

    /// A message of `len` bytes that came in parts of [`INLINE_MAX`], at most [`WIDE_MAX`] in all. Its memory is that of
    /// one that this thread has dropped: an allocator takes longer.
    #[inline]
    #[must_use]
    pub fn joined(parts: impl IntoIterator<Item = [u8; INLINE_MAX]>, len: usize) -> Self {
        let mut bytes = spare().unwrap_or_else(|| Vec::with_capacity(WIDE_MAX));
        for part in parts {
            bytes.extend_from_slice(&part);
        }
        bytes.truncate(len);
        Self(Repr::Wide(Wide(bytes)))
    }

    /// The bytes.
    #[inline(always)]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            _ => self.outer_slice(),
        }
    }

    /// The bytes of one that does not carry them inside itself.
    #[inline(never)]
    fn outer_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { .. } => &[],
            Repr::Owned(bytes) | Repr::Wide(Wide(bytes)) => bytes,
            Repr::Body(body) => body.bytes(),
            Repr::Shared(body) => body.bytes(),
        }
    }

    /// The bytes, to be written.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.0 {
            Repr::Inline { len, ref mut bytes } => &mut bytes[..usize::from(len)],
            _ => self.outer_mut_slice(),
        }
    }

    #[inline(never)]
    fn outer_mut_slice(&mut self) -> &mut [u8] {
        self.unshare();
        match &mut self.0 {
            Repr::Inline { .. } => &mut [],
            Repr::Owned(bytes) | Repr::Wide(Wide(bytes)) => bytes,
            Repr::Body(body) => body.bytes_mut(),
            Repr::Shared(body) => Arc::get_mut(body).map_or(&mut [], |body| body.bytes_mut()),
        }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `len` bytes; more than there are changes nothing.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.unshare();
        }
        match &mut self.0 {
            Repr::Shared(body) => {
                // Otherwise nothing is to be cut.
                if let Some(body) = Arc::get_mut(body).filter(|body| len < body.bytes().len()) {
                    body.truncate(len);
                }
            }
            Repr::Inline { len: present, .. } => {
                *present = u8::try_from(len).map_or(*present, |len| len.min(*present));
            }
            Repr::Owned(bytes) | Repr::Wide(Wide(bytes)) => bytes.truncate(len),
            Repr::Body(body) if len < body.bytes().len() => body.truncate(len),
            Repr::Body(_) => {}
        }
    }

    /// The whole inline slot and the length that counts, when the message is inline.
    ///
    /// Lets a transport copy a constant number of bytes. Bytes behind the length are zero or
    /// left over from this message itself.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> Option<(&[u8; INLINE_MAX], usize)> {
        match &self.0 {
            Repr::Inline { len, bytes } => Some((bytes, usize::from(*len))),
            Repr::Owned(_) | Repr::Wide(_) | Repr::Body(_) | Repr::Shared(_) => None,
        }
    }

    /// Holds its bytes in memory of its own from now on. What waits keeps none of a transport's, which others wait for.
    pub fn make_own(&mut self) {
        if let Repr::Body(_) | Repr::Shared(_) = self.0 {
            self.0 = Repr::Owned(self.as_slice().to_vec());
        }
    }

    /// The transport's own memory, or the message itself when it lives elsewhere.
    ///
    /// # Errors
    /// The message, unchanged.
    pub fn into_body(self) -> Result<Box<dyn MessageBody>, Self> {
        match self.0 {
            Repr::Body(body) => Ok(body),
            other => Err(Self(other)),
        }
    }

    /// The transport's own memory, to look at.
    #[must_use]
    pub fn body(&self) -> Option<&dyn MessageBody> {
        match &self.0 {
            Repr::Body(body) => Some(body.as_ref()),
            Repr::Shared(body) => Some(body.as_ref()),
            Repr::Inline { .. } | Repr::Owned(_) | Repr::Wide(_) => None,
        }
    }

    /// The same, to be changed: of an outgoing message alone, since others may hold on to a received one's.
    pub fn body_mut(&mut self) -> Option<&mut dyn MessageBody> {
        match &mut self.0 {
            Repr::Body(body) => Some(body.as_mut()),
            Repr::Inline { .. } | Repr::Owned(_) | Repr::Wide(_) | Repr::Shared(_) => None,
        }
    }

    /// The bytes as a vector; moves when they already live in one.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Repr::Owned(bytes) => bytes,
            Repr::Wide(mut wide) => std::mem::take(&mut wide.0),
            Repr::Inline { .. } | Repr::Body(_) | Repr::Shared(_) => self.as_slice().to_vec(),
        }
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Repr::Owned(bytes))
    }
}

/// Bytes whose memory is used again once they are dropped.
struct Wide(Vec<u8>);

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of [`WIDE_MAX`] bytes without one in it. `None` also while the thread ends.
#[inline]
fn spare() -> Option<Vec<u8>> {
    SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.pop()).ok().flatten()
}

impl Drop for Wide {
    #[inline]
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        // What it was taken out of has none ([`Message::into_vec`]).
        if bytes.capacity() == WIDE_MAX {
            bytes.clear();
            let _too_late = SPARE.try_with(|spare| {
                if let Ok(mut spare) = spare.try_borrow_mut()
                    && spare.len() < SPARE_MAX
                {
                    spare.push(bytes);
                }
            });
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.0 {
            Repr::Inline { .. } => "inline",
            Repr::Owned(_) | Repr::Wide(_) => "owned",
            Repr::Body(_) | Repr::Shared(_) => "transport",
        };
        write!(out, "Message({} bytes, {place})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_copy_is_inline_and_a_long_one_owned() {
        assert!(Message::copied(&[1; INLINE_MAX]).slot().is_some());
        let long = Message::copied(&[2; INLINE_MAX + 1]);
        assert!(long.slot().is_none());
        assert_eq!(long.into_vec(), vec![2; INLINE_MAX + 1]);
    }

    #[test]
    fn a_message_that_is_used_again_keeps_nothing_of_what_it_held() {
        let long = Message::copied(&[2; INLINE_MAX + 1]);
        for mut message in [Message::copied(&[1; INLINE_MAX]), long] {
            assert_eq!(message.make_inline(3), [0; 3]);
            assert_eq!(message.slot(), Some((&[0; INLINE_MAX], 3)));
        }
    }

    #[test]
    fn parts_are_joined_in_memory_that_a_thread_keeps_and_whoever_takes_it_has_it() {
        let spares = || SPARE.with_borrow(Vec::len);
        let test = move || {
            let wide = |byte: u8| Message::joined([[byte; INLINE_MAX], [byte + 1; INLINE_MAX]], 60);
            let first = wide(1);
            let expected = [[1; INLINE_MAX].as_slice(), &[2; 4]].concat();
            let place = first.as_slice().as_ptr();
            assert_eq!((first.as_slice(), first.slot()), (expected.as_slice(), None));
            drop(first);
            let mut second = wide(3);
            assert_eq!((second.as_slice().as_ptr(), spares()), (place, 0));
            second.truncate(2);
            second.as_mut_slice()[0] = 9;
            let taken = second.into_vec();
            assert_eq!((taken.as_slice(), spares()), ([9, 3].as_slice(), 0));
            let many: Vec<_> = (0..2 * SPARE_MAX).map(|_| wide(5)).collect();
            drop(many);
            assert_eq!(spares(), SPARE_MAX);
            let elsewhere = wide(7);
            std::thread::spawn(move || drop(elsewhere)).join().unwrap();
            assert_eq!(spares(), SPARE_MAX - 1);
            let longest = Message::joined([[7; INLINE_MAX]; WIDE_MAX / INLINE_MAX], WIDE_MAX);
            assert_eq!(longest.as_slice(), [7; WIDE_MAX]);
        };
        std::thread::spawn(test).join().unwrap(); // Which keeps nothing yet.
    }

    #[test]
    fn what_others_hold_on_to_is_not_changed() {
        let shared = || Message::from_shared(Arc::new(vec![1, 2, 3]));
        let (mut written, mut cut) = (shared(), shared());
        let held = [Arc::clone(written.shared().unwrap()), Arc::clone(cut.shared().unwrap())];
        written.as_mut_slice()[0] = 9;
        cut.truncate(5);
        assert!(cut.shared().is_some());
        cut.truncate(1);
        assert_eq!((written.as_slice(), cut.as_slice()), ([9, 2, 3].as_slice(), [1].as_slice()));
        assert!(held.iter().all(|held| held.bytes() == [1, 2, 3]));
        assert!(written.shared().is_none() && written.into_body().is_err());
        assert_eq!(shared().into_vec(), [1, 2, 3]);
    }

    #[test]
    fn what_nobody_else_holds_on_to_is_changed_where_it_lies() {
        let mut message = Message::from_shared(Arc::new(vec![1, 2, 3]));
        let place = message.as_slice().as_ptr();
        message.as_mut_slice()[0] = 9;
        message.truncate(5);
        message.truncate(2);
        assert_eq!((message.as_slice(), message.as_slice().as_ptr()), ([9, 2].as_slice(), place));
        let weak = Arc::downgrade(message.shared().unwrap());
        message.as_mut_slice()[0] = 7;
        assert!(
            weak.upgrade().is_none(),
            "whoever may come back has the bytes as they were, or none"
        );
        assert_eq!(message.as_slice(), [7, 2]);
    }

    #[test]
    fn truncation_never_lengthens() {
        let mut message = Message::copied(b"abc");
        message.truncate(300);
        assert_eq!(message.as_slice(), b"abc");
        message.truncate(1);
        assert_eq!(message.as_slice(), b"a");
        message.truncate(2);
        assert_eq!(message.as_slice(), b"a");
    }
}
