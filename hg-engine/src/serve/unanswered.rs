//! Answers that are dropped because a handler panics: what it panicked with is known only once it has unwound, to whoever has
//! called it.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use hg_core::error::Status;

use crate::{
    Request,
    contain::{discard, panic_text},
};

/// What the caller is told where what the handler has panicked with is not known.
pub(super) const PANICKED: &str = "the handler has panicked before it has answered";

thread_local! {
    /// What [`run`] answers; `None` outside of it.
    static UNANSWERED: RefCell<Option<Vec<Request>>> = const { RefCell::new(None) };
}

/// Keeps a request whose answer is dropped by a panic; gives it back where nobody will catch that.
pub(super) fn keep(request: Request) -> Option<Request> {
    UNANSWERED.with_borrow_mut(|unanswered| match unanswered {
        Some(requests) => {
            requests.push(request);
            None
        }
        None => Some(request),
    })
}

/// Runs a handler; if it panics, the requests that it left unanswered are told with what. Those that it has lost to a panic which it caught
/// itself are told that there was one.
pub(super) fn run(handler: impl FnOnce()) {
    let before = UNANSWERED.replace(Some(Vec::new()));
    let outcome = catch_unwind(AssertUnwindSafe(handler));
    let unanswered = UNANSWERED.replace(before);
    let panic = outcome.err();
    let text = panic.as_deref().map_or(PANICKED, panic_text);
    for request in unanswered.into_iter().flatten() {
        request.give_up(Status::Panicked, text);
    }
    panic.into_iter().for_each(discard);
}
