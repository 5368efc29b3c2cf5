//! Serves the requests of a port: runs handlers in the round that has brought them, or has others run them.

mod kinds;
mod large;
mod owed;
mod places;
mod runtime;
mod tasks;
mod unanswered;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use hg_core::{
    error::{Status, bounded_text},
    header::{Header, Kind},
    protocol::{Ticket, status_message},
    registry::Registry,
    rpc::{RpcId, ServeKind, Signature},
};
use hg_na::{Completion, Message};

pub use self::kinds::Answer;
pub(crate) use self::kinds::{of_async_closure, of_closure, of_function, of_later_closure};
use self::tasks::{Tasks, keep};
use crate::{
    contain::contain,
    inside::{Inside, in_handler},
    lock::MutexGuard,
    port::{
        Due, Handler, Leftovers, Port, Request, Run, Service, State, Task, drop_handlers,
        no_message,
    },
};

/// The handlers of one port, and their futures.
pub(crate) struct Server {
    /// None before the first request, and once the port is closed.
    handlers: Arc<Registry<Handler>>,
    handlers_version: usize,
    /// The RPC that was served last, and where its handler is.
    last_rpc: Option<(RpcId, usize)>,
    tasks: Tasks,
    starts: Starts,
    /// Reused for every handler; `None` before the first one.
    request: Option<Request>,
    /// Reused for every answer that is there at once.
    answer: Message,
}

/// What `async` handlers are started with.
#[derive(Default)]
struct Starts {
    /// Handlers' futures that were started, to tell them apart.
    count: u64,
    /// Where the futures of each handler are put, by its place among all.
    spares: Vec<Vec<Task>>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            handlers: Arc::default(),
            handlers_version: usize::MAX,
            last_rpc: None,
            tasks: Tasks::default(),
            starts: Starts::default(),
            request: None,
            answer: no_message(),
        }
    }

    #[cold]
    fn refresh_handlers(&mut self, port: &Port, version: usize) {
        let before = std::mem::replace(&mut self.handlers, port.shared.handlers());
        // Not under that lock: with it may go what users have deregistered.
        in_handler(port.id, Inside::Async, || drop_handlers(before));
        self.handlers_version = version;
        self.last_rpc = None;
        drop(std::mem::take(&mut self.starts.spares));
    }
}

impl Service for Server {
    #[inline]
    fn serve_one<'p>(
        &mut self,
        port: &'p Arc<Port>,
        ticket: &Ticket,
        message: &mut Message,
    ) -> Option<MutexGuard<'p, State>> {
        self.serve_arrived(port, ticket, message, None)
    }

    fn serve<'p>(
        &mut self,
        port: &'p Arc<Port>,
        requests: &mut Vec<Ticket>,
        done: &mut [Completion],
    ) -> Option<MutexGuard<'p, State>> {
        // Once, before the first handler: what that takes is not left to those behind it.
        let has_deadline = |it: &Ticket| it.header.remaining_ns.is_some();
        let is_timed = requests.len() > 1 && requests.iter().any(has_deadline);
        let arrived = is_timed.then(|| port.now());
        let mut locked = None;
        for ticket in requests.iter() {
            let was_closed =
                locked.take().is_some_and(|state: MutexGuard<'_, State>| !state.is_open());
            // No other one begins once a handler of this round, in this thread, has closed its engine.
            if was_closed || port.is_closed.load(Ordering::Relaxed) {
                break;
            }
            if let Some(Completion::Unexpected { message, .. }) = done.get_mut(ticket.at) {
                locked = self.serve_arrived(port, ticket, message, arrived);
            }
        }
        requests.clear();
        locked
    }

    fn poll_ready(&mut self, port: &Port) {
        self.tasks.poll_ready(port);
    }

    fn is_ready(&self) -> &Arc<AtomicBool> {
        self.tasks.is_ready()
    }

    fn clear(&mut self) -> Leftovers {
        let request = self.request.take();
        let tasks = self.tasks.take();
        let places = std::mem::take(&mut self.starts.spares);
        let handlers = std::mem::take(&mut self.handlers);
        self.last_rpc = None;
        Box::new(move || {
            contain("a request that was dropped", || drop(request));
            tasks.end();
            contain("a place of a handler's futures", || drop(places));
            drop_handlers(handlers);
        })
    }
}

