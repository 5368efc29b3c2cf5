//! Memory that a request lends: large arguments, and frozen memory among arguments, taken before the handler runs.
//!
//! For a handler that may block that is done in its own thread of the pool, before the handler: nobody holds bytes while others of the
//! same origin keep every thread from it that it may have. A runtime's threads have no shares: there it is done before one is asked for.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
    time::Instant,
};

use hg_bulk::{Descriptor, TransferError};
use hg_core::{
    budget::Part,
    error::Status,
    header::{Header, Kind},
    protocol::Protocol,
    rpc::ServeKind,
};
use hg_na::{Error, Frozen, Message, SharedBytes, arriving};

use super::{
    owed,
    places::{self, Ended},
};
use crate::{
    Request,
    arriving::Lender,
    frozen,
    inside::{Inside, in_handler},
    large::{Bound, Claim, check_len},
    pending::{Operation, PortRef},
    platform::{Platform, Thread},
    port::{Handler, Port, Run, Task, no_message},
    transfer::moved,
    view::Fetch,
};

/// What a request lends, by its own word.
struct Lent {
    frozen: Vec<Descriptor>,
    /// The encoded arguments, unless they are there.
    here: Vec<u8>,
    there: Option<Claim>,
}

impl Lent {
    fn read(header: &Header, mut payload: &[u8]) -> Result<Self, Error> {
        let mut frozen = Vec::new();
        if header.frozen {
            (frozen, payload) = frozen::read(payload)?;
        }
        if header.bulk {
            return Ok(Self { frozen, here: Vec::new(), there: Some(Claim::read(payload)?) });
        }
        Ok(Self { frozen, here: payload.to_vec(), there: None })
    }
}

/// What a request has lent, taken.
struct Taken {
    arguments: Vec<u8>,
    frozen: Vec<Frozen>,
    /// Of what was copied.
    share: Option<Share>,
}

/// Why it could not be taken, as it is answered.
type Refusal = (Status, String);

/// Serves a request that lends memory: by a task of its port, unless the pool does.
pub(crate) fn serve(
    port: &Arc<Port>,
    handler: Handler,
    (origin, header): (hg_na::Peer, Header),
    arrived: Option<Instant>,
    payload: &[u8],
) -> Option<(Request, Task)> {
    let request = port.begin_apart(origin, &header, arrived);
    let lent = Lent::read(&header, payload).map_err(|error| (Status::Decode, error.to_string()));
    let lent = (lent, lender_of(port, origin, &header));
    if handler.kind == ServeKind::Blocking && port.has_pool() {
        let job = owed::job(handler, request, move |handler, request, answer| {
            let platform = &request.port.shared.platform;
            match block_on(platform.as_ref(), pin!(take(request, lent))) {
                Ok(taken) => taken.run(handler, request, answer),
                Err((status, text)) => request.due.fail(status, &text, answer),
            }
        });
        port.run_blocking(origin, job);
        return None;
    }
    let owner = request.clone();
    let task = places::own(async move {
        match take(&request, lent).await {
            Ok(taken) => run(handler, request, taken).await,
            Err((status, text)) => {
                let mut answer = no_message();
                (request.due.fail(status, &text, &mut answer), answer)
            }
        }
    });
    Some((owner, task))
}

/// Takes what a request lends. Then its lender may have it back.
async fn take(
    request: &Request,
    (lent, lender): (Result<Lent, Refusal>, Option<Lender>),
) -> Result<Taken, Refusal> {
    let taken = match lent {
        Ok(lent) => Taking { port: &request.port, request }.all(lent).await,
        Err(refusal) => Err(refusal),
    };
    if let Some(Lender { port, peer, .. }) = &lender
        && let Err((Status::Rejected | Status::Decode, why)) = &taken
        && let Some(mut state) = port.enter_state()
    {
        state.protocol.serves.log_dropped(*peer, why);
    }
    taken
}

