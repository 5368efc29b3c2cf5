//! What moves the bytes of a transfer without the context that began it.

use std::fmt;

use crate::Error;

/// A put or a get that was begun: everything about it is checked, and its owner is kept from taking the remote memory
/// back for as long as this lives: [`crate::Region::unregister`] gives a copy meanwhile, or waits.
///
/// It borrows the local region and nothing else. It is for the next moment, not to be kept.
pub trait Mover: Send {
    /// Moves all bytes. Takes the time of copying them; where the transit allows for it ([`crate::Transit::may_wait`]), the kernel
    /// may wait as long as the peer's memory is not there: on a disk, at a server, or wherever the peer fetches it from
    /// (`userfaultfd(2)`). Run such a one where nobody waits for this thread.
    ///
    /// # Errors
    /// Why not all were moved; some may have been. Post the transfer, which tells the same of it, or succeeds in another way.
    fn run(self: Box<Self>) -> Result<(), Error>;
}

/// What came of beginning a transfer.
#[must_use = "what is ready has not been moved"]
pub enum Begun<'near> {
    /// It is over, as if it had been posted and had completed; no completion follows.
    Over,
    /// It is over, in the same way, once this was run.
    Ready(Box<dyn Mover + 'near>),
    /// It was not begun, since there is no connection yet, or enough was begun: [`crate::Completion::Room`] follows, as for
    /// an operation that was refused with [`Error::Again`].
    Later,
    /// It was not begun, for whatever reason; post it, which tells. Nothing was counted or copied to ask: whoever does not
    /// post it has lost nothing.
    No,
}

impl Begun<'_> {
    /// Moves what is ready; says whether the transfer is over.
    pub fn finish(self) -> bool {
        match self {
            Self::Over => true,
            Self::Ready(mover) => mover.run().is_ok(),
            Self::Later | Self::No => false,
        }
    }
}

impl fmt::Debug for Begun<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Over => "Over",
            Self::Ready(_) => "Ready",
            Self::Later => "Later",
            Self::No => "No",
        })
    }
}
