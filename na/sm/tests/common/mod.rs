//! Drives contexts by hand.

use std::time::Instant;

use hg_na::{Completion, Context, Done, Op, Peer, Returned};
use watchdog::{LIMIT, in_time};

/// How a context waits for the next completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Polls.
    Spin,
    /// Sleeps whenever it may.
    Sleep,
}

/// Waits until something is done.
pub(crate) fn next(context: &mut dyn Context, wait: Wait, done: &mut Vec<Completion>) {
    let start = Instant::now();
    while done.is_empty() {
        context.progress(Instant::now(), done).unwrap();
        if wait == Wait::Sleep && done.is_empty() && context.may_sleep() {
            let until = context.next_deadline().map(|at| at.duration_since(Instant::now()));
            let timeout = until.map_or(LIMIT, |until| until.min(LIMIT));
            context.waiter().wait(Some(timeout)).unwrap();
        }
        in_time!(start, "nothing came");
    }
}

/// Sends one request and waits for its answer.
pub(crate) fn call(
    context: &mut dyn Context,
    to: Peer,
    tag: u64,
    request: &[u8],
    wait: Wait,
) -> Vec<u8> {
    context.post(1, Op::RecvExpected { from: to, tag }).unwrap();
    let mut message = context.message(to, request.len()).unwrap();
    message.as_mut_slice().copy_from_slice(request);
    context.post(2, Op::SendUnexpected { to, message }).unwrap();
    let mut done = Vec::new();
    loop {
        next(context, wait, &mut done);
        for completion in done.drain(..) {
            match completion {
                Completion::Done(Done { token: 1, result: Ok(()), returned, .. }) => {
                    let Returned::Message(answer) = returned else { panic!("no message") };
                    return answer.as_slice().to_vec();
                }
                Completion::Done(Done { token: 2, result: Ok(()), .. }) => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}
