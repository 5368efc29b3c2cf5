//! How to wrap a plugin: a [`Layer`] stands between each context and its user and passes on what it
//! does not change.

use std::{fmt, sync::Arc, time::Instant};

use hg_na::{
    Address, Begun, Caps, Completion, Context, Descriptor, Domain, Error, Exchange, Exchanged,
    Guest, Identity, Memory, Message, Offer, Op, OpId, OpenOptions, Peer, Plugin, Region, Rejected,
    Rights, Tag, Token, Transit, Waiter,
};

/// Stands before one context. Each method passes on unless it is overridden.
pub trait Layer: fmt::Debug + Send {
    /// See [`Context::lookup`].
    ///
    /// # Errors
    /// As the context's.
    fn lookup(&mut self, inner: &mut dyn Context, address: &Address) -> Result<Peer, Error> {
        inner.lookup(address)
    }
    /// See [`Context::forget`].
    fn forget(&mut self, inner: &mut dyn Context, peer: Peer) {
        inner.forget(peer);
    }
    /// See [`Context::post`].
    ///
    /// # Errors
    /// As the context's.
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        inner.post(token, op)
    }
    /// See [`Context::exchange`]. Not taken unless overridden, so that a layer sees every operation as a post.
    fn exchange(
        &mut self,
        _inner: &mut dyn Context,
        _exchange: &Exchange,
        _message: &mut Message,
    ) -> Option<Exchanged> {
        None
    }
    /// See [`Context::reply`]. The same.
    fn reply(
        &mut self,
        _inner: &mut dyn Context,
        _to: Peer,
        _tag: Tag,
        _token: Token,
        _message: &mut Message,
    ) -> Option<OpId> {
        None
    }
    /// See [`Context::begin`]. The same.
    fn begin<'near>(
        &mut self,
        _inner: &mut dyn Context,
        _transit: &Transit<'near, '_>,
    ) -> Begun<'near> {
        Begun::No
    }
    /// See [`Context::moves`]. The same.
    fn moves(&mut self, _inner: &mut dyn Context, _peer: Peer) -> bool {
        false
    }
    /// See [`Context::fetch`]. The same.
    fn fetch<'into>(
        &mut self,
        _inner: &mut dyn Context,
        _owner: Peer,
        _remote: (&Descriptor, u64),
        _into: &'into mut [u8],
        _may_wait: bool,
    ) -> Begun<'into> {
        Begun::No
    }
    /// See [`Context::cancel`].
    fn cancel(&mut self, inner: &mut dyn Context, id: OpId) {
        inner.cancel(id);
    }
    /// See [`Context::set_admission`].
    fn set_admission(&mut self, inner: &mut dyn Context, open: bool) {
        inner.set_admission(open);
    }
    /// See [`Context::set_admission_of`].
    fn set_admission_of(&mut self, inner: &mut dyn Context, peer: Peer, open: bool) {
        inner.set_admission_of(peer, open);
    }
    /// See [`Context::progress`].
    ///
    /// # Errors
    /// As the context's.
    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        inner.progress(now, done)
    }
    /// See [`Context::next_deadline`].
    fn next_deadline(&self, inner: &dyn Context) -> Option<Instant> {
        inner.next_deadline()
    }
    /// See [`Context::may_sleep`].
    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        inner.may_sleep()
    }
    /// See [`Context::identity`].
    fn identity(&self, inner: &dyn Context, peer: Peer) -> Identity {
        inner.identity(peer)
    }
    /// See [`Context::flush`].
    fn flush(&mut self, inner: &mut dyn Context) -> bool {
        inner.flush()
    }
    /// See [`Context::connected`].
    fn connected(&mut self, inner: &mut dyn Context) -> Vec<Peer> {
        inner.connected()
    }
    /// See [`Context::waiter`].
    fn waiter(&self, inner: &dyn Context) -> Arc<dyn Waiter> {
        inner.waiter()
    }
}

/// Makes the layer of each context, and stands before the domains.
pub trait Layers: fmt::Debug + Send + Sync {
    /// The layer of the context at this address.
    fn layer(&self, address: &Address) -> Box<dyn Layer>;
    /// See [`Domain::register`].
    ///
    /// # Errors
    /// As the domain's.
    fn register(
        &self,
        inner: &dyn Domain,
        memory: Memory,
        rights: Rights,
    ) -> Result<Region, Error> {
        inner.register(memory, rights)
    }
}