impl Server {
    /// Serves a request; `arrived`: when its round has begun, if that is known.
    #[inline]
    fn serve_arrived<'p>(
        &mut self,
        port: &'p Arc<Port>,
        &Ticket { from: origin, ref header, payload, .. }: &Ticket,
        message: &mut Message,
        arrived: Option<Instant>,
    ) -> Option<MutexGuard<'p, State>> {
        let version = port.shared.handlers_version();
        if version != self.handlers_version {
            self.refresh_handlers(port, version);
        }
        let Self { handlers, last_rpc, request, answer, tasks, starts, .. } = self;
        let Some(place) = place_of(header.rpc, handlers, last_rpc) else {
            port.refuse_unknown(origin, header, handlers.signature_of_name(header.rpc));
            return None;
        };
        let handler = handlers.at(place);
        // Where somebody may ask for its deadline, which is counted from its arrival.
        let is_asked = header.remaining_ns.is_some() && (handler.asks || header.lends());
        let now = is_asked.then(|| port.now());
        let left = Duration::from_nanos(header.remaining_ns.unwrap_or(u64::MAX));
        if arrived
            .zip(now)
            .is_some_and(|(arrived, now)| now.saturating_duration_since(arrived) >= left)
        {
            port.refuse(origin, header, (Status::DeadlineExceeded, &[]), "its time was over");
            return None;
        }
        let arrived = now.and(arrived).or(now);
        if header.lends() {
            let request = (origin, *header, &message.as_slice()[payload..]);
            port.serve_large(handler, request, arrived, (tasks, answer));
            return None;
        }
        let request = request.get_or_insert_with(|| Request::new(Arc::clone(port)));
        if handler.asks {
            request.reuse(origin, header, arrived);
        } else {
            request.reuse_unasked(origin, header);
        }
        match handler.kind {
            ServeKind::Plain => {
                let payload = &message.as_slice()[payload..];
                let run = || handler.run(request, payload, answer, &mut None);
                let run = in_handler(port.id, Inside::Plain, run);
                let mut state = port.state.lock();
                if run == Run::Answered {
                    state.protocol.reply(origin, header.id, answer);
                }
                state.protocol.serves.end_in_round(origin, header.id);
                // It may have taken long: what has come meanwhile is taken together, and the clock read before it.
                state.protocol.is_at_rest &= !is_asked;
                Some(state)
            }
            ServeKind::Async if port.runtime_for(handler).is_none() => {
                let spares = spares_of(&mut starts.spares, place);
                let start = Start { tasks, answer, spares, is_kept: handler.gives };
                let (message, count) = ((&*message, payload), &mut starts.count);
                port.run_async(handler, request, message, count, start)
            }
            ServeKind::Async | ServeKind::Blocking => {
                let request = port.begin_apart(origin, header, arrived);
                let message = std::mem::replace(message, Message::inline(0));
                port.run_elsewhere(handler.clone(), request, (message, payload));
                None
            }
        }
    }
}

/// Where the handler of an RPC is; most are of the one that was served last.
#[inline(always)]
fn place_of(
    rpc: RpcId,
    handlers: &Registry<Handler>,
    last: &mut Option<(RpcId, usize)>,
) -> Option<usize> {
    match *last {
        Some((id, place)) if id == rpc => Some(place),
        _ => {
            let place = handlers.place(rpc)?;
            *last = Some((rpc, place));
            Some(place)
        }
    }
}

impl Port {
    /// Has the arguments pulled that did not fit into a message, then serves the request.
    #[cold]
    fn serve_large(
        self: &Arc<Self>,
        handler: &Handler,
        (origin, header, payload): (hg_na::Peer, Header, &[u8]),
        arrived: Option<Instant>,
        (tasks, answer): (&mut Tasks, &mut Message),
    ) {
        let served = large::serve(self, handler.clone(), (origin, header), arrived, payload);
        let Some((request, task)) = served else { return };
        if let Some(runtime) = self.runtime_for(handler) {
            return self.spawn_task(runtime, request, task);
        }
        let (due, spares) = (Due::new(origin, &header), &mut Vec::new());
        self.go_on(due, (Run::Later, Some(task)), Start { tasks, answer, spares, is_kept: true });
    }

