//! Where all ranks meet: a barrier over the connections that a shuffle has anyway.
//!
//! ```text
//!   rank -> leader of its node -> representative on node 0 -> leader of node 0      and the answers back
//! ```
//! The leader is the rank with local index 0, which also represents its node towards node 0. Each arrow is a call
//! that is answered when everybody has arrived, so a rank that dies ends it like any other call.

use std::{
    future::poll_fn,
    sync::Mutex,
    task::{Poll, Waker},
};

use crate::{hop::Gone, lock::locked};

/// Counts arrivals at a leader.
#[derive(Debug, Default)]
pub(crate) struct Meeting(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    arrived: u32,
    /// Meetings that have ended.
    ended: u64,
    is_failed: bool,
    wakers: Vec<Waker>,
}

/// One that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    meeting: u64,
    /// Nobody else is waited for.
    pub(crate) is_last: bool,
}

impl Meeting {
    /// One of `expected` has arrived.
    pub(crate) fn arrive(&self, expected: u32) -> Arrival {
        let mut state = locked(&self.0);
        state.arrived += 1;
        let is_last = state.arrived == expected;
        if is_last {
            // Who arrives from now on, arrives at the next meeting.
            state.arrived = 0;
        }
        Arrival { meeting: state.ended, is_last }
    }

    /// Lets everybody go.
    pub(crate) fn end(&self) {
        let mut state = locked(&self.0);
        state.ended += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lets everybody go with an error, now and ever after.
    pub(crate) fn fail(&self) {
        let mut state = locked(&self.0);
        state.is_failed = true;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends with the meeting.
    pub(crate) async fn ended(&self, arrival: Arrival) -> Result<(), Gone> {
        poll_fn(|context| {
            let mut state = locked(&self.0);
            if state.ended > arrival.meeting {
                return Poll::Ready(Ok(()));
            }
            if state.is_failed {
                return Poll::Ready(Err(Gone));
            }
            state.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    fn is_over(meeting: &Meeting, arrival: Arrival) -> Option<Result<(), Gone>> {
        match pin!(meeting.ended(arrival)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn nobody_leaves_before_the_end_and_the_next_meeting_is_another_one() {
        let meeting = Meeting::default();
        let first = meeting.arrive(2);
        assert_eq!((first.is_last, is_over(&meeting, first)), (false, None));
        assert!(meeting.arrive(2).is_last);
        assert_eq!(is_over(&meeting, first), None, "the last one may have to ask elsewhere");
        meeting.end();
        assert_eq!(is_over(&meeting, first), Some(Ok(())));
        let next = meeting.arrive(2);
        assert_eq!((next.is_last, is_over(&meeting, next)), (false, None));
        meeting.fail();
        assert_eq!(is_over(&meeting, next), Some(Err(Gone)));
        assert_eq!(is_over(&meeting, first), Some(Ok(())), "what was over stays so");
    }
}