/// A plugin with layers before its contexts; a plugin itself.
#[derive(Debug, Clone)]
pub struct Layered {
    inner: Arc<dyn Plugin>,
    layers: Arc<dyn Layers>,
}

impl Layered {
    /// Puts layers before a plugin.
    #[must_use]
    pub fn new(inner: impl Plugin + 'static, layers: impl Layers + 'static) -> Self {
        Self::around(Arc::new(inner), layers)
    }

    pub(crate) fn around(inner: Arc<dyn Plugin>, layers: impl Layers + 'static) -> Self {
        Self { inner, layers: Arc::new(layers) }
    }
}

impl Plugin for Layered {
    fn schemes(&self) -> &[&str] {
        self.inner.schemes()
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let inner = self.inner.open(url, options)?;
        Ok(Arc::new(LayeredDomain { inner, layers: Arc::clone(&self.layers) }))
    }

    fn offers(&self) -> Vec<Offer> {
        self.inner.offers()
    }
}

#[derive(Debug)]
struct LayeredDomain {
    inner: Arc<dyn Domain>,
    layers: Arc<dyn Layers>,
}

impl LayeredDomain {
    fn layered(&self, inner: Box<dyn Context>) -> Box<dyn Context> {
        let layer = self.layers.layer(inner.address());
        Box::new(LayeredContext { inner, layer })
    }
}

impl Domain for LayeredDomain {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.layers.register(self.inner.as_ref(), memory, rights)
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        Ok(self.layered(self.inner.context(id)?))
    }

    fn context_in(&self, id: u8, guest: Guest) -> Result<Box<dyn Context>, Error> {
        Ok(self.layered(self.inner.context_in(id, guest)?))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        self.inner.address_of(context, id)
    }
}

#[derive(Debug)]
struct LayeredContext {
    inner: Box<dyn Context>,
    layer: Box<dyn Layer>,
}

impl Context for LayeredContext {
    fn address(&self) -> &Address {
        self.inner.address()
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.layer.lookup(self.inner.as_mut(), address)
    }

    fn forget(&mut self, peer: Peer) {
        self.layer.forget(self.inner.as_mut(), peer);
    }

    fn message(&mut self, to: Peer, len: usize) -> Result<Message, Error> {
        self.inner.message(to, len)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.layer.post(self.inner.as_mut(), token, op)
    }

    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        self.layer.exchange(self.inner.as_mut(), exchange, message)
    }

    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        self.layer.reply(self.inner.as_mut(), to, tag, token, message)
    }

    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        self.layer.begin(self.inner.as_mut(), transit)
    }

    fn moves(&mut self, peer: Peer) -> bool {
        self.layer.moves(self.inner.as_mut(), peer)
    }

    fn fetch<'into>(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        self.layer.fetch(self.inner.as_mut(), owner, (remote, offset), into, may_wait)
    }

    fn cancel(&mut self, id: OpId) {
        self.layer.cancel(self.inner.as_mut(), id);
    }

    fn set_admission(&mut self, open: bool) {
        self.layer.set_admission(self.inner.as_mut(), open);
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.layer.set_admission_of(self.inner.as_mut(), peer, open);
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.layer.progress(self.inner.as_mut(), now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.layer.next_deadline(self.inner.as_ref())
    }

    fn may_sleep(&mut self) -> bool {
        self.layer.may_sleep(self.inner.as_mut())
    }

    fn way(&self, peer: Peer) -> &str {
        self.inner.way(peer)
    }

    fn identity(&self, peer: Peer) -> Identity {
        self.layer.identity(self.inner.as_ref(), peer)
    }

    fn views(&self, peer: Peer) -> bool {
        self.inner.views(peer)
    }

    fn flush(&mut self) -> bool {
        self.layer.flush(self.inner.as_mut())
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.layer.connected(self.inner.as_mut())
    }

    fn was_connected(&mut self, peer: Peer) -> bool {
        self.inner.was_connected(peer)
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.layer.waiter(self.inner.as_ref())
    }
}
