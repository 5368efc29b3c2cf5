//! The short cuts, [`hg_na::Context::exchange`] and [`hg_na::Context::reply`]: a short message goes straight into its
//! connection's buffer, where the connection is open and nothing waits before it.

use hg_na::{Exchange, Exchanged, Message, OpId, Peer, Tag, Token};
use hg_na_link::Lane;
use hg_na_parts::receives::Receive;

use crate::{
    context::TcpContext,
    link::{State, is_free, put},
    outbound::COPY_MAX,
};

impl TcpContext {
    /// A request and the receive of its answer, or neither.
    #[inline]
    pub(crate) fn exchange_now(
        &mut self,
        exchange: &Exchange,
        message: &Message,
    ) -> Option<Exchanged> {
        let &Exchange { to, tag, send, receive } = exchange;
        if message.len() > COPY_MAX || message.body().is_some() || self.shared.guard.is_child() {
            return None;
        }
        let Self { links, wires, .. } = self;
        let serial = links.serial();
        let link = links.find(to)?;
        let State::Open { wire, side } = link.way.state else { return None };
        let wire = wires.find(wire)?;
        if !is_free(link, Lane::Unexpected, message.len()) {
            return None;
        }
        let (first, second) = (serial + 1, serial + 2);
        if !link.receive(tag, Receive { serial: second, token: receive }) {
            return None;
        }
        let name = |serial| OpId { scope: to.index(), serial };
        let exchanged = Exchanged { send: name(first), receive: name(second) };
        let key = wire.key;
        put(link, (wire, side), (Lane::Unexpected, 0), (exchanged.send, send), message);
        links.take_serials(2);
        self.soil_posted(key);
        Some(exchanged)
    }

    /// An answer, or nothing.
    #[inline]
    pub(crate) fn reply_now(
        &mut self,
        to: Peer,
        tag: Tag,
        token: Token,
        message: &Message,
    ) -> Option<OpId> {
        if message.slot().is_none() || self.shared.guard.is_child() {
            return None;
        }
        let Self { links, wires, .. } = self;
        let serial = links.serial();
        let link = links.find(to)?;
        let State::Open { wire, side } = link.way.state else { return None };
        let wire = wires.find(wire)?;
        if !is_free(link, Lane::Expected, message.len()) {
            return None;
        }
        let id = OpId { scope: to.index(), serial: serial + 1 };
        let key = wire.key;
        put(link, (wire, side), (Lane::Expected, tag), (id, token), message);
        links.take_serials(1);
        self.soil_posted(key);
        Some(id)
    }
}
