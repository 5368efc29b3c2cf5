//! One round of progress.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Instant,
};

use hg_core::{
    call::Owner,
    error::{Failure, Started, Status, bounded_text},
    header::Kind,
    rpc::ServeKind,
    serve::{Arrival, Control},
};
use hg_na::{Completion, Done, GoneReason, Message, Returned};

use super::{Answered, Incoming, Port, ROUNDS_PER_CLOCK, State, Work};
use crate::{
    Request,
    handler::{self, Run},
    request::in_handler,
    tasks::Origin,
};

impl Port {
    /// One round. `check` is asked once, after the transport's completions were dealt with. Says
    /// whether anything moved.
    pub(crate) fn step<T>(
        self: &Arc<Self>,
        work: &mut Work,
        check: impl FnOnce(&mut State) -> Option<T>,
    ) -> (bool, Option<T>) {
        let mut state = self.state.lock();
        // Last in, first out: answers have no order among each other.
        while let Some(Answered { origin, id, message }) = work.answers.pop() {
            state.post_answer(origin, id, message);
        }
        let mut moved = self.progress_transport(&mut state, work);
        let found = check(&mut state);
        if !state.wakers.is_empty() {
            std::mem::swap(&mut work.wakers, &mut state.wakers);
        }
        drop(state);

        if !work.wakers.is_empty() {
            moved = true;
            work.wakers.drain(..).for_each(Waker::wake);
        }
        if !work.requests.is_empty() {
            self.run_handlers(work);
        }
        if work.tasks.any_ready() {
            moved = true;
            work.tasks.poll_ready(&mut work.answers);
        }
        (moved, found)
    }

    /// Hands in what a round left over; called before the role is given up.
    pub(crate) fn flush(&self, work: &mut Work) {
        if !work.answers.is_empty() {
            let mut state = self.state.lock();
            while let Some(Answered { origin, id, message }) = work.answers.pop() {
                state.post_answer(origin, id, message);
            }
        }
    }

    #[inline]
    fn progress_transport(&self, state: &mut State, work: &mut Work) -> bool {
        work.read_clock();
        let Some(context) = &mut state.context else { return false };
        let moved = match context.progress(work.now, &mut work.done) {
            Ok(moved) => moved,
            Err(error) => {
                state.fail(&error);
                return true;
            }
        };
        let any = !work.done.is_empty();
        if any {
            for completion in work.done.drain(..) {
                handle_completion(state, completion, &mut work.requests);
            }
        }
        if state.calls.next_deadline().is_some_and(|at| at <= work.now) {
            state.calls.handle_timeout(work.now);
        }
        state.run_effects();
        if any && state.has_backlog() {
            state.retry_backlog();
            state.run_effects();
        }
        let open =
            state.serves.admits() && state.answers_waiting() < self.shared.settings.in_service_max;
        if open != state.admission_open {
            state.admission_open = open;
            if let Some(context) = &mut state.context {
                context.set_admission(open);
            }
        }
        moved || any
    }

    fn run_handlers(self: &Arc<Self>, work: &mut Work) {
        self.refresh_handlers(work);
        // Both are put back: neither the table nor the memory of the batch is made anew each round.
        let handlers = work.handlers.take().unwrap_or_default();
        let mut requests = std::mem::take(&mut work.requests);
        for incoming in requests.drain(..) {
            let Some((_, handler)) = handlers.find(incoming.header.rpc) else {
                work.refuse(&incoming, Status::NoSuchRpc, "");
                continue;
            };
            match handler.kind() {
                ServeKind::Plain => self.run_now(work, handler.as_ref(), &incoming),
                ServeKind::Async => self.start_task(work, handler.as_ref(), &incoming),
                ServeKind::Blocking => self.start_blocking(Arc::clone(handler), incoming),
            }
        }
        work.requests = requests;
        work.handlers = Some(handlers);
    }

    /// Runs a handler on this thread: a plain one to its end, an `async` one to its future.
    #[inline]
    fn run_now(
        self: &Arc<Self>,
        work: &mut Work,
        handler: &dyn handler::Handler,
        incoming: &Incoming,
    ) {
        let request = work.request.get_or_insert_with(|| Request::new(Arc::clone(self)));
        request.reuse(incoming.from, &incoming.header, work.now);
        let run = in_handler(|| handler::run_caught(handler, request, incoming.payload()));
        self.settle_run(work, incoming, run);
    }

