//! A thread's own batches: no lock is taken for a message, one for each batch.

use std::{cell::Cell, fmt, marker::PhantomData};

use crate::{
    Error, MESSAGE_MAX,
    inbox::Chunk,
    inner::Inner,
    message::Message,
    queue::{Loaded, reaches},
};

/// A handle by which one thread sends, several times as fast as by [`Shuffle::enqueue`]: see [`Shuffle::sender`].
///
/// It fills batches of its own, one for each next hop, and hands them to the shuffle when they are full. **What has not
/// filled a batch stays here**, as in a `BufWriter`, until [`Sender::flush`], or until the handle is dropped: neither
/// [`Options::linger`] nor a flush of the shuffle reaches it. The memory of a batch is kept for the next one: at most
/// one batch for each other rank of the node and each node that this rank sends to. Messages that leave at once (a target of 0
/// or 1) do not stay here; they take a lock each.
///
/// It may go to another thread, but is of one at a time:
/// ```compile_fail,E0277
/// fn shared<T: Sync>(_: T) {}
/// # fn f(shuffle: &hg_shuffle::Shuffle) {
/// shared(shuffle.sender());
/// # }
/// ```
/// ```
/// fn moved<T: Send>(_: T) {}
/// # fn f(shuffle: &hg_shuffle::Shuffle) {
/// moved(shuffle.sender());
/// # }
/// ```
/// In a callback that drops its handle, or flushes it, all that it has taken goes, also beyond
/// [`Options::callback_bytes_max`]: a batch that is begun is handed over, and none is begun beyond that limit.
///
/// Messages of one handle to one rank arrive in order. Between them and those that the same thread sends otherwise, or by
/// another handle, there is no order.
///
/// [`Shuffle::enqueue`]: crate::Shuffle::enqueue
/// [`Shuffle::sender`]: crate::Shuffle::sender
/// [`Options::linger`]: crate::Options::linger
/// [`Options::callback_bytes_max`]: crate::Options::callback_bytes_max
pub struct Sender<'s> {
    inner: &'s Inner,
    /// By hop; the last one is for this rank itself.
    loading: Vec<Loading>,
    /// Messages that were sent at once and have not left, since the last one that did.
    gathered: u32,
    /// Of one thread at a time.
    _is_not_sync: PhantomData<Cell<()>>,
}

/// A batch that is being filled.
#[derive(Debug)]
struct Loading {
    batch: Loaded,
    /// Bytes in front of its messages.
    head: usize,
    /// Bytes of payload at which it is full.
    target: usize,
}

impl Loading {
    #[inline]
    fn is_full(&self) -> bool {
        reaches((self.batch.payload, self.batch.bytes.len() - self.head), self.target)
    }
}

impl<'s> Sender<'s> {
    pub(crate) fn new(inner: &'s Inner) -> Self {
        let of = |(head, target)| Loading { batch: Loaded::default(), head, target };
        let own = (0, inner.options.lobuftarget);
        let hops = inner.hops.iter().map(|hop| (hop.head(), hop.target()));
        let loading = hops.chain([own]).map(of).collect();
        Self { inner, loading, gathered: 0, _is_not_sync: PhantomData }
    }

    /// Sends a message; where it begins a batch or fills one, returns when there is room for that at its next hop, which may take until
    /// others make it. `kind` is the application's.
    ///
    /// In a callback of this shuffle it does not wait, as [`Shuffle::enqueue`](crate::Shuffle::enqueue).
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooLong`], [`Error::CallbackFull`]: the message was not taken. [`Error::Failed`],
    /// [`Error::Closed`]: nothing goes any more; what was taken, here and earlier, is accounted for.
    #[inline]
    pub fn enqueue(&mut self, to: u32, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        let inner = self.inner;
        let Some(hop) = inner.first_hops.get(to as usize) else {
            return Err(Error::NoSuchRank { rank: to, size: inner.routes.map().size() });
        };
        if bytes.len() > MESSAGE_MAX {
            return Err(Error::TooLong { len: bytes.len(), max: MESSAGE_MAX });
        }
        let at = (*hop as usize).min(inner.hops.len());
        if self.loading[at].target <= 1 {
            return self.send_at_once(to, kind, bytes);
        }
        let is_begun = self.loading[at].batch.messages > 0;
        // What fills a batch by itself is taken, or refused, as one.
        let begins = !is_begun || bytes.len() >= self.loading[at].target;
        if is_begun && begins {
            self.hand_over(at)?;
        }
        if begins {
            self.begin(at)?;
        }
        let loading = &mut self.loading[at];
        loading.batch.push(&Message { kind, source: inner.routes.me(), to, bytes });
        if loading.is_full() { self.hand_over(at) } else { Ok(()) }
    }

    /// Hands all batches over, full or not; returns when they are queued for their next hops. What the shuffle's own
    /// flushes wait for comes behind this.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`]: what was taken is accounted for.
    pub fn flush(&mut self) -> Result<(), Error> {
        let mut ended = Ok(());
        for at in 0..self.loading.len() {
            if self.loading[at].batch.messages > 0 {
                ended = ended.and(self.hand_over(at));
            }
        }
        ended
    }

    /// A message that waits for no others: those that wait for room share a batch in the shuffle's queue.
    #[inline(never)]
    fn send_at_once(&mut self, to: u32, kind: u32, bytes: &[u8]) -> Result<(), Error> {
        let leaves = self.inner.enqueue(to, kind, bytes)?;
        self.gathered = if leaves { 0 } else { self.gathered + 1 };
        if self.gathered.is_multiple_of(GATHERED_BEFORE_HELP) {
            self.inner.help_along();
        }
        Ok(())
    }

    /// A batch begins: only where it will be handed over. A callback is refused here, or not at all.
    #[cold]
    fn begin(&mut self, at: usize) -> Result<(), Error> {
        let inner = self.inner;
        inner.check_open()?;
        inner.give_way_if()?;
        let loading = &mut self.loading[at];
        let Some(hop) = inner.hops.get(at) else {
            loading.batch.bytes = inner.own_buffer()?;
            return Ok(());
        };
        if loading.batch.bytes.len() < loading.head || loading.batch.bytes.capacity() == 0 {
            loading.batch.bytes = hop.new_buffer();
        }
        Ok(())
    }

    /// Hands a batch over. `Err`: its messages were dropped and counted.
    #[inline(never)]
    fn hand_over(&mut self, at: usize) -> Result<(), Error> {
        let inner = self.inner;
        inner.let_callbacks_go_first();
        let batch = &mut self.loading[at].batch;
        let Some(hop) = inner.hops.get(at) else {
            let Loaded { bytes, messages, .. } = std::mem::take(batch);
            return inner.push_own_batch(Chunk { bytes, messages });
        };
        batch.bytes = inner.push_batch(hop, std::mem::take(batch))?;
        inner.help_along();
        Ok(())
    }
}

/// Messages that do not leave at once, behind which a sender makes a round of progress.
const GATHERED_BEFORE_HELP: u32 = 32;

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        // What a failure has dropped is counted.
        let _ = self.flush();
    }
}

impl fmt::Debug for Sender<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: u32 = self.loading.iter().map(|loading| loading.batch.messages).sum();
        write!(out, "Sender(rank {}, {messages} messages here)", self.inner.routes.me())
    }
}
