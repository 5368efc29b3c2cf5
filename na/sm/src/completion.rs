//! Completions: how they are made, and written where they stay.
//!
//! `Vec::push` makes its value first and then looks whether there is space, so that two cache lines are
//! written twice, with stores of other widths than the loads that follow. Here the space comes first.

use hg_na::{Completion, Done, Error, Failure, OpId, Reached, Returned, Token};

/// Appends what `make` gives, made in its place.
#[inline(always)]
pub(crate) fn push_with(done: &mut Vec<Completion>, make: impl FnOnce() -> Completion) {
    let len = done.len();
    if len == done.capacity() {
        grow(done);
    }
    // SAFETY:
    // - in bounds: the capacity is more than `len`, checked above or grown.
    let place = unsafe { done.as_mut_ptr().add(len) };
    // SAFETY:
    // - writable and aligned: an element of the vector's own memory.
    // - holds nothing yet that would have to be dropped: it is behind the length.
    unsafe { place.write(make()) };
    // SAFETY:
    // - `len + 1` is at most the capacity, and the elements before it are initialised.
    unsafe { done.set_len(len + 1) };
}

/// That of an operation that went well.
#[inline(always)]
pub(crate) fn done(id: OpId, token: Token, returned: Returned) -> Completion {
    Completion::Done(Done { id, token, result: Ok(()), returned })
}

/// A failed completion.
pub(crate) fn failed(
    id: OpId,
    token: Token,
    error: Error,
    reached: Reached,
    returned: Returned,
) -> Completion {
    Completion::Done(Done {
        id,
        token,
        result: Err(Box::new(Failure { error, reached })),
        returned,
    })
}

#[cold]
fn grow(done: &mut Vec<Completion>) {
    done.reserve(1);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use hg_na::{GoneReason, Peer};

    use super::*;

    #[test]
    fn completions_are_appended_in_order_while_the_vector_grows() {
        let mut done = Vec::new();
        for index in 0..100 {
            let (peer, reason) = (Peer::new(index, 0), GoneReason::TimedOut);
            push_with(&mut done, || Completion::Gone { peer, reason });
        }
        let indices = done.iter().map(|completion| match completion {
            Completion::Gone { peer, .. } => peer.index(),
            other => panic!("unexpected: {other:?}"),
        });
        assert!(indices.eq(0..100));
    }
}
