//! What every test needs: processes in roles, what the kernel says about them.

pub(crate) mod child;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod witness;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

pub(crate) use watchdog::Watchdog;

pub(crate) use self::{child::Child, random::Random, witness::Witness};

/// Polls a future in this thread, which sleeps meanwhile.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Waits until something is so; the watchdog of the test is the limit.
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let mut pause = Duration::from_micros(100);
    while !is_so() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reads something until two readings in a row, some time apart, are equal.
pub(crate) fn settled<T: PartialEq>(mut read: impl FnMut() -> T) -> T {
    let mut last = read();
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let next = read();
        if next == last {
            return next;
        }
        last = next;
    }
}

/// Reads something again until it is at most `bound`, or ten seconds have passed; gives the last reading.
///
/// For what is given back some time after it was used, so that a failure can say how much was not.
pub(crate) fn falls_to<T: PartialOrd>(bound: T, mut read: impl FnMut() -> T) -> T {
    let begun = Instant::now();
    loop {
        let value = read();
        if value <= bound || begun.elapsed() > Duration::from_secs(10) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether this process may start others of another user. A test that cannot says that it is skipped.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn is_root_or_says(test: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: {test}: only root can start a process of another user");
    }
    is_root
}
