//! The sending side of a connection: one frame after another, each whole, by whichever thread has its turn.

use std::{
    mem,
    sync::{Condvar, Mutex, PoisonError},
    time::Instant,
};

use super::locked;
use crate::stream::{Stream, is_timeout};

#[derive(Debug)]
pub(super) struct Line {
    stream: Stream,
    /// The rest of the last frame; `None`: somebody sends. No lock is held meanwhile, so that others wait for their turn with a
    /// bound.
    rest: Mutex<Option<Vec<u8>>>,
    has_sent: Condvar,
}

/// The right to send: nobody else does, and the frames before have left.
pub(super) struct Turn<'a> {
    line: &'a Line,
    rest: Vec<u8>,
}

/// How much of a frame has left in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// All, or nobody is there to take it: reading tells why.
    All,
    /// A part. The rest goes before the next frame.
    Part,
    Nothing,
}

impl Line {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, rest: Mutex::new(Some(Vec::new())), has_sent: Condvar::new() }
    }

    pub(super) fn turn(&self, deadline: Instant) -> Option<Turn<'_>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.has_sent.wait_timeout_while(locked(&self.rest), left, |it| it.is_none());
        let rest = waited.unwrap_or_else(PoisonError::into_inner).0.take()?;
        let mut turn = Turn { line: self, rest };
        turn.push(deadline).then_some(turn)
    }

    pub(super) fn shutdown(&self) {
        self.stream.shutdown();
    }
}

impl Turn<'_> {
    pub(super) fn send(&mut self, frame: Vec<u8>, deadline: Instant) -> Sent {
        let length = frame.len();
        self.rest = frame;
        if self.push(deadline) {
            Sent::All
        } else if self.rest.len() < length {
            Sent::Part
        } else {
            self.rest = Vec::new();
            Sent::Nothing
        }
    }

    /// Is nothing left?
    fn push(&mut self, deadline: Instant) -> bool {
        let (count, done) = self.line.stream.write_before(&self.rest, deadline);
        if done.is_err_and(|error| is_timeout(&error)) {
            self.rest.drain(..count);
            return false;
        }
        self.rest = Vec::new();
        true
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *locked(&self.line.rest) = Some(mem::take(&mut self.rest));
        self.line.has_sent.notify_one();
    }
}
