//! What a shuffle may be told: the names that users of deltafs-shuffle know.

use std::time::Duration;

use crate::{
    Error,
    transport::{self, Transport},
};

/// Limits and sizes of a shuffle. Everything has a default that works; [`Shuffle::new`](crate::Shuffle::new) checks
/// the rest.
///
/// ```
/// let mut options = hg_shuffle::Options::default();
/// options.lomaxrpc = 2;
/// ```
///
/// A *queue* holds what waits for one next hop. An origin queue takes messages of this rank to a rank of the same
/// node; a relay queue takes messages from other nodes to a rank of this one; a network queue takes messages to one
/// other node. Each has its own limits, so that no cycle of waits can form. By default 16 batches of 16 KiB are under way
/// per queue: with few of them a rank waits for others after a few messages, which is dear where each goes by itself.
/// Long messages are bounded by bytes: 4 MiB under way per queue, 16 MiB that wait for delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Batches under way over all origin queues at which `enqueue` waits; 0: no limit.
    pub localsenderlimit: u32,
    /// The same over all network queues.
    pub remotesenderlimit: u32,
    /// Batches under way per origin queue.
    pub lomaxrpc: u32,
    /// Bytes under way per origin queue, if that is less: a batch leaves while there are fewer, so that one always may.
    pub lomaxbytes: usize,
    /// Bytes of payload at which a batch of an origin queue leaves; 0 and 1: each message at once. While as many are under
    /// way as may be, what comes meanwhile shares a batch, up to 16 KiB. A batch costs a call: messages of some KiB want 64 KiB.
    pub lobuftarget: usize,
    /// Batches under way per relay queue.
    pub lrmaxrpc: u32,
    /// Bytes under way per relay queue.
    pub lrmaxbytes: usize,
    /// Bytes of payload at which a batch of a relay queue leaves.
    pub lrbuftarget: usize,
    /// Batches under way per network queue.
    pub rmaxrpc: u32,
    /// Bytes under way per network queue.
    pub rmaxbytes: usize,
    /// Bytes of payload at which a batch of a network queue leaves.
    pub rbuftarget: usize,
    /// Messages acknowledged and not yet delivered; those beyond keep their senders waiting.
    pub deliverq_max: usize,
    /// The same in bytes: whichever is less.
    pub deliverq_bytes_max: usize,
    /// Bytes of messages that callbacks have sent and no queue has room for. An `enqueue` in a callback does not wait
    /// below that: its rank would take nothing in meanwhile, and two ranks that answer each other would wait for ever.
    /// Instead those of other threads wait while there are any. See [`Error::CallbackFull`].
    pub callback_bytes_max: usize,
    /// How long an `enqueue` in a callback waits beyond that while nothing leaves, before it is an error.
    pub callback_patience: Duration,
    /// How long a callback may stay at one message before that is told, once: to `tracing`, and where nobody listens there, to
    /// standard error.
    pub callback_notice: Duration,
    /// Messages that wait for delivery at which the delivery thread begins; fewer are delivered after `linger`, or
    /// by a flush, or where anybody waits for room. Less than `deliverq_max`.
    pub deliverq_threshold: usize,
    /// The callback is called by whichever thread makes progress, one at a time, with the bytes where they were received,
    /// instead of by a thread of its own: no thread is woken for it, and nothing is copied. Such a callback **must not
    /// block**: nothing of this rank moves meanwhile. What it sends never waits, beyond `callback_bytes_max` it is an error
    /// at once, and flushes and barriers are refused in it. `deliverq_threshold` has to be 0.
    pub deliver_inline: bool,
    /// How long a batch that is not full waits for more messages.
    pub linger: Duration,
    /// Transport inside a node: `sm://`, or the one between nodes, as it has to be where nothing has shared memory and that one under one
    /// address (`visor://`, `ofi+udp://`; [`network_url`](Self::network_url) itself then).
    pub local_url: String,
    /// Transport between nodes. With `sm://` inside them, one engine has both, and one thread makes its progress.
    pub network_url: String,
    /// Settings of the transport between nodes, by name: how long a silent peer is waited for, a key, ... They are those of the one inside
    /// nodes, too, where both are the same: the daemon of `visor://`, ...
    pub network_settings: Vec<(String, String)>,
    /// Every network of either URL that takes one (`tcp://`, `ofi+...://`, `verbs://`, also behind `sm+`) has a key that rank 0
    /// makes for this shuffle, unless the settings name another one: only ranks can connect, and over `tcp://` what they send is
    /// encrypted. Without one, whoever reaches a rank's port can take up its time and memory, and whoever sees the messages can
    /// forge others.
    pub network_key: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            localsenderlimit: 0,
            remotesenderlimit: 0,
            lomaxrpc: 16,
            lomaxbytes: 4 << 20,
            lobuftarget: 16 << 10,
            lrmaxrpc: 16,
            lrmaxbytes: 4 << 20,
            lrbuftarget: 16 << 10,
            rmaxrpc: 16,
            rmaxbytes: 4 << 20,
            rbuftarget: 16 << 10,
            deliverq_max: 64 << 10,
            deliverq_bytes_max: 16 << 20,
            callback_bytes_max: 64 << 20,
            callback_patience: Duration::from_secs(30),
            callback_notice: Duration::from_secs(10),
            deliverq_threshold: 0,
            deliver_inline: false,
            linger: Duration::from_millis(1),
            local_url: "sm://".to_owned(),
            network_url: "tcp://".to_owned(),
            network_settings: Vec::new(),
            network_key: true,
        }
    }
}

