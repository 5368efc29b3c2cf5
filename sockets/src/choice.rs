//! How a message travels: by which operation, chosen from its size and the load of both ends, unless the flags pin it.

use std::{
    fs,
    time::{Duration, Instant},
};

bitflags::bitflags! {
    /// What a call pins: the transport, and operations, of which one is chosen. Nothing pinned is the connection's choice; a
    /// connection that pins nothing chooses by [`choose`].
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Reliable, in order, connected: as everything here is, whether it is named or not.
        const RC = 1;
        /// The message itself is sent: one frame, copied at each end.
        const SEND = 2;
        /// The receiver reads the sender's memory.
        const READ = 4;
        /// The sender writes the receiver's memory.
        const WRITE = 8;
    }
}

impl Flags {
    const OPERATIONS: Self = Self::SEND.union(Self::READ).union(Self::WRITE);

    /// The operations that it allows: all, where it pins none.
    fn operations(self) -> Self {
        let pinned = self & Self::OPERATIONS;
        if pinned.is_empty() { Self::OPERATIONS } else { pinned }
    }

    /// Of one call, on a connection with these.
    pub(crate) fn or(self, connection: Self) -> Self {
        if self.is_empty() { connection } else { self }
    }

    /// What a receiver leaves of what the sender allows; the sender's word counts where they cannot agree.
    pub(crate) fn narrowed(self, by: Self) -> Self {
        let both = self.operations() & by.operations();
        if both.is_empty() { self } else { both }
    }
}

/// What moves a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// See [`Flags::SEND`].
    Send,
    /// See [`Flags::READ`].
    Read,
    /// See [`Flags::WRITE`].
    Write,
}

/// Chooses for a message of `len` bytes, where one frame takes `message_max`, with the load of sender and receiver in percent of their
/// processors. What fits in a frame is sent; otherwise whoever has less to do moves it, and the receiver where both are alike. `None`:
/// only sending is allowed, and it is too long.
#[must_use]
pub fn choose(
    len: usize,
    message_max: usize,
    pinned: Flags,
    [sender, receiver]: [u8; 2],
) -> Option<Operation> {
    let allowed = pinned.operations();
    let (read, write) = (allowed.contains(Flags::READ), allowed.contains(Flags::WRITE));
    if len == 0 || allowed.contains(Flags::SEND) && len <= message_max {
        Some(Operation::Send)
    } else if write && (!read || receiver > sender) {
        Some(Operation::Write)
    } else {
        read.then_some(Operation::Read)
    }
}

/// How busy this machine is.
#[derive(Debug, Default)]
pub(crate) struct Load {
    seen: Option<(Instant, u8)>,
}

/// So long a look holds.
const FRESH: Duration = Duration::from_millis(100);

impl Load {
    /// Tasks that run or want to, besides this one, in percent of the processors; 0 where nobody says.
    pub(crate) fn percent(&mut self) -> u8 {
        let now = Instant::now();
        let fresh = self.seen.filter(|(at, _)| now.saturating_duration_since(*at) < FRESH);
        fresh
            .unwrap_or_else(|| {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
                *self.seen.insert((now, percent(&text, processors)))
            })
            .1
    }
}

/// Of the text of `/proc/loadavg`: the fourth word begins with the tasks that run.
fn percent(text: &str, processors: usize) -> u8 {
    let tasks = text.split(' ').nth(3).and_then(|word| word.split('/').next()?.parse().ok());
    let others = tasks.unwrap_or(1_usize).saturating_sub(1);
    u8::try_from(others.saturating_mul(100) / processors.max(1)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16_000;

    #[test]
    fn size_decides_first_and_then_whoever_has_less_to_do_moves_the_bytes() {
        let chosen = |len, loads| choose(len, MAX, Flags::RC, loads).unwrap();
        assert_eq!((chosen(0, [0, 0]), chosen(MAX, [0, 200])), (Operation::Send, Operation::Send));
        assert_eq!(chosen(MAX + 1, [50, 50]), Operation::Read);
        assert_eq!(chosen(MAX + 1, [50, 10]), Operation::Read);
        assert_eq!(chosen(MAX + 1, [10, 50]), Operation::Write);
    }

    #[test]
    fn what_is_pinned_is_done_whatever_the_size_and_the_load() {
        for (flag, operation) in [(Flags::READ, Operation::Read), (Flags::WRITE, Operation::Write)]
        {
            for len in [1, MAX, MAX + 1] {
                for loads in [[0, 255], [255, 0]] {
                    assert_eq!(choose(len, MAX, Flags::RC | flag, loads), Some(operation));
                }
            }
        }
        assert_eq!(choose(MAX, MAX, Flags::SEND, [0, 0]), Some(Operation::Send));
        assert_eq!(choose(MAX + 1, MAX, Flags::SEND, [0, 0]), None);
        let either = Flags::READ | Flags::WRITE;
        assert_eq!(choose(1, MAX, either, [0, 9]), Some(Operation::Write));
        assert_eq!(choose(1, MAX, either, [9, 9]), Some(Operation::Read));
    }

    #[test]
    fn a_receiver_narrows_what_the_sender_allows_and_does_not_overrule_it() {
        assert_eq!(Flags::RC.narrowed(Flags::WRITE), Flags::WRITE);
        assert_eq!(Flags::READ.narrowed(Flags::empty()), Flags::READ);
        assert_eq!(Flags::READ.narrowed(Flags::WRITE), Flags::READ);
        assert_eq!(Flags::empty().or(Flags::READ), Flags::READ);
        assert_eq!(Flags::SEND.or(Flags::READ), Flags::SEND);
    }

    #[test]
    fn load_is_read_from_what_the_kernel_says() {
        let text = "0.50 0.40 0.30 3/456 12345\n";
        assert_eq!((percent(text, 2), percent(text, 1), percent(text, 4)), (100, 200, 50));
        assert_eq!((percent("", 2), percent("a b c d", 2), percent("0 0 0 1/9 9", 2)), (0, 0, 0));
        assert_eq!(percent("0 0 0 99999/9 9", 2), u8::MAX);
    }
}
