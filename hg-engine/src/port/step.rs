//! One round of progress.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    task::Poll,
    time::Instant,
};

use hg_core::{
    error::{Status, bounded_text},
    header::{Header, Kind},
    operations::{Half, OperationId, Outcome, Owner},
    protocol::{Ticket, status_message},
    rpc::ServeKind,
    rpc::Signature,
};
use hg_na::{Completion, Done, Message, Returned};

use super::{Incoming, Port, ROUNDS_PER_CLOCK, Shared, State, Work, drop_handlers, place_of};
use crate::{
    Request,
    deferred::{self, contain},
    handler::{self, Registered, Run},
    inside::{Inside, in_handler},
    large,
    owed::Owed,
    request::Due,
    role::Role,
    running::Task,
    tasks::Tasks,
};

/// What the holder of the role makes progress for.
pub(crate) trait Look {
    /// What it waits for.
    type Found;

    /// Asked in each round, after the transport's completions were dealt with.
    fn look(&mut self, state: &mut State) -> Option<Self::Found>;

    /// Takes an answer that has arrived, if it waits for just that one: it need not be kept for it.
    #[inline(always)]
    fn take(&mut self, _state: &mut State, _id: OperationId, _returned: &Returned) -> bool {
        false
    }
}

impl<T, F: FnMut(&mut State) -> Option<T>> Look for F {
    type Found = T;

    #[inline(always)]
    fn look(&mut self, state: &mut State) -> Option<T> {
        self(state)
    }
}

/// Waits for the outcome of a call.
pub(crate) struct OutcomeOf<'a> {
    pub(crate) id: OperationId,
    /// Where to put it.
    pub(crate) outcome: &'a mut Option<Outcome>,
}

impl Look for OutcomeOf<'_> {
    type Found = ();

    #[inline(always)]
    fn look(&mut self, state: &mut State) -> Option<()> {
        let found =
            self.outcome.is_some() || state.protocol.operations.take_into(self.id, self.outcome);
        found.then_some(())
    }

    #[inline(always)]
    fn take(&mut self, state: &mut State, id: OperationId, returned: &Returned) -> bool {
        id == self.id && state.protocol.operations.take_answer(id, returned, self.outcome)
    }
}

