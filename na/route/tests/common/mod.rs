//! `net://`: shared memory that passes for a network, so that routing can be tested with two plugins that sleep
//! on descriptors. A name may hold a port; the plugin underneath sees other text.

use std::{sync::Arc, time::Instant};

use hg_na::{
    Address, Caps, Completion, Context, Domain, Error, Exchange, Exchanged, Memory, Message, Op,
    OpId, OpenOptions, Peer, Plugin, Region, Rejected, Rights, Tag, Token, Waiter,
};
use hg_na_sm::SmPlugin;

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Net;

fn as_net(address: &Address) -> Address {
    let text = format!("net://{}", address.rest().replace("_.", ":"));
    Address::new(&text).expect("as long as the other, and of the same characters")
}

fn as_sm(address: &Address) -> Result<Address, Error> {
    if address.scheme() != "net" {
        let why = "its scheme is not net".to_owned();
        return Err(Error::BadAddress { address: address.to_string(), why });
    }
    Address::new(&format!("sm://{}", address.rest().replace(':', "_.")))
}

impl Plugin for Net {
    fn schemes(&self) -> &[&str] {
        &["net"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let inner = SmPlugin.open(&as_sm(url)?, options)?;
        Ok(Arc::new(NetDomain(inner)))
    }
}

#[derive(Debug)]
struct NetDomain(Arc<dyn Domain>);

impl Domain for NetDomain {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        self.0.register(memory, rights)
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let inner = self.0.context(id)?;
        let address = as_net(inner.address());
        Ok(Box::new(NetContext { inner, address }))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        self.0.address_of(&as_sm(context).ok()?, id).map(|inner| as_net(&inner))
    }
}

#[derive(Debug)]
struct NetContext {
    inner: Box<dyn Context>,
    address: Address,
}

impl Context for NetContext {
    fn address(&self) -> &Address {
        &self.address
    }

    fn lookup(&mut self, address: &Address) -> Result<Peer, Error> {
        self.inner.lookup(&as_sm(address)?)
    }

    fn forget(&mut self, peer: Peer) {
        self.inner.forget(peer);
    }

    fn message(&mut self, to: Peer, len: usize) -> Result<Message, Error> {
        self.inner.message(to, len)
    }

    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        self.inner.post(token, op)
    }

    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        self.inner.exchange(exchange, message)
    }

    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        self.inner.reply(to, tag, token, message)
    }

    fn cancel(&mut self, id: OpId) {
        self.inner.cancel(id);
    }

    fn set_admission(&mut self, open: bool) {
        self.inner.set_admission(open);
    }

    fn set_admission_of(&mut self, peer: Peer, open: bool) {
        self.inner.set_admission_of(peer, open);
    }

    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error> {
        self.inner.progress(now, done)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn may_sleep(&mut self) -> bool {
        self.inner.may_sleep()
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn connected(&mut self) -> Vec<Peer> {
        self.inner.connected()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }
}
