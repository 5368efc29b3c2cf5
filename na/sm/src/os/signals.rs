//! Adds 1 to an eventfd that somebody else made, and never blocks.
//!
//! Whoever shares an eventfd shares its flags: a peer can switch it to blocking and fill its counter, and then `write(2)` waits for as
//! long as the peer likes, also after the peer's death. `RWF_NOWAIT` is refused, and an eventfd cannot be opened anew. The kernel's
//! own way to signal one does not wait, whatever its flags and its counter are, and wakes its sleepers although it is full: a request of
//! `io_submit(2)` that names it in `aio_resfd` signals it when it ends. The request here reads no bytes of a memfd of ours, so it
//! has ended when the call returns. Round trips over eventfds take as long as with `write`, 9.3 us.
//!
//! Where the system gives no such queue (`fs.aio-max-nr` is used up, or a sandbox forbids it), it is left alone, and a packet
//! over the connection's socket wakes the peer ([`crate::link::TheirSide::ring`]).

use std::{
    mem,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
    time::Instant,
};

use hg_na::Error;
use hg_na_memory::ForkGuard;
use hg_na_parts::limits::named;
use nix::{
    errno::Errno,
    libc,
    sys::memfd::{MFdFlags, memfd_create},
};

/// Results that are fetched at a time; nobody reads them.
const FETCHED: usize = 64;

/// `IOCB_CMD_PREAD`.
const READ: u16 = 0;
/// `IOCB_FLAG_RESFD`.
const SIGNALS: u32 = 1;

/// `struct io_event`.
type Event = [u64; 4];

/// How this process signals the eventfds of others.
#[derive(Debug)]
pub(crate) struct Signals {
    /// The kernel's name for the queue, and what its requests read nothing of; made when it is first asked for.
    queue: OnceLock<Option<(usize, OwnedFd)>>,
    /// A forked child has no queue, nor other things of this process.
    guard: Arc<ForkGuard>,
    /// Nor its threads.
    pub(crate) closing: Mutex<Closing>,
}

/// What is closed in threads of its own ([`super::closing`]). Nobody who holds the lock of it waits.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub(crate) queue: Vec<OwnedFd>,
    pub(crate) threads: usize,
    /// Since when somebody is refused for it, and whether that was said.
    pub(crate) full: Option<(Instant, bool)>,
}

/// That of this process: one that was leaked. No lock, which a child that is forked meanwhile would find locked.
static PROCESS: AtomicPtr<Signals> = AtomicPtr::new(ptr::null_mut());

impl Signals {
    /// That of this process. Stays for as long as the process lives: giving a queue back takes the kernel 30 milliseconds.
    ///
    /// # Errors
    /// Where there is no memory for a page.
    pub(crate) fn of_process() -> Result<&'static Self, Error> {
        // Acquire: pairs with the Release below.
        let known = PROCESS.load(Ordering::Acquire);
        // SAFETY:
        // - null, or a value that was leaked, so that it lives on, and is never changed.
        let found = unsafe { known.as_ref() };
        if let Some(found) = found
            && !found.guard.is_child()
        {
            return Ok(found);
        }
        let (guard, closing) = (Arc::new(ForkGuard::new()?), Mutex::default());
        let new = Self { queue: OnceLock::new(), guard, closing };
        let new = Box::into_raw(Box::new(new));
        // Release: whoever finds it sees it whole. Another thread may have been quicker, and then its own is found (Relaxed: nothing
        // is read through it).
        let _quicker = PROCESS.compare_exchange(known, new, Ordering::Release, Ordering::Relaxed);
        Self::of_process()
    }

    /// The queue, if the system gives one.
    pub(crate) fn queue(&self) -> Option<&(usize, OwnedFd)> {
        self.queue.get_or_init(new_queue).as_ref()
    }

    /// Wakes whoever has it in an epoll set; `false`: the system did not take it.
    pub(crate) fn signal(&self, eventfd: BorrowedFd<'_>) -> bool {
        self.queue().is_some_and(|(queue, nothing)| submit(*queue, nothing, eventfd))
    }
}

