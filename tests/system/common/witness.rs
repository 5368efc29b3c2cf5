//! An honest caller that goes on while others misbehave: whatever happens to them, it is served.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use hg::{Engine, Wait};

use super::until;
use crate::roles::{add, echo};

/// Calls a target from a thread of its own until it is asked for its testimony.
pub(crate) struct Witness {
    served: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Starts to call over `sm`; the first call has been served when it returns.
    pub(crate) fn of(address: &str) -> Self {
        Self::with(hg::builder().wait(Wait::Block).open("sm://").unwrap(), address)
    }

    /// The same with any engine.
    pub(crate) fn with(engine: Engine, address: &str) -> Self {
        let peer = engine.lookup(address).unwrap();
        let (served, enough) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counter, stop) = (Arc::clone(&served), Arc::clone(&enough));
        let call_on = move || {
            let body = vec![7; 5000];
            let mut number = 0;
            while !stop.load(Ordering::SeqCst) {
                number += 1;
                assert_eq!(engine.call(add, &peer, (number, 1)).wait().unwrap(), number + 1);
                if number % 16 == 0 {
                    assert_eq!(engine.call(echo, &peer, (&body,)).wait().unwrap(), body);
                }
                counter.fetch_add(1, Ordering::SeqCst);
            }
        };
        let thread = Some(std::thread::spawn(call_on));
        let witness = Self { served, enough, thread };
        witness.is_served_on();
        witness
    }

    /// Waits until it has been served twice more: the second call began after this one.
    pub(crate) fn is_served_on(&self) {
        let before = self.served.load(Ordering::SeqCst);
        let thread = self.thread.as_ref().expect("taken only at the end");
        until(|| thread.is_finished() || self.served.load(Ordering::SeqCst) >= before + 2);
        assert!(!thread.is_finished(), "an honest caller was not served");
    }

    /// Ends it. Every call that it made was served.
    pub(crate) fn testifies(mut self) {
        self.is_served_on();
        self.enough.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("taken only here");
        thread.join().expect("an honest caller is always served");
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::SeqCst);
    }
}
