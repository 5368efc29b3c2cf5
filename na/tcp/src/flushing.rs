//! Flushes: a message has left when its peer's kernel has acknowledged its last byte.
//!
//! ```text
//!  waits for credits or a connection -> is among the frames -> the socket has it -> acknowledged
//! ```
//! A socket that was closed goes on sending what it holds. But bytes that come for it afterwards, as a caller's next request,
//! are answered with a reset, and then the kernel drops what it holds: so that the socket has a message is not enough.
//! No event tells of an acknowledgement. It is looked for each [`LOOK_AGAIN`], as long as somebody asks.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use crate::{
    context::{TcpContext, Timer},
    kernel::answers,
    wire::{Phase, Wire},
};

/// Time between two looks for acknowledgements. A kernel may take 40 ms over one.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The flush of a context.
#[derive(Debug, Default)]
pub(crate) struct Flushing {
    stage: Stage,
    /// The time of the next look is set.
    pub(crate) is_timed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Stage {
    /// None is under way.
    #[default]
    Idle,
    /// Messages up to this number are to get among the frames.
    Queues(u64),
    /// They are: each connection knows how far it is to get.
    Wires,
}

/// How far one connection is to get.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FlushTo {
    /// It has got there.
    #[default]
    Done,
    /// So many bytes of frames are to be given to the socket.
    Frames(u64),
    /// So many bytes of the socket's are to be acknowledged.
    Bytes(u64),
}

impl Wire {
    /// How far the flush still has to get here.
    fn flush_on(&mut self) -> FlushTo {
        if let FlushTo::Frames(to) = self.flush_to
            && self.outbound.progress().1 >= to
        {
            self.flush_to = FlushTo::Bytes(self.sent);
        }
        if let FlushTo::Bytes(to) = self.flush_to {
            // A socket that cannot be asked is broken, and has nothing left to lose.
            let unacknowledged = answers(self.stream.as_fd()).map_or(0, |it| it.unacknowledged);
            if self.sent.saturating_sub(unacknowledged) >= to {
                self.flush_to = FlushTo::Done;
            }
        }
        self.flush_to
    }
}

impl TcpContext {
    pub(crate) fn flush_messages(&mut self) -> bool {
        if self.shared.guard.is_child() {
            return true;
        }
        if let Stage::Idle = self.flushing.stage {
            self.flushing.stage = Stage::Queues(self.links.serial());
        }
        if let Stage::Queues(to) = self.flushing.stage {
            if !self.links.iter().all(|link| link.queues.has_passed_on(to)) {
                return false;
            }
            for wire in self.wires.iter_mut().filter(|wire| wire.phase == Phase::Open) {
                wire.flush_to = FlushTo::Frames(wire.outbound.progress().0);
            }
            self.flushing.stage = Stage::Wires;
        }
        let (mut is_over, mut is_silent) = (true, false);
        for left in self.wires.iter_mut().map(Wire::flush_on) {
            is_over &= left == FlushTo::Done;
            is_silent |= matches!(left, FlushTo::Bytes(_));
        }
        if is_over {
            self.flushing.stage = Stage::Idle;
        } else if is_silent && !std::mem::replace(&mut self.flushing.is_timed, true) {
            self.timers.insert((Instant::now() + LOOK_AGAIN, Timer::Flush));
            // A sleeper does not know of this time.
            self.wake();
        }
        is_over
    }
}
