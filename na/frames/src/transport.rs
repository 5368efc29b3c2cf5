//! What a plugin has of its own: how its endpoint is made known, polled, waited on and closed.

use std::{fmt, hash::Hash, io, time::Instant};

use hg_na::{Address, Completion, Error, GoneReason, Peer};
use hg_na_link::{Carrier, Greeting};

use crate::{connection::Connection, context::FramedContext, lifeline::Lifeline};

/// Why somebody who has introduced himself is no peer.
#[derive(Debug)]
pub enum Unmet {
    /// He broke the protocol.
    Misbehaved(&'static str),
    /// He is told this, and his operations end with that.
    Refused(String, GoneReason),
}

/// A transport whose frames stand alone.
pub trait Transport: Carrier<Own = Connection<Self::Route>> + Send + Sized + 'static {
    /// Where a peer is looked up.
    type Place: Clone + Eq + Hash + fmt::Debug + Send;
    /// How frames find their way to one peer.
    type Route: fmt::Debug + Send;
    /// What one end tells the other of itself.
    type Hello: Greeting;

    /// The plugin's name in logs and errors.
    const NAME: &'static str;
    /// Whether the end that accepts may send only when the other one has said that it receives.
    const AWAITS_READY: bool;

    /// What an address names.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    fn target(&self, address: &Address) -> Result<Self::Place, Error>;

    /// The beginning of a way to a peer.
    ///
    /// # Errors
    /// [`Error::Os`].
    fn route(&self) -> Result<Self::Route, Error>;

    /// Begins a lifeline.
    ///
    /// # Errors
    /// Of the kernel's; `WouldBlock` is tried again.
    fn dial(&self, to: &Self::Place) -> io::Result<Lifeline>;

    /// Whether the process at the other end of a lifeline may be a peer.
    ///
    /// # Errors
    /// Why not.
    fn admits(&self, _lifeline: &Lifeline) -> Result<(), String> {
        Ok(())
    }

    /// What the other end of the connection of a place is told of this one; made when it is asked for first.
    ///
    /// # Errors
    /// What it needs cannot be had.
    fn introduce(&mut self, place: u32, route: &mut Self::Route) -> Result<Self::Hello, Error>;

    /// The other end has introduced itself: from now on frames find their way to it.
    ///
    /// # Errors
    /// It is no peer.
    fn meet(
        &mut self,
        place: u32,
        connection: &mut Connection<Self::Route>,
        hello: Self::Hello,
    ) -> Result<(), Unmet>;

    /// A connection has ended: ends what is held of the peer's messages, and lets go of its way.
    fn part(
        &mut self,
        peer: Peer,
        route: &mut Self::Route,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    );

    /// Whether a peer that has ended like this certainly reaches no memory any more that is lent to it.
    fn reaches_nothing(&self, reason: &GoneReason) -> bool;

    /// The end of a peer whose way is broken.
    fn unreachable(fault: Self::Fault) -> GoneReason;

    /// The transport takes nothing for this peer: when is it tried again?
    ///
    /// # Errors
    /// Never: the way counts as broken.
    fn stalls(
        &mut self,
        connection: &mut Connection<Self::Route>,
        now: Instant,
    ) -> Result<(), Self::Fault>;

    /// It takes something again, or there is nothing to be taken.
    fn flows(&mut self, route: &mut Self::Route);

    /// The peer has answered a ping.
    fn answered(&mut self, _route: &mut Self::Route) {}

    /// One look at the endpoint: tells the context what has come. Says whether there was something.
    ///
    /// # Errors
    /// The endpoint cannot be used any more.
    fn poll(context: &mut FramedContext<Self>) -> Result<bool, Error>;

    /// A round goes on to sending; says whether something is due.
    fn begins_sending(&mut self, _now: Instant) -> bool {
        false
    }

    /// Does what is due; says whether anything was.
    fn run_timers(&mut self, now: Instant) -> bool;

    /// When something is due.
    fn deadline(&self) -> Option<Instant>;

    /// Whether a round would send something.
    fn can_send(context: &mut FramedContext<Self>) -> bool;

    /// A post has left nothing to be sent; whether a sleeping thread has to look at the endpoint all the same.
    fn needs_a_look(&self) -> bool {
        false
    }

    /// Prepares a sleep. `false`: there is something to be looked at first.
    fn arms(context: &mut FramedContext<Self>) -> bool;

    /// Whether everything that was posted before the first question is as far as its poster needs no longer be there.
    fn flush(context: &mut FramedContext<Self>) -> bool;

    /// Says goodbye to everybody ([`FramedContext::say_goodbye`]), sees off what is under way, for a bounded time, and closes the endpoint.
    fn close(context: &mut FramedContext<Self>);

    /// This is a forked child's copy: it lets go of the endpoint without closing it.
    fn forget(&mut self);
}
