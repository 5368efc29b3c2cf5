//! What a forked child may do with its copies of what its parent has open: nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Context, Domain, Error, Memory, Message, Op, Peer, Rights};

/// Whether everything is refused that a forked child asks of its copies: a domain, a context of it that has a `peer`, and one that is
/// dropped. What its parent has is to be seen by the parent.
#[must_use]
pub fn is_inert(
    domain: &Arc<dyn Domain>,
    mut context: Box<dyn Context>,
    dropped: Box<dyn Context>,
    peer: Peer,
) -> bool {
    let is_forked = |error: &Error| matches!(error, Error::Forked);
    let own = context.address().clone();
    let hello = Op::SendUnexpected { to: peer, message: Message::copied(b"hello") };
    let refused = [
        context.lookup(&own).err(),
        context.post(3, hello).err().map(|rejected| rejected.error),
        context.progress(Instant::now(), &mut Vec::new()).err(),
        domain.register(Memory::from(vec![1; 9]), Rights::all()).err(),
        domain.context(7).err(),
        context.waiter().wait(Some(Duration::ZERO)).err(),
    ];
    context.forget(peer);
    // Whatever they say, the parent's things stay as they are, and so do its locks.
    let _done = context.flush();
    let _none = context.next_deadline();
    let sleeps = context.may_sleep();
    drop(dropped);
    // As in a child that goes on without touching it: nothing closes the child's copies of sockets, should it have any.
    std::mem::forget(context);
    !sleeps && refused.iter().all(|error| error.as_ref().is_some_and(is_forked))
}
