//! The traits that a transport plugin implements.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use crate::{
    Address, Begun, Caps, Completion, Descriptor, Error, Exchange, Exchanged, Guest, Identity,
    Memory, Message, Offer, Op, OpId, Peer, Region, Rejected, Rights, Tag, Token, Transit,
};

/// A linked transport: turns a URL into a domain.
pub trait Plugin: Send + Sync + fmt::Debug {
    /// The schemes that it takes, e.g. `["sm"]`; the first one also names it in [`Plugin::offers`], by default.
    fn schemes(&self) -> &[&str];

    /// Opens a domain.
    ///
    /// # Errors
    /// [`Error::BadAddress`], [`Error::BadSetting`], [`Error::UnknownSetting`], [`Error::AddressInUse`], [`Error::Missing`] for a library, a
    /// driver, a card or an interface, [`Error::Os`] and whatever else stands in the way, each with what to do
    /// about it.
    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error>;

    /// Whether it looks at [`OpenOptions::key`]. One that does not is never given any: whoever opens it refuses.
    fn takes_key(&self) -> bool {
        false
    }

    /// What there is to open on this machine: a plugin that can use several interfaces or cards names each,
    /// and what it lacks for the others. An offer that says it is available can be opened
    /// ([`Offer::options`]), any other says what is missing; no two are opened alike, and the order stays.
    ///
    /// By default: each scheme, by opening `SCHEME://` and closing it again.
    fn offers(&self) -> Vec<Offer> {
        let urls = self.schemes().iter().filter_map(|it| Address::new(&format!("{it}://")).ok());
        let name = self.schemes().first().copied().unwrap_or_default();
        urls.map(|url| {
            let opened = self.open(&url, &OpenOptions::listening());
            Offer::new(name, url).tried(opened)
        })
        .collect()
    }
}

/// How a domain is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Whether peers may connect; otherwise only over connections that this side made.
    pub listen: bool,
    /// Plugin-specific settings by name. A plugin refuses a name that it does not know; `routing` = `off` it may take,
    /// since it asks for nothing.
    pub settings: BTreeMap<String, String>,
    /// A key that all peers have: what crosses a network is encrypted, and nobody without it connects.
    pub key: Option<Key>,
}

/// A pre-shared key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key(..)")
    }
}

impl OpenOptions {
    /// Peers may connect.
    #[must_use]
    pub fn listening() -> Self {
        Self { listen: true, ..Self::default() }
    }

    /// Adds a plugin-specific setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// What is shared by all contexts of one opened URL.
pub trait Domain: Send + Sync + fmt::Debug {
    /// Sizes, rights, who checks them, what wakes.
    fn caps(&self) -> &Caps;

    /// Makes memory reachable, for every context of this domain and for their peers.
    ///
    /// # Errors
    /// [`Error::Denied`] when the memory cannot grant these rights, [`Error::Limit`], [`Error::Unsupported`] for memory of a device
    /// that is not reached.
    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error>;

    /// Opens endpoint `id`; its address names it. Each id once at a time.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::Limit`], [`Error::Os`].
    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error>;

    /// The same, as the second of two contexts that another plugin is made of: [`Peer::SECOND`] is set in the index of each
    /// of its handles and in the scope of each name of an operation, those that it is given and those that it gives, so
    /// that whoever is made of it hands them on as they are.
    ///
    /// # Errors
    /// [`Error::Unsupported`], where they are to be translated; else those of [`Domain::context`].
    fn second_context(&self, _id: u8) -> Result<Box<dyn Context>, Error> {
        Err(Error::Unsupported("handles that are marked as a second plugin's"))
    }

    /// The same as [`Domain::context`], in the wait set of another plugin's context ([`Waiter::host`]): its descriptors stand there, its
    /// waiter sleeps there and ends for both, and what its context takes out of the set in between is kept for both.
    ///
    /// # Errors
    /// [`Error::Unsupported`], where it cannot do without a set of its own; else those of [`Domain::context`].
    fn context_in(&self, _id: u8, _guest: Guest) -> Result<Box<dyn Context>, Error> {
        Err(Error::Unsupported("another plugin's wait set"))
    }

