//! Messages in memory of a user's own kind, which are safe code and may say anything: nobody else's bytes change.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use hg_na::{
    Completion, Context, Message, MessageBody, Op, OpenOptions, Plugin as _, QUIET, Rejected,
};
use watchdog::in_time;

/// Is short at first, and long from some question on.
#[derive(Debug)]
struct Growing {
    asked: AtomicUsize,
    long_from: usize,
    bytes: Vec<u8>,
}

impl MessageBody for Growing {
    fn bytes(&self) -> &[u8] {
        let is_long = self.asked.fetch_add(1, Ordering::Relaxed) >= self.long_from;
        if is_long { &self.bytes } else { &self.bytes[..SHORT] }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}

/// In the arena, not in slots.
const SHORT: usize = 300;
/// The length of what has its place in the arena before and behind.
const PART: usize = 60_000;
/// More than three of those.
const LONG: usize = 200_000;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

#[test]
fn a_body_that_grows_while_it_is_sent_writes_over_nobody_elses_bytes() {
    for long_from in 0..12 {
        let (mut one, mut other) = (open(), open());
        let to = one.lookup(other.address()).unwrap();
        let hello = Message::copied(b"hello");
        one.post(QUIET, Op::SendUnexpected { to, message: hello }).unwrap();
        let (start, mut done) = (Instant::now(), Vec::new());
        while !done.iter().any(|it| matches!(it, Completion::Unexpected { .. })) {
            one.progress(Instant::now(), &mut Vec::new()).unwrap();
            other.progress(Instant::now(), &mut done).unwrap();
            in_time!(start);
        }
        // The whole lane, then a gap at its beginning.
        let mut parts: Vec<Message> = Vec::new();
        for len in [PART, PART / 4, PART / 16, PART / 64, SHORT] {
            let mut in_arena =
                || Some(one.message(to, len).unwrap()).filter(|it| it.body().is_some());
            while let Some(mut part) = in_arena() {
                part.as_mut_slice().fill(7);
                parts.push(part);
            }
        }
        drop(parts.remove(0));
        let seen: Vec<&[u8]> = parts.iter().map(Message::as_slice).collect();
        let body = Growing { asked: AtomicUsize::new(0), long_from, bytes: vec![9; LONG] };
        let message = Message::from_body(Box::new(body));
        // Refused, sent, or a panic that says whose bug it is.
        let _outcome = catch_unwind(AssertUnwindSafe(|| {
            let posted: Result<_, Rejected> = one.post(QUIET, Op::SendUnexpected { to, message });
            posted.is_ok()
        }));
        let are_whole = seen.iter().all(|part| part.iter().all(|byte| *byte == 7));
        assert!(seen.len() > 3 && are_whole, "long from question {long_from}");
    }
}
