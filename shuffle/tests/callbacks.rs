//! Callbacks that panic, or that do not return: no message is lost without a word, and nobody waits who was told not to.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "other tests keep what they are delivered")]
mod common;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    sync::{
        Barrier, Mutex,
        mpsc::{Receiver, channel},
    },
    time::Duration,
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

/// Set in a process of its own, whose standard error is read: who takes messages in.
const DELIVERED: &str = "HG_SHUFFLE_DELIVERED";

/// The other threads of the rank sleep: they wait for a barrier, and the thread of its engine stands in the callback, or sleeps, too.
#[test]
fn who_waits_for_a_callback_that_does_not_return_is_told_which_rank_it_is_and_for_how_long() {
    const NAME: &str =
        "who_waits_for_a_callback_that_does_not_return_is_told_which_rank_it_is_and_for_how_long";
    if let Ok(by) = std::env::var(DELIVERED) {
        return stand_in_a_callback(by == "inline");
    }
    let _watchdog = watchdog::Watchdog::start();
    for by in ["inline", "thread"] {
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", NAME, "--nocapture"]).env(DELIVERED, by);
        itself.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut process = itself.spawn().unwrap();
        let said = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let told = said.into_iter().find(|line| line.starts_with("shuffle `stands`: ")).unwrap();
        // The callback goes on.
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success(), "{by}");
        let rest = told.split_once("the callback of rank 1 has not returned for ");
        let seconds = rest.and_then(|(_, rest)| rest.split_once(" s; ")).unwrap().0;
        assert!(seconds.parse::<u64>().unwrap() >= 1, "{told}");
    }
}

fn stand_in_a_callback(inline: bool) {
    run("1x2", |group| {
        let mut options = Options::default();
        options.deliver_inline = inline;
        options.callback_notice = Duration::from_secs(1);
        let deliver = |_: hg_shuffle::Delivery<'_>| {
            // Until the other process has read enough.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        };
        let shuffle = Shuffle::new(&group, "stands", options, deliver).unwrap();
        if group.rank() == 0 {
            shuffle.enqueue(1, 0, b"stay").unwrap();
        }
        shuffle.flush_all().unwrap();
        shuffle.shutdown(Shutdown::Drain).unwrap();
    });
}
