//! Callbacks that panic, or that do not return: no message is lost without a word, and nobody waits who was told not to.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::sync::{
    Barrier, Mutex,
    mpsc::{Receiver, channel},
};

use common::run;
use hg_shuffle::{Error, Group as _, Options, Shuffle, Shutdown};

/// Something that takes its time to be dropped.
struct Slow(Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        // What releases it may be gone: a test that has failed ends.
        let _released = self.0.recv();
    }
}

#[test]
fn a_panic_fails_its_rank_for_all_before_what_the_callback_holds_is_dropped() {
    let (release, slow) = channel();
    let (slow, both) = (Mutex::new(Some(Slow(slow))), Barrier::new(2));
    let ended = run("1x2", |group| {
        let me = group.rank();
        let held = if me == 1 { slow.lock().unwrap().take() } else { None };
        let deliver = move |_: hg_shuffle::Delivery<'_>| {
            let _held = &held;
            panic!("as it was told");
        };
        let shuffle = Shuffle::new(&group, "panics", Options::default(), deliver).unwrap();
        if me == 0 {
            shuffle.enqueue(1, 0, b"lost").unwrap();
        }
        let flushed = shuffle.flush_all();
        // Until here, the callback of rank 1 is being dropped, if it is dropped yet.
        both.wait();
        if me == 1 {
            release.send(()).unwrap();
        }
        drop(shuffle);
        flushed
    });
    for ended in ended {
        let Err(Error::Failed(failure)) = ended else { panic!("{ended:?}") };
        assert_eq!((failure.rank, failure.why.contains("panicked")), (1, true), "{failure}");
    }
}

#[test]
fn a_message_to_oneself_that_is_only_tried_does_not_wait_for_a_callback() {
    let (release, held) = channel();
    let held = Mutex::new(Some(held));
    run("1x1", |group| {
        let held = held.lock().unwrap().take().unwrap();
        let mut options = Options::default();
        options.deliverq_bytes_max = 64;
        let deliver = move |_: hg_shuffle::Delivery<'_>| held.recv().unwrap();
        let shuffle = Shuffle::new(&group, "waits", options, deliver).unwrap();
        // Longer than what is acknowledged before it is delivered, and alone.
        shuffle.try_enqueue(0, 0, &[0; 100]).unwrap();
        assert!(matches!(shuffle.try_enqueue(0, 0, &[0; 100]), Err(Error::Again)));
        release.send(()).unwrap();
        shuffle.flush_all().unwrap();
        assert_eq!(shuffle.shutdown(Shutdown::Drain).unwrap(), 0);
    });
}
