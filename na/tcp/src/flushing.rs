//! Flushes: a message has left when its peer's kernel has acknowledged its last byte.
//!
//! ```text
//!  waits for credits or a connection -> is among the frames -> the socket has it -> acknowledged
//! ```
//! A socket that was closed goes on sending what it holds. But bytes that come for it afterwards, as a caller's next request,
//! are answered with a reset, and then the kernel drops what it holds: so that the socket has a message is not enough.
//! No event tells of an acknowledgement. It is looked for each [`LOOK_AGAIN`], as long as somebody asks.

use std::time::{Duration, Instant};

use crate::{
    context::{FlushStage, TcpContext, Timer},
    wire::{FlushTo, Phase, Wire},
};

/// Time between two looks for acknowledgements. A kernel may take 40 ms over one.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl TcpContext {
    pub(crate) fn flush_messages(&mut self) -> bool {
        if self.shared.guard.is_child() {
            return true;
        }
        // Whoever flushes may make no progress for long, and what was posted is written by the next round only.
        self.flush_dirty();
        if let FlushStage::Idle = self.flushing.stage {
            self.flushing.stage = FlushStage::Queues(self.links.serial());
        }
        if let FlushStage::Queues(to) = self.flushing.stage {
            if !self.links.iter().all(|link| link.queues.has_passed_on(to)) {
                return false;
            }
            for wire in self.wires.iter_mut().filter(|wire| wire.phase == Phase::Open) {
                wire.flush_to = FlushTo::Frames(wire.outbound.progress().0);
            }
            self.flushing.stage = FlushStage::Wires;
        }
        let (mut is_over, mut is_silent) = (true, false);
        for left in self.wires.iter_mut().map(Wire::flush_on) {
            is_over &= left == FlushTo::Done;
            is_silent |= matches!(left, FlushTo::Bytes(_));
        }
        if is_over {
            self.flushing.stage = FlushStage::Idle;
        } else if is_silent && !std::mem::replace(&mut self.flushing.is_timed, true) {
            self.timers.insert((Instant::now() + LOOK_AGAIN, Timer::Flush));
            // A sleeper does not know of this time.
            self.wake();
        }
        is_over
    }
}
