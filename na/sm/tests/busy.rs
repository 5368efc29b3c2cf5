//! Whoever is kept by one peer's requests hears of others all the same.

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

/// Each of its rounds finds a request, and what is done with that takes 10 ms of the clock that it is told.
#[test]
fn a_newcomer_is_heard_while_another_one_s_requests_take_long() {
    let (mut target, mut first, mut newcomer) = (open(), open(), open());
    let to = first.lookup(target.address()).unwrap();
    say(&mut *first, to);
    let start = Instant::now();
    while round(&mut *target, Instant::now()).is_empty() {
        in_time!(start, "nobody has come");
        first.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
    let to_it = newcomer.lookup(target.address()).unwrap();
    say(&mut *newcomer, to_it);
    let mut known = None;
    for taken in 0..100 {
        say(&mut *first, to);
        let now = start + Duration::from_millis(10 * taken);
        for _ in 0..SPINS {
            newcomer.progress(now, &mut Vec::new()).unwrap();
        }
        let from = round(&mut *target, now);
        assert!(!from.is_empty(), "it is always busy");
        let known = known.get_or_insert(from[0]);
        if from.iter().any(|peer| peer != known) {
            return;
        }
    }
    panic!("the newcomer was not heard");
}
