//! What users hold: register, look up, call.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Weak},
    time::Duration,
};

use hg_core::{
    error::Failure,
    header::Kind,
    registry::{RegisterError, Registry},
    rpc::{Rpc, Serve, ServeKind},
};
use hg_na::Address;

use crate::{
    Answer, Call, CallOptions, Drain, EventLoop, OneWay, OpenError, OwnedCall, Peer, Progress,
    Ready, Request, dump,
    inside::{is_in_handler, is_inside, waiting},
    lock::Mutex,
    peer::ToAddress,
    platform::Spawned,
    port::{Handler, Port, Registered, Shared},
    serve::{OfAsyncClosure, OfClosure, OfFunction, OfLaterClosure, Server},
};

/// One context of an engine, or the whole engine through its first context.
///
/// Cheap to clone, usable from any thread. The engine closes when the last handle that was not got from a
/// [`Request`] is dropped, or by [`Handle::close`]: open calls fail, peers see the connections close.
#[derive(Clone)]
pub struct Handle {
    pub(crate) port: Arc<Port>,
    /// `None` for the handles of requests, which keep nothing open.
    alive: Option<Arc<Alive>>,
}

/// Closes the engine when the last owner drops it.
struct Alive {
    ports: Vec<Arc<Port>>,
    threads: Mutex<Vec<Spawned>>,
}

impl Alive {
    fn close(&self) {
        // Not under the lock: a thread that is waited for may be in here, too.
        let threads = std::mem::take(&mut *self.threads.lock());
        if self.ports.iter().any(|port| port.is_forked()) {
            // Its threads and its connections are the parent's.
            return;
        }
        self.ports.iter().for_each(|port| port.interrupt());
        let me = |port: &Arc<Port>| port.shared.platform.current();
        let me = self.ports.first().map(me);
        for Spawned { thread, join } in threads {
            // A handler waits for no thread: it may run on that one, or keep from ending what that one waits for.
            let may_wait = me.as_ref() != Some(&thread) && !is_in_handler();
            if may_wait && !join.join() {
                tracing::error!("a progress thread panicked");
            }
        }
        self.ports.iter().for_each(|port| port.close());
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.close();
    }
}

impl Handle {
    /// Opens the contexts of an engine that has its handlers already.
    pub(crate) fn start(shared: Shared, contexts: usize) -> Result<Self, OpenError> {
        let background = shared.settings.progress == Progress::Background;
        let shared = Arc::new(shared);
        let mut ports = Vec::with_capacity(contexts);
        for index in (0..=u8::MAX).take(contexts) {
            let context = shared.domain.context(index)?;
            ports.push(Arc::new(Port::new(
                index,
                Arc::clone(&shared),
                context,
                Box::new(Server::new()),
            )));
        }
        let weak: Vec<_> = ports.iter().map(Arc::downgrade).collect();
        shared.pool.wake_by(move || {
            // All of them: whoever makes progress for any looks after the pool.
            weak.iter().filter_map(Weak::upgrade).for_each(|port| port.notify());
        });
        dump::add(&ports);
        let alive = Alive { ports, threads: Mutex::default() };
        if background {
            for port in &alive.ports {
                alive.threads.lock().push(port.start_background()?);
            }
        }
        let port = Arc::clone(alive.ports.first().expect("there is at least one context"));
        Ok(Self { port, alive: Some(Arc::new(alive)) })
    }

    pub(crate) fn guest(port: Arc<Port>) -> Self {
        Self { port, alive: None }
    }

    /// Closes the engine now, whoever else has a handle of it: open calls end with
    /// [`CallError::Closed`](hg_core::error::CallError::Closed), handlers are told, peers see the connections close, and
    /// nothing can be called any more. Waits for plain handlers that run; called by one, for nothing. A second time it
    /// does nothing. The handle of a [`Request`] closes its own context only.
    ///
    /// The handlers are dropped, and nothing can be registered afterwards: [`RegisterError::Closed`]. One that runs is dropped
    /// when it has ended; where a context is closed alone, the handlers go with the last other one. A handler that holds a
    /// handle of its own engine keeps that alive until it is closed so, whatever other handles are dropped; better it asks its
    /// [`Request`] for one.
    pub fn close(&self) {
        match &self.alive {
            Some(alive) => alive.close(),
            None if self.port.is_forked() => {}
            None => {
                self.port.interrupt();
                self.port.close();
            }
        }
    }

