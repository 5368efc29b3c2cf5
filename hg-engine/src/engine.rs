//! What users hold: register, look up, call.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use hg_core::{
    error::Failure,
    header::Kind,
    operations::OperationId,
    registry::{RegisterError, Registry},
    rpc::{Rpc, Serve, ServeKind},
};
use hg_na::Address;

use crate::{
    Answer, Call, CallOptions, EventLoop, OneWay, OpenError, OwnedCall, Peer, Progress, Request,
    Wait, dump,
    inside::is_in_handler,
    lock::Mutex,
    peer::ToAddress,
    pending::PortRef,
    platform::Spawned,
    port::{Handler, Port, Shared, State},
    registering::registering,
    serve::{Server, of_async_closure, of_closure, of_function, of_later_closure},
};

/// A whole engine, or one of its contexts.
///
/// # Several contexts
/// What [`Builder::open`](crate::Builder::open) gives for an engine of several contexts ([`Builder::contexts`](crate::Builder::contexts))
/// is the whole engine: one address leads to all contexts, and a peer that it has looked up is good for all. A call, a transfer or
/// another operation with such a peer takes the *thread's context*: threads are numbered as they come, and take the contexts in turn; in
/// a handler it is the handler's context. Of a target with several contexts the own first one calls the first, the second one the
/// second, and so on in turn, so that as many threads as contexts have connections, locks and progress for themselves on both sides.
/// The context of a target that shall serve is chosen by its address ([`Engine::address_at`]), the own one by
/// [`Engine::context`]: the handle of one context uses the whole engine's peers as well. A peer that one context has looked up, or
/// that has called it, is good for that one, which the whole engine's handle then takes.
///
/// ```
/// # use hg_engine::{Engine, Peer};
/// # fn steer(engine: &Engine, address: &str) -> Result<(Peer, Peer), hg_engine::OpenError> {
/// let any = engine.lookup(address)?; // the thread's context calls the one of the same place
/// let third = engine.lookup(engine.address_at(address, 2)?)?; // the thread's context calls the third one
/// # Ok((any, third))
/// # }
/// ```
///
/// Cheap to clone, usable from any thread. The engine closes when the last handle that was not got from a
/// [`Request`] is dropped, or by [`Engine::close`]: open calls fail, peers see the connections close.
#[derive(Clone)]
pub struct Engine {
    pub(crate) port: Arc<Port>,
    /// `None` for the handles of requests, which keep nothing open.
    alive: Option<Arc<Alive>>,
    /// Whether it is that of all contexts, of which there are several.
    is_whole: bool,
}

/// Closes the engine when the last owner drops it.
struct Alive {
    ports: Vec<Arc<Port>>,
    /// Of all contexts.
    address: Address,
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
        for (port, Spawned { thread, join }) in self.ports.iter().zip(threads) {
            // A handler waits for no thread: it may run on that one, or keep from ending what that one waits for. Nor does
            // anybody wait for one that may be kept waiting by a peer's memory.
            let may_wait = me.as_ref() != Some(&thread) && !is_in_handler() && port.has_moved();
            if may_wait && !join() {
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

impl Engine {
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
        for pool in shared.pools() {
            let weak = weak.clone();
            pool.wake_by(move || {
                // All of them: whoever makes progress for any looks after the pools.
                weak.iter().filter_map(Weak::upgrade).for_each(|port| port.notify());
            });
        }
        dump::add(&ports);
        let address = shared.address_of_all(&ports);
        let alive = Alive { ports, address, threads: Mutex::default() };
        if background {
            for port in &alive.ports {
                alive.threads.lock().push(port.start_background()?);
            }
        }
        let port = Arc::clone(alive.ports.first().expect("there is at least one context"));
        Ok(Self { port, alive: Some(Arc::new(alive)), is_whole: contexts > 1 })
    }

    pub(crate) fn guest(port: Arc<Port>) -> Self {
        Self { port, alive: None, is_whole: false }
    }

    /// All contexts, where this is the handle of several.
    fn whole(&self) -> Option<&Alive> {
        self.alive.as_deref().filter(|_| self.is_whole)
    }

    /// The contexts that this is the handle of.
    fn ports(&self) -> &[Arc<Port>] {
        self.whole().map_or(std::slice::from_ref(&self.port), |whole| &whole.ports)
    }

    /// All contexts of the engine, whose handle this is; of a request's handle its own one.
    pub(crate) fn all_ports(&self) -> &[Arc<Port>] {
        self.alive.as_ref().map_or(std::slice::from_ref(&self.port), |alive| &alive.ports)
    }

    /// The thread's context.
    pub(crate) fn own(&self) -> &Arc<Port> {
        match self.whole() {
            Some(whole) => self.threads_own(whole),
            None => &self.port,
        }
    }

    #[inline(never)]
    fn threads_own<'h>(&self, whole: &'h Alive) -> &'h Arc<Port> {
        &whole.ports[self.port.shared.contexts.of_thread()]
    }

