//! What a card says that concerns no single operation (`ibv_get_async_event`).

use std::mem::MaybeUninit;

use nix::errno::Errno;
use rdma_core_sys as sys;

use crate::{
    card::{Device, Fault},
    health::Word,
};

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// The queue pair of this number is in error.
    Pair(u32, Fault),
    /// A queue that is at this address is lost.
    Queue(usize, Fault),
    /// Of the port that is used, or of the whole card.
    Port(Word),
    /// Nothing that matters here.
    Other,
}

/// Kinds that are of a queue pair.
const PAIRS: [(i32, &str); 5] = [
    (sys::EVENT_QP_FATAL, "the card gave its queue pair up"),
    (sys::EVENT_QP_REQ_ERR, "the peer asked for what makes no sense"),
    (sys::EVENT_QP_ACCESS_ERR, "the peer asked for memory that it may not reach"),
    (sys::EVENT_PATH_MIG_ERR, "the path of its queue pair has failed"),
    (sys::EVENT_QP_LAST_WQE_REACHED, "its queue pair is in error"),
];

impl Device {
    /// The next event; `None`: there is none.
    pub(crate) fn next_event(&self) -> Option<Told> {
        loop {
            let mut event = MaybeUninit::<sys::AsyncEvent>::uninit();
            // SAFETY:
            // - open; one structure is filled; its descriptor does not block.
            let result =
                unsafe { (self.library.get_async_event)(self.context(), event.as_mut_ptr()) };
            if result != 0 {
                match Errno::last() {
                    Errno::EINTR => continue,
                    Errno::EAGAIN => return None,
                    _ => return Some(Told::Port(Word::Gone)),
                }
            }
            // SAFETY:
            // - filled: the call has succeeded.
            let mut event = unsafe { event.assume_init() };
            let told = self.meaning(&event);
            // SAFETY:
            // - taken above, and acknowledged once. After this its queue pair may be destroyed, for which others wait.
            unsafe { (self.library.ack_async_event)(&raw mut event) };
            return Some(told);
        }
    }

    fn meaning(&self, event: &sys::AsyncEvent) -> Told {
        let place = event.element.addr();
        let port = place.to_ne_bytes().first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        let is_ours = port == Some(self.found.port.into());
        if let Some((_, why)) = PAIRS.iter().find(|(kind, _)| *kind == event.event_type) {
            // SAFETY:
            // - a queue pair: the kind says so; not destroyed before the event is acknowledged.
            let number = unsafe { (*event.element.cast::<sys::Qp>()).qp_num };
            return Told::Pair(number, Fault::Event(why));
        }
        match event.event_type {
            sys::EVENT_CQ_ERR => Told::Queue(place, Fault::Event("a completion queue is lost")),
            sys::EVENT_SRQ_ERR => Told::Queue(place, Fault::Event("a receive queue is lost")),
            sys::EVENT_DEVICE_FATAL => Told::Port(Word::Gone),
            sys::EVENT_PORT_ERR if is_ours => Told::Port(Word::Down),
            sys::EVENT_PORT_ACTIVE if is_ours => Told::Port(Word::Up),
            kind => {
                tracing::debug!(kind, card = ?self, "an event of a card");
                Told::Other
            }
        }
    }
}
