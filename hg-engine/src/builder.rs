//! How an engine is opened.

use std::{fmt, sync::Arc};

use hg_core::{
    backlog::BACKLOG_BYTES_MAX,
    protocol::Limits,
    registry::{RegisterError, Registry},
    rpc::{Rpc, Serve, ServeKind},
    serve::IN_SERVICE_MAX,
};
use hg_na::{Address, Key, Offer, OpenOptions, Plugin};

use crate::{
    Answer, CALLS_MAX, CONTEXTS_MAX, EAGER_MAX, Engine, LARGE_IN_SERVICE_MAX, LARGE_MAX,
    POOL_THREADS_MAX, Request, Spawn,
    platform::{Machine, Platform},
    port::{Handler, Shared},
    registering::registering,
    schemes::{Advice, Schemes},
    serve::{of_async_closure, of_closure, of_function, of_later_closure},
    settings::{OpenError, Progress, Settings, Wait},
};

/// Opens engines. The facade's `hg::builder()` is one that has the transports of its build.
pub struct Builder {
    plugins: Vec<Arc<dyn Plugin>>,
    options: OpenOptions,
    contexts: usize,
    settings: Settings,
    chosen: Chosen,
    advice: Option<Advice>,
    platform: Arc<dyn Platform>,
    handlers: Registry<Handler>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// No plugin yet, one context, progress in the background, adaptive waiting.
    #[must_use]
    pub fn new() -> Self {
        Self {
            plugins: Vec::new(),
            options: OpenOptions::default(),
            contexts: 1,
            settings: Settings {
                progress: Progress::default(),
                wait: Wait::default(),
                limits: Limits {
                    calls_max: CALLS_MAX,
                    in_service_max: IN_SERVICE_MAX,
                    reject_above: None,
                    backlog_bytes_max: BACKLOG_BYTES_MAX,
                    results_bytes_max: LARGE_IN_SERVICE_MAX,
                },
                checksum: false,
                eager_max: EAGER_MAX,
                large_max: LARGE_MAX,
                pool_threads_max: POOL_THREADS_MAX,
                runtime: None,
                schemes: Schemes::default(),
            },
            chosen: Chosen::default(),
            advice: None,
            platform: Arc::new(Machine::default()),
            handlers: Registry::default(),
        }
    }