/// Tells a forked child of this process, which has one of its own.
///
/// # Errors
/// Where there is no memory for a page.
pub(crate) fn guard() -> Result<&'static Arc<ForkGuard>, Error> {
    Ok(&Signals::of_process().map_err(named)?.guard)
}

fn new_queue() -> Option<(usize, OwnedFd)> {
    let nothing = memfd_create(c"hg-sm-nothing", MFdFlags::MFD_CLOEXEC).ok()?;
    let mut queue = 0_usize;
    // SAFETY:
    // - `queue` is a word that holds 0, as is asked for, and is overwritten.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, &raw mut queue) };
    if made < 0 {
        tracing::debug!(error = %Errno::last(), "no queue for signals: peers are woken by packets");
        return None;
    }
    Some((queue, nothing))
}

/// `false`: the system did not take it.
fn submit(queue: usize, nothing: &OwnedFd, eventfd: BorrowedFd<'_>) -> bool {
    // SAFETY:
    // - zeroes are a request that reads no bytes.
    let mut request: libc::iocb = unsafe { mem::zeroed() };
    request.aio_lio_opcode = READ;
    request.aio_fildes = nothing.as_raw_fd().cast_unsigned();
    request.aio_flags = SIGNALS;
    request.aio_resfd = eventfd.as_raw_fd().cast_unsigned();
    let mut requests = [ptr::from_ref(&request)];
    for _ in 0..2 {
        // SAFETY:
        // - `requests` has one element, which points to a request that lives on. The request has no buffer: it asks for no bytes.
        // - a number that is no queue of this process is refused.
        let taken =
            unsafe { libc::syscall(libc::SYS_io_submit, queue, 1_i64, requests.as_mut_ptr()) };
        match Errno::result(taken) {
            Ok(count) => return count == 1,
            // All places hold results.
            Err(Errno::EAGAIN) => fetch(queue),
            Err(_) => return false,
        }
    }
    false
}

/// Takes results out, so that their places are free again.
fn fetch(queue: usize) {
    let mut events = [Event::default(); FETCHED];
    let (into, time) = (events.as_mut_ptr(), ptr::null::<libc::timespec>());
    // SAFETY:
    // - `events` is FETCHED results to be overwritten; at least 0 are waited for, so there is no time to be given.
    unsafe { libc::syscall(libc::SYS_io_getevents, queue, 0_i64, FETCHED, into, time) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use nix::sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        eventfd::{EfdFlags, EventFd},
    };

    use super::*;

    fn each() -> [Signals; 2] {
        [new_queue(), None].map(|queue| {
            let guard = Arc::new(ForkGuard::new().unwrap());
            Signals { queue: queue.into(), guard, closing: Mutex::default() }
        })
    }

    #[test]
    fn signals_are_counted_and_more_of_them_than_a_queue_has_places() {
        let ([signals, without], eventfd) =
            (each(), EventFd::from_flags(EfdFlags::empty()).unwrap());
        assert!((0..5000).all(|_| signals.signal(eventfd.as_fd())));
        assert_eq!(eventfd.read().unwrap(), 5000);
        assert!(!without.signal(eventfd.as_fd()));
    }

    #[test]
    fn an_eventfd_that_blocks_and_is_full_keeps_nobody_and_its_sleeper_is_woken() {
        let _watchdog = watchdog::Watchdog::start();
        for signals in each() {
            let eventfd = EventFd::from_flags(EfdFlags::empty()).unwrap();
            let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
            epoll.add(&eventfd, event).unwrap();
            eventfd.write(u64::MAX - 1).unwrap();
            let mut told = [EpollEvent::empty()];
            assert_eq!(epoll.wait(&mut told, 0_u16).unwrap(), 1, "for the write");
            assert_eq!(epoll.wait(&mut told, 0_u16).unwrap(), 0);
            let was_told = signals.signal(eventfd.as_fd());
            assert_eq!(epoll.wait(&mut told, 0_u16).unwrap(), usize::from(was_told));
            assert_eq!(was_told, signals.queue().is_some());
        }
    }

    #[test]
    fn a_process_has_one() {
        let [one, other] = [0, 1].map(|_| Signals::of_process().unwrap());
        assert!(ptr::eq(one, other));
    }
}