    /// What a peer looks up to reach this context.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.port.address
    }

    /// Another context of this engine, or `None` when it has fewer.
    #[must_use]
    pub fn context(&self, index: usize) -> Option<Self> {
        let alive = self.alive.as_ref()?;
        let port = Arc::clone(alive.ports.get(index)?);
        Some(Self { port, alive: Some(Arc::clone(alive)) })
    }

    /// Finds a target. Contacts nobody: whether it is there shows in the calls. Of an address of several
    /// transports (`uid://...`) an engine over one of them takes its part.
    ///
    /// # Errors
    /// [`hg_na::Error::BadAddress`]; [`hg_na::Error::NoPlugin`] for one that no transport of this build reaches.
    pub fn lookup(&self, address: impl ToAddress) -> Result<Peer, OpenError> {
        let explain = |error| self.port.shared.settings.schemes.explain(error);
        let address = address.to_address().map_err(explain)?;
        let own = self.port.address.scheme();
        let part = if own == hg_na::UID { None } else { address.part(own) };
        let address = part.unwrap_or(address);
        // A user's advice may be asked: not under the lock.
        let na = self.lookup_locked(address).map_err(explain)?;
        Ok(Peer { na, port: self.port.id })
    }

    fn lookup_locked(&self, address: Address) -> Result<hg_na::Peer, OpenError> {
        let mut state = self.port.enter_state().ok_or(hg_na::Error::Forked)?;
        let context = state.protocol.context().map_err(|failure| match failure {
            Failure::NotMade(error) => error,
            _ => hg_na::Error::Unsupported("a closed engine"),
        })?;
        let na = context.lookup(&address)?;
        state.protocol.addresses.insert(na, address);
        Ok(na)
    }

    /// The address that a peer was looked up by, to be shown to people; `None` for one that called first, that is
    /// gone, or that is another context's.
    #[must_use]
    pub fn address_of(&self, peer: &Peer) -> Option<Address> {
        if peer.port != self.port.id {
            return None;
        }
        self.port.enter_state()?.protocol.addresses.get(&peer.na).cloned()
    }

    /// By which transport a peer is reached, as a scheme: `sm` or `tcp`, where the engine routes. Before anything
    /// was exchanged it is the one that is tried. Empty when the engine is closed, or the peer another context's.
    #[must_use]
    pub fn way_of(&self, peer: &Peer) -> String {
        let Some(mut state) = self.port.enter_state() else { return String::new() };
        match state.protocol.context() {
            Ok(context) if peer.port == self.port.id => context.way(peer.na).to_owned(),
            _ => String::new(),
        }
    }

    /// Closes the connection to a peer: open calls to it fail.
    pub fn forget(&self, peer: Peer) {
        if peer.port == self.port.id
            && let Some(mut state) = self.port.enter_state()
            && let Ok(context) = state.protocol.context()
        {
            context.forget(peer.na);
            state.protocol.addresses.remove(&peer.na);
        }
        self.port.notify();
    }

    /// Serves an RPC with the body that `#[hg::rpc]` was put on, in all contexts. An engine that listens is better given its
    /// handlers before it is opened, by [`Builder::register`](crate::Builder::register).
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register<R: Serve<Request>>(&self, rpc: R) -> Result<(), RegisterError> {
        let _: R = rpc;
        self.insert::<R>(OfFunction::<R>(PhantomData))
    }

    /// Serves an RPC with a closure, run by the thread that makes progress: it must not block.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve<R, F>(&self, rpc: R, function: F) -> Result<(), RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>
            + Send
            + Sync
            + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(OfClosure::<R, F> { function, kind: ServeKind::Plain, rpc: PhantomData })
    }

    /// Serves an RPC with a closure that may block, run by the engine's pool of threads, or by a runtime of the user's
    /// ([`crate::Builder::runtime`]).
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_blocking<R, F>(&self, rpc: R, function: F) -> Result<(), RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>
            + Send
            + Sync
            + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(OfClosure::<R, F> {
            function,
            kind: ServeKind::Blocking,
            rpc: PhantomData,
        })
    }

    /// Serves an RPC with a closure that gives a future, polled by the thread that makes progress, or by a runtime of the user's
    /// ([`crate::Builder::runtime`]).
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_async<R, F, Fut>(&self, rpc: R, function: F) -> Result<(), RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(Request, R::Args<'a>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(OfAsyncClosure::<R, F> { function, rpc: PhantomData })
    }

    /// Serves an RPC with a closure that is given an [`Answer`], to be sent now or later from any thread.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_later<R, F>(&self, rpc: R, function: F) -> Result<(), RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>, Answer<R>) + Send + Sync + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(OfLaterClosure::<R, F> { function, rpc: PhantomData })
    }

    fn insert<R: Rpc>(&self, handler: impl Handler + 'static) -> Result<(), RegisterError> {
        let handler = Registered::new(handler);
        // A clone of it: one that is refused is dropped here, without the lock.
        let clone = handler.clone();
        // The types' own `Deserialize` run: not under the lock.
        let signature = R::signature();
        let insert = |registry: &mut Registry<_>| registry.insert(R::NAME, signature, clone);
        let inserted = self.port.shared.change_handlers(insert);
        inserted.unwrap_or(Err(RegisterError::Closed { name: R::NAME }))
    }

    /// Serves an RPC no longer; says whether it did.
    pub fn deregister<R: Rpc>(&self, rpc: R) -> bool {
        let _: R = rpc;
        self.port
            .shared
            .change_handlers(|registry| registry.remove(R::wire_id()))
            .flatten()
            .is_some()
    }

    /// Calls an RPC. It is sent now; `wait` for it or await it.
    #[inline]
    pub fn call<R: Rpc>(&self, rpc: R, target: &Peer, args: R::Args<'_>) -> Call<'_, R> {
        self.call_with(rpc, target, args, CallOptions::default())
    }

    /// The same with a deadline, or another option.
    #[inline]
    pub fn call_with<R: Rpc>(
        &self,
        rpc: R,
        target: &Peer,
        args: R::Args<'_>,
        options: CallOptions,
    ) -> Call<'_, R> {
        let _: R = rpc;
        Call::new(&self.port, self.port.start_call::<R>(*target, args, Kind::Request, options))
    }

    /// Calls an RPC; what is given borrows nothing, and is polled when there is something to see.
    pub fn call_owned<R: Rpc>(&self, rpc: R, target: &Peer, args: R::Args<'_>) -> OwnedCall<R> {
        self.call_owned_with(rpc, target, args, CallOptions::default())
    }

    /// The same with a deadline, or another option.
    pub fn call_owned_with<R: Rpc>(
        &self,
        rpc: R,
        target: &Peer,
        args: R::Args<'_>,
        options: CallOptions,
    ) -> OwnedCall<R> {
        let _: R = rpc;
        let made = self.port.start_call::<R>(*target, args, Kind::Request, options);
        OwnedCall::new_owned(Arc::clone(&self.port), made)
    }

    /// Calls an RPC without an answer. Whether it is served, nobody tells. See [`Handle::ready`] for many of them.
    #[inline]
    pub fn notify<R: Rpc>(&self, rpc: R, target: &Peer, args: R::Args<'_>) -> OneWay<'_> {
        self.notify_with(rpc, target, args, CallOptions::default())
    }

    /// The same with a deadline, or another option.
    #[inline]
    pub fn notify_with<R: Rpc>(
        &self,
        rpc: R,
        target: &Peer,
        args: R::Args<'_>,
        options: CallOptions,
    ) -> OneWay<'_> {
        let _: R = rpc;
        OneWay::new(&self.port, self.port.start_call::<R>(*target, args, Kind::OneWay, options))
    }

    /// Ends when there is room for another call (`Builder::calls_max`): a future, or [`Ready::wait`]. Where there is none, a call is
    /// refused with [`hg_na::Error::Limit`], also one by [`Handle::notify`], which needs its room until it was handed to the
    /// transport:
    /// ```
    /// # use hg_engine::{Handle, Peer};
    /// # async fn tell<R: hg_core::rpc::Rpc<Args<'static> = ()> + Copy>(
    /// #     engine: &Handle, rpc: R, target: &Peer,
    /// # ) -> Result<(), hg_core::error::Failure> {
    /// engine.ready().await?;
    /// engine.notify(rpc, target, ()).accepted()
    /// # }
    /// ```
    /// The room is not kept for whoever has waited: another thread's call may take it first, and then that one's is refused.
    /// A call has its room until its outcome was taken or it was dropped: who holds calls that are over and waits for room waits in
    /// vain.
    pub fn ready(&self) -> Ready<'_> {
        Ready::new(&self.port)
    }

    /// Begins nothing new from now on, in any context of the engine, and ends when all that is in service was answered, and all
    /// that was sent has left: then the engine can be closed and nobody misses an answer. For restarts.
    ///
    /// Calls that arrive end with [`CallError::Draining`](hg_core::error::CallError::Draining), at once and certainly not
    /// started; one-way calls that arrive are dropped. As this ends, callers are told: a call of theirs that then ends with the
    /// connection, because it came just before the close, ends so, too. The engine's own calls go on, and may be made. Handlers
    /// are not told: one that would not end by itself is ended by closing the engine, when `within` has passed and this has failed.
    /// So it is with a peer that takes nothing, as one that is stopped; one that is gone is not waited for.
    ///
    /// An `async` handler that a runtime runs goes on after its caller has left, unless it looks at [`Request::cancelled`], and is
    /// waited for. Over TCP this may take 40 ms longer than the last answer: that long a peer's kernel may wait to say that it has it.
    ///
    /// The handle of a [`Request`] drains its own context only. Draining cannot be taken back.
    /// ```no_run
    /// # fn stop(engine: hg_engine::Handle) -> Result<(), hg_core::error::Failure> {
    /// let ended = engine.drain(std::time::Duration::from_secs(10)).wait();
    /// engine.close();
    /// # ended
    /// # }
    /// ```
    pub fn drain(&self, within: Duration) -> Drain<'_> {
        let own = std::slice::from_ref(&self.port);
        Drain::new(self.alive.as_ref().map_or(own, |alive| &alive.ports), within)
    }

    /// Makes progress for at most `timeout`, or until something moved, and says whether it did. Zero: one round. For engines opened
    /// with [`Progress::Own`]; harmless otherwise. Handlers run in this thread.
    ///
    /// Where another thread makes progress, waits meanwhile until that one stops, and then takes its turn: with
    /// [`Handle::interrupt_progress`] threads hand progress over to one another. In a handler it does nothing: the turn there
    /// never comes.
    pub fn progress(&self, timeout: Duration) -> bool {
        if timeout.is_zero() {
            return self.port.progress_once();
        }
        if is_inside(self.port.id) {
            return false;
        }
        let limit = self.port.now().checked_add(timeout);
        waiting(|| {
            let Some((mut role, state)) = self.port.wait_for_role(limit) else { return false };
            self.port.drive_until_moved(&mut role, state, limit)
        })
    }

    /// Ends a [`Handle::progress`] that is under way in another thread, also one that sleeps; if there is none, the next one after its
    /// first round.
    pub fn interrupt_progress(&self) {
        self.port.interrupt_progress();
    }

    /// The descriptor and the questions for a foreign event loop.
    ///
    /// # Errors
    /// [`hg_na::Error::Unsupported`] when the transport has no descriptor, [`hg_na::Error::Os`].
    pub fn event_loop(&self) -> Result<EventLoop, OpenError> {
        EventLoop::new(Arc::clone(&self.port))
    }

    /// Requests taken and not yet answered, of this context.
    #[must_use]
    pub fn requests_in_service(&self) -> usize {
        self.port.enter_state().map_or(0, |state| state.protocol.serves.in_service())
    }

    /// Large arguments and results of this context that its peers have not taken yet.
    #[must_use]
    pub fn large_untaken(&self) -> usize {
        self.port.enter_state().map_or(0, |state| state.protocol.kept.len())
    }

    /// Longest message in bytes that the transport takes, header included; longer arguments and results
    /// travel by bulk.
    #[must_use]
    pub fn message_max(&self) -> usize {
        self.port.shared.caps.max_unexpected
    }

    /// Calls of this context that are not over yet.
    #[must_use]
    pub fn calls_under_way(&self) -> usize {
        self.port.enter_state().map_or(0, |state| state.protocol.operations.calls())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Engine({})", self.port.address)
    }
}

impl Request {
    /// The engine, to call out with. It does not keep the engine open.
    #[must_use]
    pub fn engine(&self) -> Handle {
        Handle::guest(Arc::clone(self.port()))
    }
}
