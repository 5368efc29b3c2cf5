//! Whoever looks rarely, kept by one peer's requests or by something else, hears of others all the same.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::time::{Duration, Instant};

use hg_na::{Completion, Context, Message, Op, OpenOptions, Peer, Plugin as _};
use hg_na_sm::SmPlugin;
use watchdog::in_time;

/// Rounds after which whoever finds nothing has asked the kernel.
const SPINS: u32 = 3_000;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

fn say(context: &mut dyn Context, to: Peer) {
    context.post(1, Op::SendUnexpected { to, message: Message::copied(&[7; 8]) }).unwrap();
    context.progress(Instant::now(), &mut Vec::new()).unwrap();
}

/// One round; from whom requests came.
fn round(target: &mut dyn Context, now: Instant) -> Vec<Peer> {
    let mut done = Vec::new();
    target.progress(now, &mut done).unwrap();
    let from = |it: &Completion| match it {
        Completion::Unexpected { from, .. } => Some(*from),
        _ => None,
    };
    done.iter().filter_map(from).collect()
}

/// Who calls once is known, and silent from then on; a newcomer calls. Whether that is heard within a hundred rounds, between which 10 ms of the
/// clock go by that the target is told; `is_busy`: each of which finds another request of the first one.
fn hears_a_newcomer(is_busy: bool) -> bool {
    let (mut target, mut first, mut newcomer) = (open(), open(), open());
    let to = first.lookup(target.address()).unwrap();
    say(&mut *first, to);
    let start = Instant::now();
    let known = loop {
        in_time!(start, "nobody has come");
        first.progress(Instant::now(), &mut Vec::new()).unwrap();
        if let Some(from) = round(&mut *target, Instant::now()).first() {
            break *from;
        }
    };
    let to_it = newcomer.lookup(target.address()).unwrap();
    say(&mut *newcomer, to_it);
    (0..100).any(|taken| {
        if is_busy {
            say(&mut *first, to);
        }
        let now = start + Duration::from_millis(10 * taken);
        for _ in 0..SPINS {
            newcomer.progress(now, &mut Vec::new()).unwrap();
        }
        let from = round(&mut *target, now);
        assert!(!is_busy || !from.is_empty(), "it is always busy");
        from.iter().any(|peer| *peer != known)
    })
}

#[test]
fn a_newcomer_is_heard_while_another_one_s_requests_take_long() {
    assert!(hears_a_newcomer(true));
}

#[test]
fn a_newcomer_is_heard_by_one_that_does_something_else_for_long() {
    assert!(hears_a_newcomer(false));
}
