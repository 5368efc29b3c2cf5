//! Large arguments, pulled before their handler runs.
//!
//! A handler that may block has its turn for a thread first, then its bytes of the budget: nobody holds bytes while others of the same origin
//! keep every thread from it that it may have.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use hg_bulk::TransferError;
use hg_core::{
    cancel::CancelToken,
    error::Status,
    header::{Header, Kind},
    rpc::ServeKind,
};

use super::{
    owed::DROPPED,
    places::{self, Ended},
};
use crate::{
    Request,
    budget::Share,
    inside::{Inside, in_handler},
    large::{Claim, too_large},
    pending::PortRef,
    pool::{Announced, Pooled},
    port::{Handler, Port, Task, no_message, run_caught},
    view::Fetch,
};

/// Serves a request whose arguments have to be pulled first: a task of its port.
pub(crate) fn serve(
    port: &Arc<Port>,
    handler: Arc<dyn Handler>,
    (origin, header): (hg_na::Peer, Header),
    arrived: Option<Instant>,
    payload: &[u8],
) -> (Request, Task) {
    let mut state = port.state.lock();
    state.protocol.serves.keep_running(origin, header.id);
    let token = state.protocol.serves.token(origin, header.id, false);
    drop(state);
    let mut request = Request::new(Arc::clone(port));
    request.reuse(origin, &header, arrived);
    request.make_cancellable(0);
    let claim = Claim::read(payload).map_err(|error| (Status::Decode, error.to_string()));
    let port = Arc::clone(port);
    let owner = request.clone();
    let task = places::own(async move {
        let pulled = match claim {
            Ok(claim) => {
                let may_block = handler.kind() == ServeKind::Blocking;
                pull(&port, &request, &claim, (may_block, token)).await
            }
            Err(refusal) => Err(refusal),
        };
        if header.kind == Kind::OneWay {
            port.state.lock().protocol.tell(origin, Kind::ArgumentsTaken, header.id);
        }
        match pulled {
            Ok(pulled) => run(handler, request, pulled).await,
            Err((status, text)) => Ended::Answer(request.failure(status, &text)),
        }
    });
    (owner, task)
}

/// Arguments that are here.
struct Pulled {
    bytes: Vec<u8>,
    /// Theirs of the budget.
    share: Share,
    /// The handler's job, where it may block.
    announced: Option<Announced>,
}

/// Brings the arguments here, within the port's budget.
async fn pull(
    port: &Arc<Port>,
    request: &Request,
    claim: &Claim,
    (may_block, cancelled): (bool, CancelToken),
) -> Result<Pulled, (Status, String)> {
    let settings = &port.shared.settings;
    // What is larger than the whole budget would wait until nobody else has anything in service: without end, it may be.
    let limits = [
        (settings.large_max, "large_max"),
        (settings.large_in_service_max, "large_in_service_max"),
    ];
    let len = claim.descriptor.len();
    if let Some(limit) = limits.into_iter().find(|(max, _)| len > *max) {
        return Err((Status::Rejected, too_large("the arguments", len, limit)));
    }
    let origin = request.due().origin;
    let announced = if may_block { port.announce_blocking(origin) } else { None };
    if let Some(announced) = &announced
        && !unless(cancelled.clone(), |context| announced.poll(context)).await?
    {
        return Err((Status::Rejected, DROPPED.to_owned()));
    }
    let mut waiting = port.budget.share(origin, len);
    let share = unless(cancelled.clone(), |context| waiting.poll(context)).await?;
    let mut fetch =
        Fetch::new(PortRef::Borrowed(port), request.origin(), (&claim.descriptor).into(), false);
    if let Some(at) = request.deadline() {
        fetch = fetch.within(at.saturating_duration_since(port.now()));
    }
    let bytes = unless(cancelled, |context| Pin::new(&mut fetch).poll(context)).await?;
    let bytes = bytes.map_err(refusal)?;
    claim
        .check(&bytes, request.has_checksum())
        .map_err(|why| (Status::Decode, format!("the arguments: {why}")))?;
    Ok(Pulled { bytes, share, announced })
}

/// What `poll` gives, unless the request is cancelled first.
async fn unless<T>(
    mut cancelled: CancelToken,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, (Status, String)> {
    poll_fn(|context| {
        if Pin::new(&mut cancelled).poll(context).is_ready() {
            return Poll::Ready(Err((Status::Cancelled, String::new())));
        }
        Poll::Ready(Ok(ready!(poll(context))))
    })
    .await
}

fn refusal(error: TransferError) -> (Status, String) {
    match error {
        TransferError::DeadlineExceeded => (Status::DeadlineExceeded, String::new()),
        TransferError::Cancelled => (Status::Cancelled, String::new()),
        other => (Status::Rejected, format!("the arguments could not be pulled: {other}")),
    }
}

async fn run(handler: Arc<dyn Handler>, request: Request, pulled: Pulled) -> Ended {
    let Pulled { bytes, share, announced } = pulled;
    let (port, due) = (Arc::clone(request.port()), request.due());
    let (mut answer, mut future) = (no_message(), None);
    let run = if handler.kind() == ServeKind::Blocking {
        let owner = request.clone();
        let (pooled, job) = Pooled::new(move || {
            let mut answer = no_message();
            let run = run_caught(handler.as_ref(), &request, &bytes, &mut answer, &mut None);
            (run, answer)
        });
        match announced {
            Some(announced) => announced.bring(job),
            None => port.run_blocking(due.origin, job),
        }
        let Some((run, made)) = pooled.await else {
            return Ended::Answer(owner.failure(Status::Rejected, DROPPED));
        };
        answer = made;
        run
    } else {
        let mut run = || run_caught(handler.as_ref(), &request, &bytes, &mut answer, &mut future);
        // As of short arguments: what is polled to its end in there never ends.
        if port.runtime_for(handler.as_ref()).is_some() {
            run()
        } else {
            in_handler(port.id, Inside::Plain, run)
        }
    };
    let ended = places::finish((run, future), &port, &due, answer).await;
    drop(share);
    ended
}

impl Port {
    /// The target refuses a request whose arguments nobody will pull.
    pub(crate) fn leave_arguments(&self, origin: hg_na::Peer, header: &Header) {
        if header.bulk && header.kind == Kind::OneWay {
            self.state.lock().protocol.tell(origin, Kind::ArgumentsTaken, header.id);
        }
    }
}