    #[inline]
    fn settle_run(self: &Arc<Self>, work: &mut Work, incoming: &Incoming, run: Run) {
        let (origin, id) = (incoming.from, incoming.header.id);
        match run {
            Run::Answer(message) => work.answers.push(Answered { origin, id, message }),
            Run::Given => {}
            Run::Later(task) => {
                let wants_answer = incoming.header.kind == Kind::Request;
                let origin = Origin { peer: origin, id, wants_answer };
                work.tasks.spawn(task, origin, Arc::downgrade(self));
            }
        }
    }

    fn start_task(
        self: &Arc<Self>,
        work: &mut Work,
        handler: &dyn handler::Handler,
        incoming: &Incoming,
    ) {
        let mut request = Request::new(Arc::clone(self));
        request.reuse(incoming.from, &incoming.header, work.now);
        let token = self.state.lock().serves.keep_running(incoming.from, incoming.header.id);
        request.set_cancel_token(token);
        let run = in_handler(|| handler::run_caught(handler, &request, incoming.payload()));
        self.settle_run(work, incoming, run);
    }

    fn start_blocking(self: &Arc<Self>, handler: Arc<dyn handler::Handler>, incoming: Incoming) {
        let port = Arc::clone(self);
        let token = self.state.lock().serves.keep_running(incoming.from, incoming.header.id);
        let mut request = Request::new(Arc::clone(self));
        request.reuse(incoming.from, &incoming.header, Instant::now());
        request.set_cancel_token(token);
        let job = move || {
            let run = handler::run_caught(handler.as_ref(), &request, incoming.payload());
            if let Run::Answer(message) = run {
                port.state.lock().post_answer(incoming.from, incoming.header.id, message);
                port.notify();
            }
        };
        blocking::unblock(job).detach();
    }

    fn refresh_handlers(&self, work: &mut Work) {
        // Acquire: pairs with the Release in `change_handlers`.
        let version = self.shared.handlers_version.load(Ordering::Acquire);
        if version != work.handlers_version {
            work.handlers = Some(Arc::clone(&self.shared.handlers.read()));
            work.handlers_version = version;
        }
    }
}

impl Work {
    #[inline]
    fn read_clock(&mut self) {
        if self.rounds_since_clock >= ROUNDS_PER_CLOCK {
            self.now = Instant::now();
            self.rounds_since_clock = 0;
        }
        self.rounds_since_clock += 1;
    }

    fn refuse(&mut self, incoming: &Incoming, status: Status, text: &str) {
        let message = (incoming.header.kind == Kind::Request).then(|| {
            handler::status_message(
                incoming.header.id,
                status,
                bounded_text(text),
                incoming.header.checksum,
            )
        });
        self.answers.push(Answered { origin: incoming.from, id: incoming.header.id, message });
    }
}

#[inline]
fn handle_completion(state: &mut State, completion: Completion, requests: &mut Vec<Incoming>) {
    match completion {
        Completion::Done(Done { token, result, returned, .. }) => {
            if let Owner::Call(id, half) = Owner::of(token) {
                let message = match returned {
                    Returned::Message(message) => Some(message),
                    Returned::Nothing | Returned::Slice(_) => None,
                };
                state.calls.handle_done(id, half, result, message);
            }
        }
        Completion::Unexpected { from, message } => handle_request(state, from, message, requests),
        Completion::Control { from, message } => {
            match state.serves.handle_control(from, message.as_slice()) {
                Control::Done => {}
                Control::Fault(text) => {
                    tracing::warn!(peer = ?from, "a peer closes the connection: {text}");
                    state.calls.handle_fault(from, &text);
                }
                Control::Disconnect(sentence) => state.disconnect(from, &sentence),
            }
        }
        Completion::Gone { peer, reason } => handle_gone(state, peer, &reason),
        // The enumeration may grow; what this engine never asked for concerns nobody here.
        _ => {}
    }
}

#[inline]
fn handle_request(
    state: &mut State,
    from: hg_na::Peer,
    message: Message,
    requests: &mut Vec<Incoming>,
) {
    match state.serves.handle_message(from, message.as_slice()) {
        Arrival::Run { header, payload } => {
            requests.push(Incoming { from, header, payload, message })
        }
        Arrival::Refuse { id, status, text } => {
            let message = handler::status_message(id, status, bounded_text(&text), false);
            // Not in service: it goes out beside the answers of those that are.
            state.post_refusal(from, id, message);
        }
        Arrival::Disconnect(sentence) => state.disconnect(from, &sentence),
        Arrival::Drop => {}
    }
}

fn handle_gone(state: &mut State, peer: hg_na::Peer, reason: &GoneReason) {
    tracing::debug!(?peer, %reason, "a peer is gone");
    state.serves.handle_gone(peer);
    if state.has_backlog() {
        state.drop_backlog(
            peer,
            &Failure::PeerGone { reason: reason.clone(), started: Started::No },
        );
    }
}