    /// The context that an operation with this peer takes, and the peer as that one knows it; `None` for one that is good for
    /// none of them.
    #[inline(always)]
    fn steer(&self, peer: &Peer) -> Option<(&Arc<Port>, Peer)> {
        if peer.port == self.port.id { Some((&self.port, *peer)) } else { self.steer_further(peer) }
    }

    #[inline(never)]
    fn steer_further(&self, peer: &Peer) -> Option<(&Arc<Port>, Peer)> {
        let port = match self.port.shared.contexts.index_of(peer.port) {
            Some(index) => self.ports().get(index)?,
            None => self.own(),
        };
        Some((port, port.know(peer)?))
    }

    /// The same for whoever finds out by himself what is good.
    #[inline(always)]
    pub(crate) fn steer_or_stay(&self, peer: &Peer) -> (&Arc<Port>, Peer) {
        self.steer(peer).unwrap_or((&self.port, *peer))
    }

    /// Begins a call where it is steered to.
    #[inline(always)]
    pub(crate) fn begin(
        &self,
        target: &Peer,
        start: impl FnOnce(&Port, hg_na::Peer) -> Result<OperationId, Box<Failure>>,
    ) -> (&Arc<Port>, Result<OperationId, Box<Failure>>) {
        match self.steer(target) {
            Some((port, target)) => (port, start(port, target.na)),
            None => (&self.port, Err(unknown_peer())),
        }
    }

    /// Something of each context, together.
    fn sum(&self, count: impl Fn(&State) -> usize) -> usize {
        self.ports().iter().filter_map(|port| port.enter_state()).map(|state| count(&state)).sum()
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

    /// What a peer looks up to reach this context, or all contexts of this engine: then it is the first one's address, and behind it how
    /// many there are, as in `tcp://host:7000*4`. Where the transport gives addresses that do not follow from one another (`ofi+...` over
    /// a network, and one that does not listen), it is the first one's alone.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.whole().map_or(&self.port.address, |whole| &whole.address)
    }

    /// The address of one context of the engine behind an address, of which the first is 0: looked up, it gives a peer whose calls
    /// are served by that context, whichever context makes them.
    ///
    /// # Errors
    /// [`hg_na::Error::BadAddress`], also where it is the address of fewer contexts.
    pub fn address_at(
        &self,
        address: impl ToAddress,
        context: usize,
    ) -> Result<Address, OpenError> {
        self.port.shared.address_at(&self.address_here(address)?, context)
    }

    /// One context of this engine, or `None` when it has fewer.
    #[must_use]
    pub fn context(&self, index: usize) -> Option<Self> {
        let alive = self.alive.as_ref()?;
        let port = Arc::clone(alive.ports.get(index)?);
        Some(Self { port, alive: Some(Arc::clone(alive)), is_whole: false })
    }

    /// Finds a target. Contacts nobody: whether it is there shows in the calls. Of an address of several
    /// transports (`uid://...`) an engine over one of them takes its part.
    ///
    /// # Errors
    /// [`hg_na::Error::BadAddress`]; [`hg_na::Error::NoPlugin`] for one that no transport of this build reaches;
    /// [`hg_na::Error::Closed`].
    pub fn lookup(&self, address: impl ToAddress) -> Result<Peer, OpenError> {
        let address = self.address_here(address)?;
        let found = match self.whole() {
            Some(whole) => self.port.shared.contexts.lookup(&whole.ports, address),
            None => self.port.lookup(&address),
        };
        // A user's advice may be asked: not under the lock.
        found.map_err(|error| self.explain(error))
    }

    /// The part of an address that this engine's transport takes.
    fn address_here(&self, address: impl ToAddress) -> Result<Address, OpenError> {
        let address = address.to_address().map_err(|error| self.explain(error))?;
        let own = self.port.address.scheme();
        let part = if own == hg_na::UID { None } else { address.part(own) };
        Ok(part.unwrap_or(address))
    }

    fn explain(&self, error: hg_na::Error) -> OpenError {
        self.port.shared.settings.schemes.explain(error)
    }

    /// The address that a peer was looked up by, to be shown to people; `None` for one that called first, that is
    /// gone, or that is another context's.
    #[must_use]
    pub fn address_of(&self, peer: &Peer) -> Option<Address> {
        let (port, known) = self.steer(peer)?;
        let address = port.enter_state()?.protocol.addresses.get(&known.na).cloned()?;
        let is_common = peer.port != known.port;
        if is_common { port.shared.contexts.address_of(port, peer) } else { Some(address) }
    }

    /// By which transport a peer is reached, as a scheme: `sm` or `tcp`, where the engine routes. Before anything
    /// was exchanged it is the one that is tried. Empty when the engine is closed, or the peer another context's.
    #[must_use]
    pub fn way_of(&self, peer: &Peer) -> String {
        let Some((port, peer)) = self.steer(peer) else { return String::new() };
        let Some(mut state) = port.enter_state() else { return String::new() };
        state.protocol.context().map_or_else(|_| String::new(), |it| it.way(peer.na).to_owned())
    }