/// The origin of a one-way call; `None`: the memory goes with the answer.
pub(super) fn lender_of(port: &Arc<Port>, peer: hg_na::Peer, header: &Header) -> Option<Lender> {
    let (port, id, what) = (Arc::clone(port), header.id, Kind::ArgumentsTaken);
    (header.lends() && header.kind == Kind::OneWay).then(|| Lender { port, peer, id, what })
}

/// A part of the budget of bytes, or a place in the queue for one. Dropped, it gives up the one or the other.
struct Share {
    port: Arc<Port>,
    number: u64,
    part: Part,
}

impl Share {
    fn ask(port: &Arc<Port>, origin: hg_na::Peer, len: u64) -> Self {
        let part = Part { origin, len };
        let number = port.enter_state().map_or(0, |mut state| {
            let Protocol { budget, deferred, .. } = &mut state.protocol;
            budget.ask(part, deferred)
        });
        Self { port: Arc::clone(port), number, part }
    }

    /// Ready once its turn has come.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // A user's: cloned before the lock, and dropped after it.
        let mut waker = Some(context.waker().clone());
        let state = self.port.enter_state();
        let waits = state.is_some_and(|mut it| it.protocol.budget.waits(self.number, &mut waker));
        if waits { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(mut state) = self.port.enter_state() {
            let Protocol { budget, deferred, .. } = &mut state.protocol;
            budget.end(self.number, self.part, deferred);
            drop(state);
            self.port.notify();
        }
    }
}

/// Polls a future to its end in a thread that may block.
fn block_on<F: Future>(platform: &dyn Platform, mut future: Pin<&mut F>) -> F::Output {
    let woken = Arc::new(Woken { is_woken: AtomicBool::new(false), thread: platform.current() });
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // Acquire: pairs with the Release of `wake`. The token alone would not do: a poll makes progress, and what it runs, a plain
        // handler, may park and take it.
        while !woken.is_woken.swap(false, Ordering::Acquire) {
            platform.park();
        }
    }
}

/// Tells a thread that polls a future to poll it again.
struct Woken {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Takes what a request lends, unless that is cancelled or its time is over.
struct Taking<'t> {
    port: &'t Arc<Port>,
    request: &'t Request,
}

impl Taking<'_> {
    /// Sees what can be seen where it lies, and brings the rest here, within the port's budget.
    async fn all(&self, lent: Lent) -> Result<Taken, Refusal> {
        let mut seen = Vec::with_capacity(lent.frozen.len());
        for descriptor in &lent.frozen {
            self.check("an argument", descriptor.len(), Bound::Each)?;
            seen.push(self.see(descriptor).await?);
        }
        let unseen = || lent.frozen.iter().zip(&seen).filter(|(_, seen)| seen.is_none());
        let mut len = unseen().fold(0, |sum, (it, _)| it.len().saturating_add(sum));
        if let Some(claim) = &lent.there {
            self.check("the arguments", claim.descriptor.len(), Bound::Each)?;
            len = claim.descriptor.len().saturating_add(len);
        }
        let is_copied = lent.there.is_some() || unseen().next().is_some();
        let mut share = None;
        if is_copied {
            // There is never room for more.
            self.check("the arguments", len, Bound::Held)?;
            let share = share.insert(Share::ask(self.port, self.request.due.origin, len));
            self.unless_over(|context| share.poll(context)).await?;
        }
        let mut arguments = lent.here;
        if let Some(claim) = lent.there {
            arguments = self.pull(&claim.descriptor).await?;
            claim
                .check(&arguments, self.request.due.checksum)
                .map_err(|why| (Status::Decode, format!("the arguments: {why}")))?;
        }
        let mut frozen = Vec::with_capacity(seen.len());
        for (descriptor, seen) in lent.frozen.iter().zip(seen) {
            frozen.push(match seen {
                Some(seen) => seen,
                None => Frozen::from(self.pull(descriptor).await?),
            });
        }
        Ok(Taken { arguments, frozen, share })
    }

    fn check(&self, what: &str, len: u64, bound: Bound) -> Result<(), Refusal> {
        check_len(&self.port.shared.settings, what, len, bound)
            .map_err(|why| (Status::Rejected, why))
    }

    /// The bytes where they lie; `None`: they are to be pulled.
    async fn see(&self, descriptor: &Descriptor) -> Result<Option<Frozen>, Refusal> {
        let view = self.port.start_view(self.request.origin(), descriptor.into());
        let mut view = Operation::new(PortRef::Borrowed(self.port), view);
        self.request.deadline().inspect(|at| view.end_at(*at));
        match moved(self.unless_over(|context| view.poll(Some(context.waker()), true)).await?) {
            // What its owner may write is copied: a handler is given a slice.
            Ok(seen) => Ok(seen.and_then(|it: SharedBytes| Frozen::try_from(it).ok())),
            Err(TransferError::NotMade(Error::Unsupported(_))) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    async fn pull(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Refusal> {
        let remote = (descriptor.into(), false);
        let mut fetch = Fetch::start(self.port, self.request.origin(), remote, Vec::new());
        self.request.deadline().inspect(|at| fetch.operation.end_at(*at));
        let bytes = self.unless_over(|context| Pin::new(&mut fetch).poll(context)).await?;
        bytes.map_err(refusal)
    }

    /// What `poll` gives, unless the request is cancelled first.
    async fn unless_over<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Refusal> {
        let mut cancelled = pin!(self.request.cancelled());
        poll_fn(|context| {
            if cancelled.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err((Status::Cancelled, String::new())));
            }
            Poll::Ready(Ok(ready!(poll(context))))
        })
        .await
    }
}

