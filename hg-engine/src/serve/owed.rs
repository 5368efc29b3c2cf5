//! The duty to answer a request, for handlers that others run.

use hg_core::error::Status;
use hg_na::Message;

use crate::{
    Request,
    contain::contain,
    platform::Job,
    port::{Handler, Run, no_message},
};

/// An answer that is owed. Dropped, it tells the caller that none was given.
pub(crate) struct Owed(Option<Request>);

/// What the caller is told of a handler that was dropped.
pub(crate) const DROPPED: &str = "the handler was dropped before it ended";

impl Owed {
    pub(crate) fn new(request: Request) -> Self {
        Self(Some(request))
    }

    /// Hands in what came of the handler.
    pub(crate) fn settle(mut self, run: Run, answer: Message) {
        let Some(request) = self.0.take() else { return };
        match run {
            Run::Answered => request.hand_in(Some(answer)),
            Run::Silent => request.hand_in(None),
            Run::Given | Run::Later => {}
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.hand_in(request.failure(Status::Rejected, DROPPED));
        }
    }
}

/// What runs a handler that may block, and answers; dropped, it answers, too.
pub(crate) fn job(
    handler: Handler,
    request: Request,
    run: impl FnOnce(&Handler, &Request, &mut Message) -> Run + Send + 'static,
) -> Job {
    let owed = Owed::new(request.clone());
    Box::new(move || {
        let mut answer = no_message();
        let run = run(&handler, &request, &mut answer);
        owed.settle(run, answer);
        // The last one, where the engine was closed meanwhile.
        contain("a handler that was dropped", || drop(handler));
    })
}
