//! Large arguments: offered by the origin, pulled by the target.

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
    error::{Failure, Status},
    header::{Header, Kind},
    operations::OperationId,
    rpc::ServeKind,
};

use super::{Claim, budget::Share, too_large};
use crate::{
    Peer, Request,
    call::reserve_failure,
    handler::{self, Handler},
    inside::{Inside, in_handler},
    owed::DROPPED,
    pending::PortRef,
    pool::Pooled,
    port::Port,
    running::{self, Ended, Task},
    view::Fetch,
};

impl Port {
    /// Whether arguments of so many bytes may be made.
    pub(crate) fn check_large(&self, size: usize) -> Result<(), Failure> {
        let max = self.shared.settings.large_max;
        if size as u64 > max {
            return Err(Failure::Rejected(too_large("the arguments", size as u64, max)));
        }
        Ok(())
    }

    /// Makes a call whose arguments, which begin at this place of the bytes, do not fit in a message. `header` lacks its
    /// id.
    #[cold]
    pub(crate) fn start_large_call(
        &self,
        peer: Peer,
        name: &'static str,
        (bytes, first): (Vec<u8>, usize),
        mut header: Header,
        deadline: Option<Instant>,
    ) -> Result<OperationId, Failure> {
        self.check_large(bytes.len() - first)?;
        let (local, payload) = self.offer_bytes((bytes, first), header.checksum)?;
        header.bulk = true;
        let start = header.encoded_len();
        let two_way = header.kind == Kind::Request;

        let mut state = self.enter_state().ok_or(hg_na::Error::Forked)?;
        if !two_way {
            state.protocol.kept.check_arguments(peer.na, local.len())?;
        }
        let mut message = state
            .protocol
            .context()?
            .message(peer.na, start + payload.len())
            .map_err(reserve_failure)?;
        message.as_mut_slice()[start..].copy_from_slice(&payload);
        // Those of a call are kept with it; the port keeps those of a one-way call, which is over when it was sent.
        let (of_call, of_port) = if two_way { (Some(local), None) } else { (None, Some(local)) };
        let operations = &mut state.protocol.operations;
        let begun = operations.begin_call((peer.na, name), two_way, deadline, of_call);
        let id = begun.ok_or_else(|| self.too_many_calls())?;
        header.id = id.to_bits();
        header.encode(message.as_mut_slice());
        state.protocol.post_call(id, peer.na, two_way, message)?;
        if let Some(local) = of_port {
            state.protocol.kept.insert_arguments(id, peer.na, local, deadline);
        }
        drop(state);
        self.notify();
        Ok(id)
    }
}

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
    let task = running::own(async move {
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
    let (len, max) = (claim.descriptor.len(), port.shared.settings.large_max);
    if len > max {
        return Err((Status::Rejected, too_large("the arguments", len, max)));
    }
    let mut waiting = port.budget.share(request.due().origin, len);
    let share = unless(cancelled.clone(), |context| waiting.poll(context)).await?;
    let mut fetch =
        Fetch::new(PortRef::Borrowed(port), request.origin(), (&claim.descriptor).into());
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
    let mut answer = handler::no_message();
    let run = if handler.kind() == ServeKind::Blocking {
        let owner = request.clone();
        let (pooled, job) = Pooled::new(move || {
            let mut answer = handler::no_message();
            let run =
                handler::run_caught(handler.as_ref(), &request, &bytes, &mut answer, &mut None);
            (run, answer)
        });
        port.run_blocking(due.origin, job);
        let Some((run, made)) = pooled.await else {
            return Ended::Answer(owner.failure(Status::Rejected, DROPPED));
        };
        answer = made;
        run
    } else {
        let mut run =
            || handler::run_caught(handler.as_ref(), &request, &bytes, &mut answer, &mut None);
        // As of short arguments: what is polled to its end in there never ends.
        if port.runtime_for(handler.as_ref()).is_some() {
            run()
        } else {
            in_handler(port.id, Inside::Plain, run)
        }
    };
    let ended = running::finish(run, &port, &due, answer).await;
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
