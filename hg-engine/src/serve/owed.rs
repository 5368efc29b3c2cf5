//! The duty to answer a request, for handlers that others run.

use hg_core::error::Status;
use hg_na::Message;

use super::unanswered;
use crate::{
    Request,
    contain::contain,
    platform::Job,
    port::{Handler, Run, no_message},
};

/// An answer that is owed. Dropped, it tells the caller that none was given.
pub(crate) struct Owed(Option<Request>);

/// What the caller is told of a handler that was dropped.
pub(crate) const DROPPED: &str =
    "the handler was dropped, or has dropped its request, before it has answered";

impl Owed {
    pub(crate) fn new(request: Request) -> Self {
        Self(Some(request))
    }

    /// The request, until it was answered.
    pub(crate) fn request(&self) -> Option<&Request> {
        self.0.as_ref()
    }

    /// Sends the answer, if one is due.
    pub(crate) fn send(mut self, message: Option<Message>) {
        if let Some(request) = self.0.take() {
            request.hand_in(message);
        }
    }

    /// Hands in what came of the handler.
    pub(crate) fn settle(mut self, run: Run, answer: Message) {
        match run {
            Run::Answered => self.send(Some(answer)),
            Run::Silent => self.send(None),
            Run::Given | Run::Later => self.0 = None,
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(request) = self.0.take() else { return };
        if !std::thread::panicking() {
            request.give_up(Status::Rejected, DROPPED);
        } else if let Some(request) = unanswered::keep(request) {
            request.give_up(Status::Panicked, unanswered::PANICKED);
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