impl Port {
    /// One round, from the locked state on. `look` is asked once, after the transport's completions were dealt with;
    /// when it finds something, this was the holder's last round. Says whether anything moved.
    #[inline(always)]
    pub(crate) fn round<'p, L: Look + ?Sized>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        mut state: MutexGuard<'p, State>,
        look: &mut L,
    ) -> (bool, Option<L::Found>) {
        let work = role.work();
        state.hand_in(work);
        let mut moved = self.progress_transport(&mut state, work, look);
        let found = look.look(&mut state);
        if found.is_some() {
            state.protocol.tell_waiting(); // What was found has made room.
        }
        let has_moves = state.protocol.operations.has_moves();
        let is_over = work.requests.is_empty()
            && state.protocol.deferred.is_empty()
            && state.is_open()
            && !has_moves;
        if is_over && !work.tasks.any_ready() {
            forget_all(&mut work.done);
            if found.is_some() {
                role.give_back(state);
            }
            return (moved, found);
        }
        let is_last = found.is_some() && work.requests.is_empty() && !has_moves;
        if is_last && state.is_open() && !work.tasks.any_ready() {
            self.end_round(role, state);
            return (true, found);
        }
        if !state.protocol.deferred.is_empty() {
            std::mem::swap(&mut work.deferred, &mut state.protocol.deferred);
        }
        drop(state);

        if !work.deferred.is_empty() {
            moved = true;
            deferred::run(&mut work.deferred, self.id, &self.shared.pool);
        }
        let mut locked = None;
        if !work.requests.is_empty() {
            locked = self.run_handlers(work);
        }
        forget_all(&mut work.done);
        if work.tasks.any_ready() {
            moved = true;
            locked = None;
            work.tasks.poll_ready(self, &mut work.answers);
        }
        if has_moves {
            locked = None;
            moved |= self.move_piece();
        }
        if found.is_some()
            && let Some(state) = locked
            && state.is_open()
        {
            role.give_back(state);
        }
        (moved, found)
    }

    /// The holder's last round leaves nothing but wakers to be woken: whoever is woken finds the role free.
    #[cold]
    fn end_round(&self, role: &mut Role<'_>, mut state: MutexGuard<'_, State>) {
        forget_all(&mut role.work().done);
        let mut deferred = std::mem::take(&mut state.protocol.deferred);
        role.give_back(state);
        deferred::run(&mut deferred, self.id, &self.shared.pool);
    }

    /// [`Port::round`], not part of its caller.
    #[inline(never)]
    pub(crate) fn step<'p, L: Look + ?Sized>(
        self: &'p Arc<Self>,
        role: &mut Role<'p>,
        state: MutexGuard<'p, State>,
        look: &mut L,
    ) -> (bool, Option<L::Found>) {
        self.round(role, state, look)
    }

    #[inline(always)]
    fn progress_transport<L: Look + ?Sized>(
        &self,
        state: &mut State,
        work: &mut Work,
        look: &mut L,
    ) -> bool {
        let is_clock_read = work.read_clock(&self.shared);
        if is_clock_read {
            state.protocol.handle_clock(work.now);
            if self.shared.pool.is_retry_due(work.now) {
                state.protocol.deferred.drop(self.shared.pool.retry_later());
            }
        }
        if state.protocol.serves.has_held() {
            state.protocol.take_held(&mut work.done, &mut work.requests);
        }
        let taken = work.done.len();
        let Some(context) = &mut state.protocol.context else { return false };
        let moved = match context.progress(work.now, &mut work.done) {
            Ok(moved) => moved,
            Err(error) => {
                state.protocol.fail(&error);
                return true;
            }
        };
        let any = !work.done.is_empty();
        for (completion, at) in work.done[taken..].iter_mut().zip(taken..) {
            if let Completion::Done(Done { token, result: Ok(()), returned, .. }) = completion
                && let Owner::Call(id, Half::Receive) = Owner::of(*token)
                && look.take(state, id, returned)
            {
                continue;
            }
            state.protocol.handle_completion(completion, at, &mut work.requests);
        }
        let moved = moved | any;
        if is_clock_read {
            state.protocol.handle_timeout();
        }
        if state.protocol.has_chores() {
            state.protocol.do_chores();
        }
        moved
    }

    /// When the last one has ended, the state is still locked from its answer.
    #[inline(always)]
    fn run_handlers(self: &Arc<Self>, work: &mut Work) -> Option<MutexGuard<'_, State>> {
        // Acquire: pairs with the Release in `change_handlers`.
        let version = self.shared.handlers_version.load(Ordering::Acquire);
        if version != work.handlers_version {
            self.refresh_handlers(work, version);
        }
        let Work { handlers, last_rpc, requests, done, request, answer, tasks, .. } = work;
        // Read for those that have a deadline: it is counted from their arrival.
        let mut now = None;
        let starts = &mut work.starts;
        let handlers = handlers.as_ref()?;
        for (&Ticket { from: origin, at, ref header, payload }, left) in
            requests.iter().zip((0..requests.len()).rev())
        {
            let Some(Completion::Unexpected { message, .. }) = done.get_mut(at) else { continue };
            let Some(place) = place_of(header.rpc, handlers, last_rpc) else {
                self.refuse_unknown(origin, header, handlers.signature_of_name(header.rpc));
                continue;
            };
            let Registered { kind, handler } = handlers.at(place);
            let arrived =
                header.remaining_ns.map(|_| *now.get_or_insert_with(|| self.shared.platform.now()));
            if header.bulk {
                let request = (origin, *header, &message.as_slice()[payload..]);
                self.serve_large(handler, request, arrived, (tasks, answer));
                if self.was_closed_here() {
                    break;
                }
                continue;
            }
            let request = request.get_or_insert_with(|| Request::new(Arc::clone(self)));
            request.reuse(origin, header, arrived);
            match kind {
                ServeKind::Plain => {
                    let payload = &message.as_slice()[payload..];
                    let handler = handler.as_ref();
                    let run = || handler::run_caught(handler, request, payload, answer, &mut None);
                    let run = in_handler(self.id, Inside::Plain, run);
                    let is_answered = forget_run(self.id, run);
                    let mut state = self.state.lock();
                    if is_answered {
                        state.protocol.reply(origin, header.id, answer);
                    }
                    state.protocol.serves.end_in_round(origin, header.id);
                    if left == 0 {
                        requests.clear();
                        return Some(state);
                    }
                    if !state.is_open() {
                        break;
                    }
                }
                ServeKind::Async if self.runtime_for(handler.as_ref()).is_none() => {
                    let spares = spares_of(&mut starts.spares, place);
                    let start = Start { tasks, answer, spares, is_kept: false };
                    let (message, count) = ((&*message, payload), &mut starts.count);
                    let state = self.run_async(handler.as_ref(), request, message, count, start);
                    if self.was_closed_here() {
                        break;
                    }
                    if left == 0 && state.is_some() {
                        requests.clear();
                        return state;
                    }
                }
                ServeKind::Async | ServeKind::Blocking => {
                    let incoming = Incoming::take(message, origin, header, payload);
                    self.run_elsewhere(Arc::clone(handler), incoming, arrived);
                }
            }
        }
        requests.clear();
        None
    }

    /// Whether a handler of this round has closed its engine: no other one begins.
    #[inline]
    fn was_closed_here(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed) // It was in this thread.
    }

    /// Has the arguments pulled that did not fit into a message, then serves the request.
    #[cold]
    fn serve_large(
        self: &Arc<Self>,
        handler: &Arc<dyn handler::Handler>,
        (origin, header, payload): (hg_na::Peer, Header, &[u8]),
        arrived: Option<Instant>,
        (tasks, answer): (&mut Tasks, &mut Message),
    ) {
        let (request, task) =
            large::serve(self, Arc::clone(handler), (origin, header), arrived, payload);
        if let Some(runtime) = self.runtime_for(handler.as_ref()) {
            return self.spawn_task(runtime, request, task);
        }
        let (due, spares) = (Due::new(origin, &header), &mut Vec::new());
        self.go_on(due, task, Start { tasks, answer, spares, is_kept: true });
    }

    /// Starts an `async` handler. One that ends at once leaves the state locked from its answer.
    #[inline(never)]
    fn run_async(
        self: &Arc<Self>,
        handler: &dyn handler::Handler,
        request: &mut Request,
        message: (&Message, usize),
        starts: &mut u64,
        mut start: Start<'_>,
    ) -> Option<MutexGuard<'_, State>> {
        start.is_kept = handler.gives();
        let number = self.begin_start(start.is_kept, starts, request.due());
        request.make_cancellable(number);
        self.start_async(handler, request, message, start)
    }

    /// An `async` handler is run to its future, in a round in which no cancellation can arrive. Most end in it, and are not
    /// kept among those that can be cancelled unless they ask; [`Port::finish_start`] or [`Port::go_on`] ends that.
    #[inline]
    fn begin_start(&self, keeps: bool, starts: &mut u64, due: Due) -> u64 {
        if keeps {
            self.state.lock().protocol.serves.keep_running(due.origin, due.id);
            return 0;
        }
        *starts += 1;
        // Relaxed: whoever is given the request sees it.
        self.starting.store(*starts, Ordering::Relaxed);
        *starts
    }

    /// Runs an `async` handler to its future, and polls that.
    #[inline(always)]
    fn start_async(
        self: &Arc<Self>,
        handler: &dyn handler::Handler,
        request: &Request,
        (message, payload): (&Message, usize),
        start: Start<'_>,
    ) -> Option<MutexGuard<'_, State>> {
        let mut spare = start.spares.pop();
        let run = hg_bulk::reading(message, || {
            let payload = &message.as_slice()[payload..];
            let (answer, spare) = (&mut *start.answer, &mut spare);
            in_handler(self.id, Inside::Plain, || {
                handler::run_caught(handler, request, payload, answer, spare)
            })
        });
        if let Some(spare) = spare {
            start.spares.push(spare);
        }
        match run {
            Run::Later(task) => self.go_on(request.due(), task, start),
            run => Some(self.finish_start(request.due(), &run, start.answer, start.is_kept)),
        }
    }

    /// A handler's future is polled; unless it has ended, it goes on beyond this round.
    #[inline]
    fn go_on(
        self: &Arc<Self>,
        due: Due,
        task: Task,
        start: Start<'_>,
    ) -> Option<MutexGuard<'_, State>> {
        let Start { tasks, answer, spares, is_kept } = start;
        match tasks.start(task, &due, self, (answer, spares)) {
            Poll::Ready(run) => return Some(self.finish_start(due, &run, answer, is_kept)),
            Poll::Pending if is_kept => {}
            Poll::Pending => self.leave_round(due),
        }
        None
    }

    /// A handler goes on beyond the round that has started it.
    fn leave_round(&self, due: Due) {
        let mut state = self.state.lock();
        state.protocol.serves.keep_running(due.origin, due.id);
        // Relaxed: those that ask hold the lock.
        self.starting.store(0, Ordering::Relaxed);
    }

    /// A handler has ended in the round that has started it. One that was kept may have been answered by somebody else.
    #[inline]
    fn finish_start(
        &self,
        due: Due,
        run: &Run,
        answer: &mut Message,
        is_kept: bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        // Relaxed: those that ask hold the lock.
        self.starting.store(0, Ordering::Relaxed);
        if matches!(run, Run::Given | Run::Later(_)) {
            return state;
        }
        let is_due = if is_kept {
            state.protocol.serves.end(due.origin, due.id)
        } else {
            state.protocol.serves.end_in_round(due.origin, due.id);
            true
        };
        if is_due && matches!(run, Run::Answered) {
            state.protocol.reply(due.origin, due.id, answer);
        }
        state
    }

    /// Has a handler run by a runtime of the user's, or by the pool.
    #[inline(never)]
    fn run_elsewhere(
        self: &Arc<Self>,
        handler: Arc<dyn handler::Handler>,
        incoming: Incoming,
        arrived: Option<Instant>,
    ) {
        match self.runtime_for(handler.as_ref()) {
            Some(runtime) => self.spawn_handler(runtime, handler, incoming, arrived),
            None => self.start_blocking(handler, incoming, arrived),
        }
    }

    fn start_blocking(
        self: &Arc<Self>,
        handler: Arc<dyn handler::Handler>,
        incoming: Incoming,
        arrived: Option<Instant>,
    ) {
        self.state.lock().protocol.serves.keep_running(incoming.from, incoming.header.id);
        let mut request = Request::new(Arc::clone(self));
        request.reuse(incoming.from, &incoming.header, arrived);
        request.make_cancellable(0);
        let owed = Owed::new(request.clone());
        let origin = incoming.from;
        let job = move || {
            let mut answer = handler::no_message();
            let payload = incoming.payload();
            let run =
                handler::run_caught(handler.as_ref(), &request, payload, &mut answer, &mut None);
            owed.settle(&run, answer);
            // The last one, where the engine was closed meanwhile.
            contain("a handler that was dropped", || drop(handler));
        };
        self.run_blocking(origin, Box::new(job));
    }

    #[cold]
    fn refuse_unknown(&self, origin: hg_na::Peer, header: &Header, served: Option<&Signature>) {
        let (status, text) = match served {
            Some(served) => (Status::SignatureMismatch, bounded_text(served.words())),
            None => (Status::NoSuchRpc, &[][..]),
        };
        self.leave_arguments(origin, header);
        let protocol = &mut self.state.lock().protocol;
        protocol.serves.end_in_round(origin, header.id);
        if header.kind == Kind::Request {
            protocol.refuse(
                origin,
                header.id,
                status_message(header.id, status, text, header.checksum),
            );
        }
    }

    #[cold]
    fn refresh_handlers(&self, work: &mut Work, version: usize) {
        let handlers = self.shared.handlers.read().clone();
        let before = std::mem::replace(&mut work.handlers, handlers);
        // Not under that lock: with it may go what users have deregistered.
        in_handler(self.id, Inside::Async, || before.into_iter().for_each(drop_handlers));
        work.handlers_version = version;
        work.last_rpc = None;
        drop(std::mem::take(&mut work.starts.spares));
    }
}