fn refusal(error: TransferError) -> Refusal {
    match error {
        TransferError::DeadlineExceeded => (Status::DeadlineExceeded, String::new()),
        TransferError::Cancelled => (Status::Cancelled, String::new()),
        other => (Status::Rejected, format!("the arguments could not be pulled: {other}")),
    }
}

impl Taken {
    /// Runs a handler that may block.
    fn run(self, handler: &Handler, request: &Request, answer: &mut Message) -> Run {
        let Self { arguments, frozen, share } = self;
        let run = arriving(frozen, || handler.run(request, &arguments, answer, &mut None));
        drop(share);
        run
    }
}

/// Runs a handler with what was taken. One that may block answers by itself.
async fn run(handler: Handler, request: Request, taken: Taken) -> Ended {
    let (port, due) = (Arc::clone(&request.port), request.due);
    let (mut answer, mut future) = (no_message(), None);
    if handler.kind == ServeKind::Blocking {
        let run = |handler: &_, request: &_, answer: &mut _| taken.run(handler, request, answer);
        port.run_blocking(due.origin, owed::job(handler, request, run));
        return (Run::Given, answer);
    }
    let Taken { arguments: bytes, frozen, share } = taken;
    let run = || arriving(frozen, || handler.run(&request, &bytes, &mut answer, &mut future));
    // As of short arguments: what is polled to its end in there never ends.
    let run = if port.runtime_for(&handler).is_some() {
        run()
    } else {
        in_handler(port.id, Inside::Plain, run)
    };
    let ended = places::finish((run, future), &port, &due, answer).await;
    drop(share);
    ended
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use watchdog::hear;

    use super::*;
    use crate::platform::Machine;

    #[test]
    fn a_wake_up_counts_although_what_was_run_in_the_poll_has_parked() {
        let (tell, told) = channel();
        let polling = move || {
            let (machine, mut polls) = (Machine::default(), 0);
            let future = poll_fn(|context| {
                polls += 1;
                if polls > 1 {
                    return Poll::Ready(polls);
                }
                context.waker().wake_by_ref();
                machine.park();
                Poll::Pending
            });
            let _nobody_waits = tell.send(block_on(&machine, pin!(future)));
        };
        Machine::default().spawn("polls".to_owned(), Box::new(polling)).expect("a thread");
        assert_eq!(hear(&told), 2);
    }
}
