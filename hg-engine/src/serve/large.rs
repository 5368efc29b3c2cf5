//! Large arguments, pulled before their handler runs.

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
    pool::Pooled,
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
            Ok(claim) => pull(&port, &request, &claim, token).await,
            Err(refusal) => Err(refusal),
        };
        if header.kind == Kind::OneWay {
            port.state.lock().protocol.tell(origin, Kind::ArgumentsTaken, header.id);
        }
        match pulled {
            Ok((bytes, share)) => run(handler, request, bytes, share).await,
            Err((status, text)) => Ended::Answer(request.failure(status, &text)),
        }
    });
    (owner, task)
}

/// Brings the arguments here, within the port's budget.
async fn pull(
    port: &Arc<Port>,
    request: &Request,
    claim: &Claim,
    cancelled: CancelToken,
) -> Result<(Vec<u8>, Share), (Status, String)> {
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
    let mut waiting = port.budget.share(request.due().origin, len);
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
    Ok((bytes, share))
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

async fn run(handler: Arc<dyn Handler>, request: Request, bytes: Vec<u8>, share: Share) -> Ended {
    let (port, due) = (Arc::clone(request.port()), request.due());
    let (mut answer, mut future) = (no_message(), None);
    let run = if handler.kind() == ServeKind::Blocking {
        let owner = request.clone();
        let (pooled, job) = Pooled::new(move || {
            let mut answer = no_message();
            let run = run_caught(handler.as_ref(), &request, &bytes, &mut answer, &mut None);
            (run, answer)
        });
        port.run_blocking(due.origin, job);
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