    /// The address of context `id` of the domain, of whatever process, of which a context has this address, where the one follows from
    /// the other. By default it does not.
    fn address_of(&self, _context: &Address, _id: u8) -> Option<Address> {
        None
    }
}

/// One endpoint. One thread at a time.
///
/// Whoever uses it may hold a lock meanwhile that an application's `Drop` takes. So memory of which a context may have been
/// left the last share is not dropped in here: what keeps it alive ([`Memory::keeper`]) may be anybody's. The regions of open
/// operations are kept by whoever has posted them, also while the context is dropped.
pub trait Context: Send + fmt::Debug {
    /// What a peer looks up.
    fn address(&self) -> &Address;

    /// Makes a handle for an address. Contacts nobody, never blocks: whether anybody is there shows
    /// in the operations.
    ///
    /// Looking an address up again gives the same handle while that peer lives, and a new one, for
    /// its next incarnation, after it has gone.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    fn lookup(&mut self, address: &Address) -> Result<Peer, Error>;

    /// Closes the connection. Open operations complete with [`crate::GoneReason::Forgotten`], and
    /// [`Completion::Gone`] is the last word, also for a handle that was never used. Unknown handles
    /// are ignored. Ends a wait that runs beside it, as [`Context::post`] says.
    fn forget(&mut self, peer: Peer);

    /// Memory for one outgoing message, of the transport's own where that exists.
    ///
    /// A message that is dropped instead of posted costs nothing. `len` bytes, to be written;
    /// shorten with [`Message::truncate`].
    ///
    /// # Errors
    /// [`Error::TooLong`].
    fn message(&mut self, to: Peer, len: usize) -> Result<Message, Error>;

    /// Starts an operation. Never blocks; never completes inside.
    ///
    /// May be called between a `true` of `may_sleep` and the return of [`Waiter::wait`]: an operation
    /// that needs further progress of this side to get under way (a full queue, a connection to be
    /// made) then ends that wait by itself. One that is under way does not, even if its completion can
    /// be collected already: the poster knows whether it wants that.
    ///
    /// # Errors
    /// The operation itself, unchanged, with [`Error::Again`] when its queue is full (then [`Completion::Room`] tells when it
    /// is not), [`Error::PeerGone`] or [`Error::UnknownPeer`] for a dead handle, [`Error::TooLong`],
    /// [`Error::TagInUse`], or an error of the memory that it names.
    fn post(&mut self, token: Token, op: Op) -> Result<OpId, Rejected>;

    /// A short cut: a request ([`crate::Op::SendUnexpected`]) and the receive of its answer
    /// ([`crate::Op::RecvExpected`]), accepted together with one look at the peer.
    ///
    /// `None`: neither was accepted, for whatever reason; post them one after the other, which tells.
    /// That is all that the default does. Accepted: both operations are as if posted, and the bytes were taken. A
    /// message that carries its bytes inside itself ([`Message::slot`]), or in memory of its own, was copied and may
    /// be written anew; one in the transport's memory ([`Context::message`]) is empty from then on. So nobody may look at
    /// its bytes meanwhile:
    ///
    /// ```compile_fail,E0502
    /// # use hg_na::{Context, Exchange, Message};
    /// fn first_byte(context: &mut dyn Context, exchange: &Exchange, message: &mut Message) -> u8 {
    ///     let bytes = message.as_slice();
    ///     let _taken = context.exchange(exchange, message);
    ///     bytes[0]
    /// }
    /// ```
    fn exchange(&mut self, exchange: &Exchange, message: &mut Message) -> Option<Exchanged> {
        let _: (&Exchange, &mut Message) = (exchange, message);
        None
    }

    /// The same short cut for an answer ([`crate::Op::SendExpected`]).
    fn reply(&mut self, to: Peer, tag: Tag, token: Token, message: &mut Message) -> Option<OpId> {
        let _: (Peer, Tag, Token, &mut Message) = (to, tag, token, message);
        None
    }

