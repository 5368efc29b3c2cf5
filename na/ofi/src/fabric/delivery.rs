//! What is known of the bytes when a move to a peer's memory is complete.

use libfabric_sys as sys;

use crate::fabric::offer::Offer;

/// What the completion of a move to a peer's memory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The bytes are there: the peer's library has said so.
    Told,
    /// They are there: the provider copies at once. libfabric's shm does, unless it is asked to wait for the peer's word. One that was
    /// killed never gives that, and then whatever else waits for a word waits for ever, or libfabric (1.17) looks for it in
    /// memory that is gone.
    Copied,
    /// They have left, and what is sent afterwards arrives behind them (`FI_ORDER_SAW`). A peer whose library refuses them closes the
    /// connection, so that nothing behind them arrives.
    InOrder,
}

impl Delivery {
    /// Of an offer. In order only over streams, of which the last sentence is known.
    pub(crate) fn of(offer: &Offer, is_copied: bool) -> Self {
        let is_stream = offer.provider == "tcp" || offer.provider.starts_with("tcp;");
        match is_copied {
            true => Self::Copied,
            false if is_stream && offer.limits().order & sys::ORDER_SAW != 0 => Self::InOrder,
            false => Self::Told,
        }
    }
}