    /// Adds a transport. The last one that takes a scheme wins, so built-in ones can be replaced.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Plugin + 'static) -> Self {
        self.plugins.push(Arc::new(plugin));
        self
    }

    /// What the plugins added so far offer on this machine, each available one opened once to be sure: which URLs
    /// can be opened, and what is missing for the others.
    #[must_use]
    pub fn offers(&self) -> Vec<Offer> {
        self.plugins.iter().flat_map(|plugin| plugin.offers()).collect()
    }

    /// Whether others may connect. Without it the engine can call, and be called over the
    /// connections that it made.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.options.listen = listen;
        self
    }

    /// How many contexts (endpoints, each with connections, a lock and, with [`Progress::Background`], a thread of its own) to open:
    /// 1 to 256. One address leads to all of them, and threads call by different ones without standing in each other's way; see
    /// [`Engine`]. Default: 1.
    #[must_use]
    pub fn contexts(mut self, contexts: usize) -> Self {
        self.contexts = contexts;
        self
    }

    /// Who makes progress when nobody waits.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.settings.progress = progress;
        self
    }

    /// What a progressing thread does when there is nothing to do.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Requests that a context has in service before it takes no more; further ones wait at their
    /// origins. Bounds the target's memory. Default: 4,096.
    ///
    /// An origin's are at most as many as are left for all others: one that holds on to all that it can get has a half, a second
    /// one a quarter. So with the default thirteen origins whose handlers never end leave no place for anybody else: handlers that
    /// wait for something should end when their request is cancelled.
    ///
    /// A handler that waits for a call of its own keeps its place meanwhile. Where calls come back to an engine that they have
    /// passed before (A calls B, whose handler calls A, whose handler calls B), the later ones need places beside the earlier
    /// ones, and of one origin half of the places are to be had: `n` such chains at a time of which each has at most `k` requests
    /// at the same engine never hold each other up while `n * (k - 1)` is less than a half of this limit. Beyond that they may
    /// stand still until their deadlines, or for ever: bound them where they begin, or raise the limit. That nothing of an origin
    /// that has its share has ended for 5 s is logged as a warning.
    #[must_use]
    pub fn in_service_max(mut self, requests: usize) -> Self {
        self.settings.limits.in_service_max = requests;
        self
    }

    /// Requests in service above which further ones are answered with
    /// [`hg_core::error::CallError::Overloaded`] at once, instead of waiting; one-way calls are dropped. Default: none.
    #[must_use]
    pub fn reject_above(mut self, requests: usize) -> Self {
        self.settings.limits.reject_above = Some(requests);
        self
    }

    /// Calls that a context can have under way; one more is refused ([`Engine::ready`]). Default: 65,536.
    #[must_use]
    pub fn calls_max(mut self, calls: usize) -> Self {
        self.settings.limits.calls_max = calls;
        self
    }

    /// Whether requests carry a CRC32C of header and payload; their answers then do, too.
    #[must_use]
    pub fn checksum(mut self, checksum: bool) -> Self {
        self.settings.checksum = checksum;
        self
    }

    /// Longest memory whose bytes ride in its descriptor when others may only read it; zero: none does.
    /// Default: 4,096 bytes.
    #[must_use]
    pub fn eager_max(mut self, bytes: u64) -> Self {
        self.settings.eager_max = bytes;
        self
    }

    /// Longest encoded arguments and results in bytes, beyond one message too: longer ones are refused, on
    /// the side that sends them and on the side that gets them. Default: 1 GiB; where there are less than 16 GiB of memory, the machine's
    /// or the control group's, a sixteenth of it.
    #[must_use]
    pub fn large_max(mut self, bytes: u64) -> Self {
        self.chosen.large_max = Some(bytes);
        self
    }

    /// Bytes of arguments beyond one message that a context has taken and not served yet, above which further
    /// ones wait at their origins; and of such results that wait to be taken, above which further ones
    /// are answered with [`hg_core::error::CallError::Rejected`]. An origin has no more than is left for all
    /// others: a half if it is the first, so that longer arguments and results are refused, and the next one a half of what is
    /// left. Arguments of up to a quarter wait for no origin that stands still, unless several do; longer ones may wait as long as another
    /// origin keeps its half. Default: 4 GiB, which is four times [`Builder::large_max`]: where both are set, let them stay so. Where
    /// there are less than 16 GiB of memory, it is a quarter of it, so that one origin has an eighth at most; but at least four times the
    /// `large_max` that was chosen, up to 4 GiB.
    ///
    /// What was taken is freed once it is served, but glibc's allocator may keep that for the process: after a flood of arguments of
    /// 900 kB a process that used 1 MiB had 970 MiB resident, with `MALLOC_MMAP_THRESHOLD_=131072` in its environment 13.
    #[must_use]
    pub fn large_in_service_max(mut self, bytes: u64) -> Self {
        self.chosen.large_in_service_max = Some(bytes);
        self
    }

    /// Bytes of messages, per context, that may wait because their peers take nothing: by default as many as of
    /// [`Builder::large_in_service_max`], by the memory that there is. Those for one peer are
    /// at most as many as are left for all others, so a half; a call or one-way call beyond that is refused with [`hg_na::Error::Limit`]. As
    /// many bytes may wait in answers: instead of one beyond that its caller gets [`hg_core::error::CallError::Rejected`]. As many
    /// may wait in large arguments of one-way calls, which their targets pull; those of one call are a half at most. A call counts at least as many as there are
    /// for each of [`Builder::calls_max`], so that one peer's leave places to others'.
    #[must_use]
    pub fn backlog_bytes_max(mut self, bytes: u64) -> Self {
        self.chosen.backlog_bytes_max = Some(bytes);
        self
    }

    /// Threads that the engine has at most for blocking handlers, beside those that make progress. A thread is started when
    /// a request has none, and ends after 5 seconds without one. Default: 512; at least 1.
    ///
    /// A caller's handlers have at most as many of them as are still to be had: half of them if nobody else calls. Further
    /// requests wait. So handlers of two engines that call each other in turn may nest to half as many. Where the system has no
    /// thread to give, requests wait until it has.
    #[must_use]
    pub fn pool_threads_max(mut self, threads: usize) -> Self {
        self.settings.pool_threads_max = threads;
        self
    }

    /// Runs `async` and blocking handlers on a runtime of the user's, in its threads and with its timers and sockets; with the
    /// feature `tokio` a `tokio::runtime::Handle`. Without one, `async` handlers are polled by the thread that makes progress,
    /// where a timer or socket of `tokio` panics, and blocking ones run on a pool ([`Builder::pool_threads_max`]).
    ///
    /// Plain handlers and those of [`Engine::serve_later`] stay with the thread that makes progress. Calls can be awaited on any
    /// runtime, with and without this. The engine does not keep the runtime alive where its handle does not: a handler that
    /// cannot run any more is answered with [`hg_core::error::CallError::Rejected`].
    #[must_use]
    pub fn runtime(mut self, runtime: impl Spawn + 'static) -> Self {
        self.settings.runtime = Some(Arc::new(runtime));
        self
    }

    /// A setting of the transport's own, by name; one that the transport does not know is refused with the names that it knows.
    /// Where plugins are routed, `sm.NAME` and `tcp.NAME` are for one of them.
    ///
    /// | name | transport | value |
    /// |---|---|---|
    /// | `max-peers` | all | connections of a context at a time |
    /// | `max-held-mib` | tcp, ofi, verbs | what the requests of all peers take at most while they wait to be served |
    /// | `connect-timeout-ms` | all | until a peer that does not answer the greeting is given up |
    /// | `allow-uid` | sm | other users that may connect, by number, separated by commas |
    /// | `cma` | sm | `off`: memory is copied through shared memory, never by `process_vm_readv` |
    /// | `interface`, `subnet` | tcp, ofi | whose address is announced: a name, or `ADDRESS/BITS` |
    /// | `silence-bound-ms` | tcp, ofi | until a peer that is cut off without a word is given up |
    /// | `key-file`, `key-env` | tcp, ofi, verbs (feature `tcp-key`) | where the pre-shared key is: a file, or a variable of the environment |
    /// | `routing` | routed URLs | `off`: the network also inside a node |
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.options = self.options.with(name, value);
        self
    }

    /// A pre-shared key, 32 random bytes that every peer has, for those who have their own way to hand it over: who does not have
    /// it cannot connect (tcp, ofi, verbs, with the feature `tcp-key`), and what crosses the network is encrypted (tcp alone: cards
    /// and libfabric encrypt nothing). For one that lies in a file, see the setting `key-file`.
    #[must_use]
    pub fn key(mut self, key: [u8; 32]) -> Self {
        self.options.key = Some(Key(key));
        self
    }

    /// Whether an engine of this URL may have a key: it listens to a network, or its transport may.
    #[must_use]
    pub fn takes_key(&self, url: &str) -> bool {
        let scheme = url.split("://").next().unwrap_or_default();
        self.plugin_for(scheme).is_some_and(|plugin| plugin.takes_key())
    }

    /// What to say to those who write a scheme that no transport takes.
    #[must_use]
    pub fn advice(mut self, advice: Advice) -> Self {
        self.advice = Some(advice);
        self
    }

    /// What the engine asks for clock and threads instead of the machine: a simulation.
    #[doc(hidden)]
    #[must_use]
    pub fn platform(mut self, platform: Arc<dyn Platform>) -> Self {
        self.platform = platform;
        self
    }

    /// Opens the engine.
    ///
    /// # Errors
    /// [`hg_na::Error::NoPlugin`] for a scheme that nobody takes, [`hg_na::Error::BadSetting`],
    /// [`hg_na::Error::UnknownSetting`], [`hg_na::Error::Os`] where the system has no thread for [`Progress::Background`], and
    /// whatever the transport has to say.
    pub fn open(mut self, url: &str) -> Result<Engine, OpenError> {
        self.chosen.settle(&mut self.settings, self.platform.memory());
        self.settings.check()?;
        let schemes = Schemes::new(&self.plugins, self.advice);
        let url: Address = url.parse().map_err(|error| schemes.explain(error))?;
        if self.contexts == 0 || self.contexts > CONTEXTS_MAX {
            let why = format!("{} is not between 1 and {CONTEXTS_MAX}", self.contexts);
            return Err(hg_na::Error::BadSetting { name: "contexts".to_owned(), why });
        }
        let (first, contexts) = url.contexts()?;
        if first != url {
            let how = format!("open `{first}` with `Builder::contexts({contexts})`");
            let why = format!("several contexts are looked up so, not opened: {how}");
            return Err(hg_na::Error::BadAddress { address: url.to_string(), why });
        }
        let Some(plugin) = self.plugin_for(url.scheme()).cloned() else {
            return Err(schemes.none_for(url.scheme()));
        };
        if self.options.key.is_some() && !plugin.takes_key() {
            let why = format!("`{}` has no encryption; tcp:// does", url.scheme());
            return Err(hg_na::Error::BadSetting { name: "key".to_owned(), why });
        }
        self.settings.schemes = schemes;
        let domain = plugin.open(&url, &self.options)?;
        let shared =
            Shared::new(domain, self.settings, self.platform, self.handlers, self.contexts);
        Engine::start(shared, self.contexts)
    }

    /// Who was added last goes first.
    fn plugin_for(&self, scheme: &str) -> Option<&Arc<dyn Plugin>> {
        self.plugins.iter().rev().find(|plugin| plugin.schemes().contains(&scheme))
    }
}