    /// A short cut for whoever waits for one answer: the expected message that ends the receive of this tag, where it carries
    /// its bytes inside itself and is the next thing of its peer's that a round would take. It replaces `answer`, and that is
    /// the receive's whole end: no completion tells.
    ///
    /// `false`: nothing has changed, for whatever reason; a round of [`Context::progress`] tells. That is all that the default
    /// does. Nothing else is looked at: whoever collects one answer after the other makes rounds in between.
    fn collect(&mut self, from: Peer, tag: Tag, answer: &mut Message) -> bool {
        let _: (Peer, Tag, &mut Message) = (from, tag, answer);
        false
    }

    /// A short cut for whoever serves one peer: the next unexpected message of this peer, where it carries its bytes inside itself
    /// and a round would take it first of all such messages. It replaces `request`.
    ///
    /// `false`: nothing has changed, as with [`Context::collect`]; nothing else is looked at here, either.
    fn take_request(&mut self, from: Peer, request: &mut Message) -> bool {
        let _: (Peer, &mut Message) = (from, request);
        false
    }

    /// A short cut for a transfer ([`crate::Op::Put`], [`crate::Op::Get`]) whose bytes this side moves by itself, with
    /// neither the peer nor a later round: checks it, and gives what moves them ([`Begun::Ready`]), so that nobody who
    /// waits for this context waits for bytes. What costs less to move than to hand over is over at once.
    ///
    /// A plugin begins no more bytes between two rounds than it moves in one, so that whoever only starts transfers makes
    /// progress, too; where it begins any, it begins 1 MiB after each round. Where it says [`Begun::Later`], it gets the
    /// connection under way that is missing.
    ///
    /// By default [`Begun::No`].
    fn begin<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        let _: &Transit<'_, '_> = transit;
        Begun::No
    }

    /// Whether transfers with this peer are begun ([`Context::begin`]) rather than posted, as far as is known before one
    /// is tried. Those that are posted all the same are moved in no way in which a post or a round may wait for a peer's memory
    /// ([`crate::Transit::may_wait`]).
    fn moves(&mut self, _peer: Peer) -> bool {
        false
    }

    /// A short [`Context::begin`] for whoever wants bytes of a peer's once, in memory of his own that is not registered: gets
    /// `into.len()` bytes of the remote region from `offset` on; `may_wait` as in [`crate::Transit`].
    ///
    /// Where it is over, `into` holds them; otherwise it holds anything: post a [`crate::Op::Get`] into registered memory, which
    /// tells. By default [`Begun::No`].
    fn fetch<'into>(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        let _: (Peer, &Descriptor, u64, &mut [u8], bool) = (owner, remote, offset, into, may_wait);
        Begun::No
    }

    /// Asks for an operation to end early. It still completes, exactly once: with
    /// [`Error::Cancelled`], or as it would have anyway. Unknown ids are ignored.
    /// Where it ends an operation, it ends a wait that runs beside it, as [`Context::post`] says.
    fn cancel(&mut self, id: OpId);

    /// While closed, no unexpected message is taken from any peer: their senders run out of credits
    /// and wait. Everything else flows. Open at first.
    fn set_admission(&mut self, open: bool);

    /// The same for one peer alone: its unexpected messages are taken while admission is open both to all and to it.
    /// Open at first; unknown peers are ignored. What it had sent before it hung up waits, too.
    fn set_admission_of(&mut self, peer: Peer, open: bool);

    /// Moves everything that can move and appends what ended. Never blocks, calls nobody.
    ///
    /// Takes a bounded number of messages a call, and says by `true` that it found something.
    ///
    /// # Errors
    /// Only what makes the whole context useless ([`Error::Forked`], a lost epoll set).
    fn progress(&mut self, now: Instant, done: &mut Vec<Completion>) -> Result<bool, Error>;

    /// When `progress` wants to be called even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant>;

    /// Asked immediately before every sleep: publishes the intent to sleep and re-checks.
    ///
    /// After `true`, anything that arrives ends [`Waiter::wait`]; the next `progress` ends that
    /// state. After `false` there is something to do.
    fn may_sleep(&mut self) -> bool;

    /// By which transport a peer is reached: a scheme. A plugin that is made of several chooses.
    fn way(&self, _peer: Peer) -> &str {
        self.address().scheme()
    }

    /// Who a peer is, as far as somebody else than the peer vouches for it: nothing in here was read from what the peer
    /// sent. [`Identity`] says by whom each field is vouched for; a plugin leaves out what nobody does.
    ///
    /// Nothing is known of a peer that is gone or was never there, nor in a forked child; of one that was looked up,
    /// maybe nothing until it is connected. By default nothing is ever known.
    fn identity(&self, _peer: Peer) -> Identity {
        Identity::default()
    }

    /// Whether memory of this peer can be viewed, where [`crate::Caps::views`] says that any can: a plugin that
    /// is made of several can view on some ways and not on others.
    fn views(&self, _peer: Peer) -> bool {
        true
    }

    /// Whether every message that was accepted before a flush began has left; those whose peers have gone count as that. The
    /// first call begins a flush, `true` ends it, and the call after that begins another.
    ///
    /// After `false`, ask again after each round of progress: what makes it true ends a sleep.
    fn flush(&mut self) -> bool;

    /// The peers with an open connection, whoever has made it, by the handles that their messages come from.
    fn connected(&mut self) -> Vec<Peer>;

    /// Whether this peer is among them.
    fn is_connected(&mut self, peer: Peer) -> bool {
        self.connected().contains(&peer)
    }

    /// Whether a connection to this peer stands, or has stood. As long as none has, nothing that was posted has left. By
    /// default one may have.
    fn was_connected(&mut self, _peer: Peer) -> bool {
        true
    }

    /// What the context sleeps on.
    fn waiter(&self) -> Arc<dyn Waiter>;
}