    /// Starts an `async` handler: runs it to its future, and polls that. One that ends at once leaves the state locked from its
    /// answer.
    #[inline(always)]
    fn run_async(
        self: &Arc<Self>,
        handler: &Handler,
        request: &mut Request,
        (message, payload): (&Message, usize),
        starts: &mut u64,
        start: Start<'_>,
    ) -> Option<MutexGuard<'_, State>> {
        let number = self.begin_start(start.is_kept, starts, request.due);
        request.make_cancellable(number);
        let request = &*request;
        let mut future = start.spares.pop();
        let run = hg_bulk::reading(message, || {
            let payload = &message.as_slice()[payload..];
            let (answer, future) = (&mut *start.answer, &mut future);
            in_handler(self.id, Inside::Plain, || handler.run(request, payload, answer, future))
        });
        self.go_on(request.due, (run, future), start)
    }

    /// An `async` handler is run to its future, in a round in which no cancellation can arrive. Most end in it, and are not
    /// kept among those that can be cancelled unless they ask; [`Port::go_on`] ends that.
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

    /// A handler's future is polled; unless it has ended, it goes on beyond this round. A handler that was kept may have been
    /// answered by somebody else.
    #[inline(always)]
    fn go_on(
        self: &Arc<Self>,
        due: Due,
        (mut run, future): (Run, Option<Task>),
        start: Start<'_>,
    ) -> Option<MutexGuard<'_, State>> {
        let Start { tasks, answer, spares, is_kept } = start;
        if let Some(task) = future {
            if run != Run::Later {
                keep(spares, task);
            } else if let Poll::Ready(ended) = tasks.start(task, &due, self, (answer, spares)) {
                run = ended;
            } else {
                if !is_kept {
                    self.leave_round(due);
                }
                return None;
            }
        }
        let mut state = self.state.lock();
        // Relaxed: those that ask hold the lock.
        self.starting.store(0, Ordering::Relaxed);
        if matches!(run, Run::Given | Run::Later) {
            return Some(state);
        }
        let is_due = if is_kept {
            state.protocol.serves.end(due.origin, due.id)
        } else {
            state.protocol.serves.end_in_round(due.origin, due.id);
            true
        };
        if is_due && run == Run::Answered {
            state.protocol.reply(due.origin, due.id, answer);
        }
        Some(state)
    }

    /// A handler goes on beyond the round that has started it.
    fn leave_round(&self, due: Due) {
        let mut state = self.state.lock();
        state.protocol.serves.keep_running(due.origin, due.id);
        // Relaxed: those that ask hold the lock.
        self.starting.store(0, Ordering::Relaxed);
    }

    /// Has a handler run by a runtime of the user's, or by the pool.
    #[inline(never)]
    fn run_elsewhere(
        self: &Arc<Self>,
        handler: Handler,
        request: Request,
        (message, payload): (Message, usize),
    ) {
        if let Some(runtime) = self.runtime_for(&handler) {
            let task = runtime::serve(handler, request.clone(), (message, payload));
            let task = places::own(task);
            return self.spawn_task(runtime, request, task);
        }
        let origin = request.due.origin;
        let job = owed::job(handler, request, move |handler, request, answer| {
            handler.run(request, &message.as_slice()[payload..], answer, &mut None)
        });
        self.run_blocking(origin, job);
    }

    /// The request of a handler that goes on beyond its round, or runs elsewhere.
    fn begin_apart(
        self: &Arc<Self>,
        origin: hg_na::Peer,
        header: &Header,
        arrived: Option<Instant>,
    ) -> Request {
        self.state.lock().protocol.serves.keep_running(origin, header.id);
        let mut request = Request::new(Arc::clone(self));
        request.reuse(origin, header, arrived);
        request.make_cancellable(0);
        request
    }

    #[cold]
    fn refuse_unknown(
        self: &Arc<Self>,
        origin: hg_na::Peer,
        header: &Header,
        served: Option<&Signature>,
    ) {
        let (status, text) = match served {
            Some(served) => (Status::SignatureMismatch, bounded_text(served.words())),
            None => (Status::NoSuchRpc, &[][..]),
        };
        let why = served.map_or("no RPC of its name", |_| "its RPC has another signature here");
        self.refuse(origin, header, (status, text), why);
    }

    /// Does not begin a request.
    #[cold]
    fn refuse(
        self: &Arc<Self>,
        origin: hg_na::Peer,
        header: &Header,
        (status, text): (Status, &[u8]),
        why: &str,
    ) {
        // Nobody will take what it lends.
        drop(large::lender_of(self, origin, header));
        let protocol = &mut self.state.lock().protocol;
        protocol.serves.end_in_round(origin, header.id);
        if header.kind == Kind::Request {
            protocol.refuse(
                origin,
                header.id,
                status_message(header.id, status, text, header.checksum),
            );
        } else {
            protocol.serves.log_dropped(origin, why);
        }
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
