//! Keeps descriptors from forked children.
//!
//! A child's copy of a socket keeps the connection open when the parent dies, so that its peers do not learn of it; and its
//! copy of a listening one takes connections that nobody serves. Closing on exec does not help a child that goes on without.
//! Handlers of `pthread_atfork(3)` put something harmless in their place in the child, under the same numbers, which
//! the child's copies of their owners may close like the real ones. A child that is made without libc's `fork` runs no handlers.

use std::{
    alloc::{Layout, handle_alloc_error},
    cell::UnsafeCell,
    collections::BTreeMap,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use nix::libc;

/// How often each is kept: one that is handed on has two keepers for a moment.
type Numbers = BTreeMap<RawFd, usize>;

/// Descriptors that no child is to have.
static KEPT: Mutex<Numbers> = Mutex::new(BTreeMap::new());
/// Locks them while a thread forks, so that the child finds them whole.
static FORKING: Forking = Forking(UnsafeCell::new(None));

/// Keeps a descriptor from forked children. It must be dropped before the descriptor is closed: a field before the owner's.
#[derive(Debug)]
pub struct NotInherited(RawFd);

impl NotInherited {
    /// Keeps a descriptor from the children of this process that are forked from now on.
    #[must_use]
    pub fn new(descriptor: BorrowedFd<'_>) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(install);
        let number = descriptor.as_raw_fd();
        *lock().entry(number).or_default() += 1;
        Self(number)
    }
}

impl Drop for NotInherited {
    fn drop(&mut self) {
        let mut kept = lock();
        if let Some(keepers) = kept.get_mut(&self.0) {
            *keepers -= 1;
            if *keepers == 0 {
                kept.remove(&self.0);
            }
        }
    }
}

/// What is locked is always whole: nothing panics meanwhile.
fn lock() -> MutexGuard<'static, Numbers> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Forking(UnsafeCell<Option<MutexGuard<'static, Numbers>>>);

// SAFETY:
// - the cell is used by nobody but the thread that holds the lock of `KEPT`: handlers of one fork run in the thread that
//   forks, or in its copy, and what is in the cell is the guard itself.
unsafe impl Sync for Forking {}

impl Forking {
    /// Locks, from before a fork until `take`.
    fn hold(&self) {
        let guard = lock();
        // SAFETY:
        // - exclusive: this thread holds the lock.
        unsafe { *self.0.get() = Some(guard) };
    }

    fn take(&self) -> Option<MutexGuard<'static, Numbers>> {
        // SAFETY:
        // - exclusive: `hold` was called by this thread, which holds the lock, or is the copy of one that does.
        unsafe { (*self.0.get()).take() }
    }
}

fn install() {
    // SAFETY:
    // - the handlers are functions of the program, which live as long as it does.
    // - the child's makes system calls only, and frees or takes no memory.
    let answer = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    if answer != 0 {
        // It has no other reason than that there is no memory for three addresses.
        handle_alloc_error(Layout::new::<[usize; 3]>());
    }
}

extern "C" fn before() {
    FORKING.hold();
}

extern "C" fn in_parent() {
    drop(FORKING.take());
}

extern "C" fn in_child() {
    let Some(numbers) = FORKING.take() else { return };
    // SAFETY:
    // - a system call that takes numbers.
    let harmless = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    for number in numbers.keys() {
        // Without a descriptor left, at least the connection is not kept open.
        if harmless < 0 {
            // SAFETY:
            // - closes what this process is not to have; its owner here is an inert copy.
            unsafe { libc::close(*number) };
        } else {
            // SAFETY:
            // - as above; something else is put in its place at once.
            unsafe { libc::dup3(harmless, *number, libc::O_CLOEXEC) };
        }
    }
    if harmless >= 0 {
        // SAFETY:
        // - opened above, and nobody else knows it.
        unsafe { libc::close(harmless) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        os::{fd::AsFd as _, unix::net::UnixStream},
        time::Duration,
    };

    use nix::{
        sys::{
            signal::{Signal, kill},
            wait::waitpid,
        },
        unistd::{ForkResult, Pid, fork, pause},
    };

    use super::*;

    /// A child that lives until it is killed.
    fn child() -> Pid {
        // SAFETY:
        // - the child waits for its end, without allocating or unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => loop {
                pause();
            },
            ForkResult::Parent { child } => child,
        }
    }

    #[test]
    fn a_connection_ends_with_the_parents_end_of_it_while_a_child_lives() {
        for is_kept in [false, true] {
            let (near, mut far) = UnixStream::pair().unwrap();
            // The child needs a moment until it has let go, and is given it where it is to let go.
            far.set_nonblocking(!is_kept).unwrap();
            far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let kept = is_kept.then(|| NotInherited::new(near.as_fd()));
            let child = child();
            drop(kept);
            drop(near);
            let end = far.read(&mut [0]);
            kill(child, Signal::SIGKILL).unwrap();
            waitpid(child, None).unwrap();
            // A child that has it keeps the connection open, which is what this is for.
            assert_eq!(end.is_ok(), is_kept, "{end:?}");
        }
    }

    #[test]
    fn a_descriptor_is_kept_until_its_last_keeper_is_dropped() {
        let (near, _far) = UnixStream::pair().unwrap();
        let number = near.as_raw_fd();
        let (first, second) = (NotInherited::new(near.as_fd()), NotInherited::new(near.as_fd()));
        drop(first);
        assert!(lock().contains_key(&number));
        drop(second);
        assert!(!lock().contains_key(&number));
    }
}