/// What an `async` handler is started with.
struct Start<'w> {
    tasks: &'w mut Tasks,
    /// Where an answer is encoded to that is there at once.
    answer: &'w mut Message,
    /// Where its future is put, if there is a place.
    spares: &'w mut Vec<Task>,
    /// It is among those that can be cancelled and answered by anybody.
    is_kept: bool,
}

/// Where the futures of the handler at this place are put.
#[inline]
fn spares_of(spares: &mut Vec<Vec<Task>>, place: usize) -> &mut Vec<Task> {
    if spares.len() <= place {
        spares.resize_with(place + 1, Vec::new);
    }
    &mut spares[place]
}

impl Work {
    /// Says whether the clock was read in this round; others go by the last reading.
    #[inline]
    fn read_clock(&mut self, shared: &Shared) -> bool {
        let is_due = self.rounds_since_clock >= ROUNDS_PER_CLOCK;
        if is_due {
            self.now = shared.platform.now();
            self.rounds_since_clock = 0;
        }
        self.rounds_since_clock += 1;
        is_due
    }
}

/// Empties the list. What owns nothing, the common case, is dropped without being asked.
#[inline(always)]
fn forget_all(done: &mut Vec<Completion>) {
    while let Some(completion) = done.pop() {
        let owns_nothing = match &completion {
            Completion::Unexpected { message, .. }
            | Completion::Done(Done {
                result: Ok(()), returned: Returned::Message(message), ..
            }) => message.slot().is_some(),
            _ => false,
        };
        if owns_nothing {
            std::mem::forget(completion);
        } else {
            drop_completion(completion);
        }
    }
}

/// A plain handler's run owns nothing; it is dropped without being asked. Says whether it has answered.
#[inline(always)]
fn forget_run(port: u64, run: Run) -> bool {
    let is_answered = matches!(&run, Run::Answered);
    match &run {
        Run::Answered | Run::Silent | Run::Given => std::mem::forget(run),
        Run::Later(_) => drop_run(port, run),
    }
    is_answered
}

#[cold]
fn drop_run(port: u64, run: Run) {
    in_handler(port, Inside::Async, || contain("a plain handler's future", || drop(run)));
}

#[cold]
fn drop_completion(completion: Completion) {
    drop(completion);
}