/// What a context sleeps on; usable while the context itself is used by another thread.
pub trait Waiter: Send + Sync + fmt::Debug {
    /// Becomes readable when the context should be progressed, for foreign event loops. `None`
    /// where [`crate::Caps::sleep`] is not [`crate::Sleep::Descriptor`]. Whoever slept on it calls
    /// [`Waiter::wait`] with a timeout of zero before the next progress, which collects the events.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Sleeps until something arrives, [`Waiter::wake`] is called, or `timeout` has passed (`None`:
    /// no limit). May return early for no reason. One system call where the platform allows.
    ///
    /// # Errors
    /// [`Error::Os`] other than an interruption by a signal.
    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error>;

    /// Ends a wait, present or next, from any thread; where the context sleeps in [`crate::Sleep::Steps`], it may end with its step.
    fn wake(&self);

    /// Takes the context of another plugin in, so that a thread sleeps on both at once: what it opens with
    /// [`Domain::context_in`] has its descriptors in this waiter's set. Once. Where either cannot, there is
    /// [`Waiter::join`], which costs more.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Os`].
    fn host(&self) -> Result<Guest, Error> {
        Err(Error::Unsupported("another plugin's descriptors in its wait set"))
    }

    /// Watches the descriptor of another plugin's waiter too, so that a thread sleeps on both at once: while
    /// `other` is readable it ends a wait. Whenever the kernel says that it is, be it to a wait or to the
    /// context's own progress, `ready` is set. Once; where [`crate::Caps::joins`] says so.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Os`].
    fn join(&self, _other: BorrowedFd<'_>, _ready: Arc<AtomicBool>) -> Result<(), Error> {
        Err(Error::Unsupported("watching another plugin's descriptor"))
    }

    /// Stops watching the descriptor that was joined, or goes on: not while a thread waits. Whoever looks at the other
    /// plugin in each round need not be told, and being told costs the kernel a wake-up for each message. What made it
    /// readable meanwhile ends the next wait once it is watched again.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Os`]: it is watched, or not, as before.
    fn watch(&self, _other: BorrowedFd<'_>, _on: bool) -> Result<(), Error> {
        Err(Error::Unsupported("watching another plugin's descriptor now and then"))
    }
}