    /// Closes the connection to a peer, of each context for which it is good: open calls to it fail.
    pub fn forget(&self, peer: Peer) {
        match self.whole() {
            Some(whole) if self.port.shared.contexts.is_common(&peer) => {
                self.port.shared.contexts.forget(&whole.ports, &peer);
            }
            _ => {
                if let Some((port, peer)) = self.steer(&peer) {
                    port.forget_here(peer.na);
                }
            }
        }
    }

    registering!(&Self => ());

    fn insert<R: Rpc>(&self, handler: Handler) -> Result<(), RegisterError> {
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
        let (port, made) = self.begin(target, |port, target| {
            port.start_call::<R>(target, args, Kind::Request, options)
        });
        Call::start(PortRef::Borrowed(port), made)
    }

    /// Calls an RPC; the call borrows nothing, neither the engine nor the arguments: for tasks (`tokio::spawn`) and for calls that are
    /// kept.
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
        let (port, made) = self.begin(target, |port, target| {
            port.start_call::<R>(target, args, Kind::Request, options)
        });
        OwnedCall::start_owned(port, made)
    }

    /// Calls an RPC without an answer. Whether it is served, nobody tells: a target drops, and says in its log, one that it does
    /// not know, whose signature, codec or version differ, whose arguments are over its limits, or for which it has too much to
    /// do ([`Builder::reject_above`](crate::Builder::reject_above)). See [`Engine::ready`] for many of them.
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
        let (port, made) = self.begin(target, |port, target| {
            port.start_call::<R>(target, args, Kind::OneWay, options)
        });
        OneWay::new(port, made)
    }

    /// Makes progress for at most `timeout`, or until something moved, and says whether it did. Zero: one round. For engines opened
    /// with [`Progress::Own`]; harmless otherwise. Of several contexts the thread's is
    /// progressed. Handlers run in this thread.
    ///
    /// Where another thread makes progress, waits meanwhile until that one stops, and then takes its turn: with
    /// [`Engine::interrupt_progress`] threads hand progress over to one another. In a handler it does nothing: the turn there
    /// never comes.
    pub fn progress(&self, timeout: Duration) -> bool {
        self.progress_with(self.own().shared.settings.wait, timeout)
    }

    /// The same with another wait than the engine was opened with ([`Builder::wait`](crate::Builder::wait)): for whoever knows at the moment
    /// whether polling pays.
    pub fn progress_with(&self, wait: Wait, timeout: Duration) -> bool {
        let port = self.own();
        if timeout.is_zero() { port.progress_once() } else { port.progress_for(wait, timeout) }
    }

    /// Ends a [`Engine::progress`] that is under way in another thread, also one that sleeps; if there is none, the next one after its
    /// first round. Of several contexts, in each of them.
    pub fn interrupt_progress(&self) {
        self.ports().iter().for_each(|port| port.interrupt_progress());
    }

    /// The descriptor and the questions for a foreign event loop. Of several contexts it is the thread's: each has its own.
    ///
    /// # Errors
    /// [`hg_na::Error::Unsupported`] when the transport has no descriptor, [`hg_na::Error::Closed`], [`hg_na::Error::Forked`],
    /// [`hg_na::Error::Os`].
    pub fn event_loop(&self) -> Result<EventLoop, OpenError> {
        EventLoop::new(Arc::clone(self.own()))
    }

    /// Requests taken and not yet answered, of this context or all.
    #[must_use]
    pub fn requests_in_service(&self) -> usize {
        self.sum(|state| state.protocol.serves.in_service())
    }

    /// Large arguments and results, of this context or all, that peers have not taken yet.
    #[must_use]
    pub fn large_untaken(&self) -> usize {
        self.sum(|state| state.protocol.kept.len())
    }

    /// Bytes of large arguments, of this context or all, that were pulled and are not served yet.
    #[must_use]
    pub fn large_in_service_bytes(&self) -> usize {
        self.sum(|state| usize::try_from(state.protocol.budget.total()).unwrap_or(usize::MAX))
    }

    /// Bytes of calls and answers, of this context or all, that wait because their peers take nothing
    /// ([`Builder::backlog_bytes_max`](crate::Builder::backlog_bytes_max)).
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.sum(|state| usize::try_from(state.protocol.backlog_bytes()).unwrap_or(usize::MAX))
    }

    /// Calls, of this context or all, that are not over yet.
    #[must_use]
    pub fn calls_under_way(&self) -> usize {
        self.sum(|state| state.protocol.operations.calls())
    }

    /// Transfers, of this context or all, that are not over yet.
    #[must_use]
    pub fn transfers_under_way(&self) -> usize {
        self.sum(|state| state.protocol.operations.transfers())
    }

    /// Longest message in bytes that the transport takes, header included; longer arguments and results
    /// travel by bulk.
    #[must_use]
    pub fn message_max(&self) -> usize {
        self.port.shared.caps.max_unexpected
    }
}

#[cold]
fn unknown_peer() -> Box<Failure> {
    Box::new(Failure::NotMade(hg_na::Error::UnknownPeer))
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Engine({})", self.address())
    }
}

impl Request {
    /// The engine, to call out with. It does not keep the engine open.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine::guest(Arc::clone(&self.port))
    }
}