/// Handlers of the engine to be opened. An engine that listens is found by its peers before
/// [`Engine::register`](crate::Engine::register) can be called: those who call it then are told that it knows no such RPC. What is
/// registered here is served from the first request on.
impl Builder {
    registering!(Self => Self);

    fn insert<R: Rpc>(mut self, handler: Handler) -> Result<Self, RegisterError> {
        self.handlers.insert(R::NAME, R::signature(), handler)?;
        Ok(self)
    }
}

/// Limits in bytes, of which the others go by the memory that there is.
#[derive(Debug, Clone, Copy, Default)]
struct Chosen {
    large_max: Option<u64>,
    large_in_service_max: Option<u64>,
    backlog_bytes_max: Option<u64>,
}

impl Chosen {
    fn settle(self, settings: &mut Settings, memory: u64) {
        let four_times = self.large_max.unwrap_or(0).saturating_mul(4);
        let share = |most: u64| most.min(four_times.max(memory / 4));
        let Self { large_max, large_in_service_max, backlog_bytes_max } = self;
        settings.large_max = large_max.unwrap_or(LARGE_MAX.min(memory / 16));
        settings.limits.results_bytes_max =
            large_in_service_max.unwrap_or_else(|| share(LARGE_IN_SERVICE_MAX));
        settings.limits.backlog_bytes_max =
            backlog_bytes_max.unwrap_or_else(|| share(BACKLOG_BYTES_MAX));
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Builder")
            .field("options", &self.options)
            .field("contexts", &self.contexts)
            .field("limits", &self.settings.limits)
            .field("chosen", &self.chosen)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(builder: Builder, memory: u64) -> [u64; 3] {
        let mut settings = builder.settings.clone();
        builder.chosen.settle(&mut settings, memory);
        let limits = settings.limits;
        [settings.large_max, limits.results_bytes_max, limits.backlog_bytes_max]
    }

    #[test]
    fn defaults_in_bytes_go_by_the_memory_that_there_is() {
        let (mib, gib) = (1_u64 << 20, 1_u64 << 30);
        for much in [u64::MAX, 16 * gib] {
            assert_eq!(settled(Builder::new(), much), [gib, 4 * gib, 4 * gib]);
        }
        assert_eq!(settled(Builder::new(), gib), [64 * mib, 256 * mib, 256 * mib]);
        let large = Builder::new().large_max(128 * mib);
        assert_eq!(settled(large, gib), [128 * mib, 512 * mib, 512 * mib]);
        let longest = Builder::new().large_max(u64::MAX);
        assert_eq!(settled(longest, gib), [u64::MAX, 4 * gib, 4 * gib]);
        let chosen = Builder::new().large_in_service_max(gib).backlog_bytes_max(7).large_max(9);
        assert_eq!(settled(chosen, gib), [9, gib, 7]);
    }
}
