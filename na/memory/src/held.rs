//! Memory that whoever makes progress holds for a while.
//!
//! A context is used under a lock of its user's (the engine's), and what keeps memory alive may be of any type of an
//! application's, whose `Drop` may well ask for that lock. So where a plugin may have been left the last share, what is the
//! application's is dropped in a thread of its own.

use std::{mem::ManuallyDrop, ops::Deref, sync::Arc, thread};

use hg_na::Memory;

/// A share of memory, for use inside of progress.
#[derive(Debug, Clone)]
pub struct Held(
    /// `None` only while it is dropped.
    Option<Arc<Memory>>,
);

impl From<Arc<Memory>> for Held {
    fn from(memory: Arc<Memory>) -> Self {
        Self(Some(memory))
    }
}

impl Deref for Held {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        self.0.as_deref().expect("there until it is dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Of those that let go at the same time only the last one is given it.
        let Some(memory) = self.0.take().and_then(Arc::into_inner) else { return };
        // Vectors and shared slices are dropped at once: they are nobody's but the system's.
        if memory.is_kept_by_others() {
            // Where there is no thread to be had it stays for ever, rather than that everything stands still.
            let memory = ManuallyDrop::new(memory);
            let job = || drop(ManuallyDrop::into_inner(memory));
            let _started = thread::Builder::new().name("hg-drop".to_owned()).spawn(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use watchdog::hear;

    use std::fmt;

    use hg_na::{Frozen, Segment, SharedBytes, ViewState};

    use super::*;

    /// What an application's `Drop` may need.
    static LOCK: Mutex<()> = Mutex::new(());

    struct Asks(mpsc::Sender<()>);

    impl Drop for Asks {
        fn drop(&mut self) {
            drop(LOCK.lock().unwrap());
            self.0.send(()).unwrap();
        }
    }

    #[expect(unsafe_code, reason = "memory with a keeper of its own")]
    fn kept() -> (Arc<Memory>, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel();
        let bytes = vec![7_u8; 8].leak();
        let segment = Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
        // SAFETY:
        // - the bytes live for ever, and nobody else has them.
        let memory = unsafe { Memory::from_raw_parts(vec![segment], true, Arc::new(Asks(sender))) };
        (Arc::new(memory), receiver)
    }

    #[test]
    fn what_keeps_memory_alive_is_dropped_where_it_may_do_anything() {
        let (memory, dropped) = kept();
        let alias = Arc::new(Memory::alias(&memory));
        let (one, other) = (Held::from(memory), Held::from(alias));
        let locked = LOCK.lock().unwrap();
        drop(one);
        drop(other.clone());
        assert!(dropped.try_recv().is_err());
        drop(other);
        drop(locked);
        hear(&dropped);
    }

    /// Bytes of an application's own kind that it has frozen.
    #[derive(Debug)]
    struct OwnBytes {
        _asks: Asks,
    }

    impl fmt::Debug for Asks {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("Asks")
        }
    }

    impl ViewState for OwnBytes {
        fn len(&self) -> u64 {
            3
        }

        fn as_slice(&self) -> Option<&[u8]> {
            Some(b"own")
        }
    }

    #[test]
    fn so_is_what_keeps_frozen_memory_alive_also_where_it_is_a_part_of_an_alias() {
        let (sender, dropped) = mpsc::channel();
        let seen = SharedBytes::new(Arc::new(OwnBytes { _asks: Asks(sender) }));
        let memory = Arc::new(Memory::from(Frozen::try_from(seen).unwrap()));
        let part = Held::from(Arc::new(Memory::alias_part(&memory, 0..1)));
        drop(memory);
        let locked = LOCK.lock().unwrap();
        drop(part);
        drop(locked);
        hear(&dropped);
    }

    #[test]
    fn who_has_another_share_drops_it_himself() {
        let (memory, dropped) = kept();
        drop(Held::from(Arc::clone(&memory)));
        assert!(dropped.try_recv().is_err());
        drop(memory);
        assert!(dropped.try_recv().is_ok());
    }
}