impl Options {
    /// Looks whether all of this can work, as [`Shuffle::new`](crate::Shuffle::new) does.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the first one that cannot work, and says why.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |name, why: String| Err(Error::BadOption { name, why });
        for (name, value) in
            [("lomaxrpc", self.lomaxrpc), ("lrmaxrpc", self.lrmaxrpc), ("rmaxrpc", self.rmaxrpc)]
        {
            if !(1..=MAXRPC_MAX).contains(&value) {
                return bad(name, format!("{value} is not between 1 and {MAXRPC_MAX}"));
            }
        }
        for (name, value) in [
            ("lobuftarget", self.lobuftarget),
            ("lrbuftarget", self.lrbuftarget),
            ("rbuftarget", self.rbuftarget),
        ] {
            if value > BUFTARGET_MAX {
                return bad(name, format!("{value} bytes are more than {BUFTARGET_MAX}"));
            }
        }
        for (name, value) in
            [("deliverq_max", self.deliverq_max), ("deliverq_bytes_max", self.deliverq_bytes_max)]
        {
            if value == 0 {
                return bad(name, "at least one message has to fit".to_owned());
            }
        }
        if self.deliverq_threshold >= self.deliverq_max {
            let (threshold, max) = (self.deliverq_threshold, self.deliverq_max);
            let why =
                format!("{threshold} messages never come together, with deliverq_max = {max}");
            return bad("deliverq_threshold", why);
        }
        if self.deliver_inline && self.deliverq_threshold > 0 {
            let why = "deliver_inline delivers every message at once".to_owned();
            return bad("deliverq_threshold", why);
        }
        if self.linger > LINGER_MAX {
            return bad("linger", format!("{:?} are more than {LINGER_MAX:?}", self.linger));
        }
        Ok(())
    }

    /// Opens both transports, and the engine that has both, and closes them again, also what a job of one node does not use.
    ///
    /// # Errors
    /// [`Error::BadOption`] names the first one that cannot be opened here, and says why.
    pub fn check_transports(&self) -> Result<(), Error> {
        let opens = |name, url: &str, settings: &[(String, String)]| {
            let transport = Transport { url, settings, key: None };
            let Err(error) = transport::builder(transport).open(url) else { return Ok(()) };
            Err(match error {
                hg::Error::BadSetting { .. } | hg::Error::UnknownSetting { .. } => {
                    Error::BadOption { name: "network_settings", why: error.to_string() }
                }
                error => Error::BadOption { name, why: transport::not_opened(url, &error) },
            })
        };
        opens("local_url", &self.local_url, transport::local_settings(self))?;
        opens("network_url", &self.network_url, &self.network_settings)?;
        let both = transport::both(&self.local_url, &self.network_url)
            .map_err(|why| Error::BadOption { name: "local_url", why })?;
        opens("local_url", &both, &self.network_settings)
    }
}

/// Most batches under way per queue.
pub const MAXRPC_MAX: u32 = 1024;
/// Largest batch target in bytes.
pub const BUFTARGET_MAX: usize = 64 << 20;
/// Longest time that a partial batch may wait.
pub const LINGER_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_each_bad_value_is_named() {
        assert!(Options::default().check().is_ok());
        let default = Options::default;
        let bad = [
            ("lomaxrpc", Options { lomaxrpc: 0, ..default() }),
            ("lrmaxrpc", Options { lrmaxrpc: 0, ..default() }),
            ("rmaxrpc", Options { rmaxrpc: MAXRPC_MAX + 1, ..default() }),
            ("lobuftarget", Options { lobuftarget: BUFTARGET_MAX + 1, ..default() }),
            ("lrbuftarget", Options { lrbuftarget: usize::MAX, ..default() }),
            ("rbuftarget", Options { rbuftarget: usize::MAX, ..default() }),
            ("deliverq_max", Options { deliverq_max: 0, ..default() }),
            ("deliverq_bytes_max", Options { deliverq_bytes_max: 0, ..default() }),
            ("deliverq_threshold", Options { deliverq_max: 5, deliverq_threshold: 5, ..default() }),
            (
                "deliverq_threshold",
                Options { deliver_inline: true, deliverq_threshold: 1, ..default() },
            ),
            ("linger", Options { linger: Duration::MAX, ..default() }),
        ];
        for (name, options) in bad {
            let error = options.check().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
