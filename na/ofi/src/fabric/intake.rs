//! Memory that is posted for messages.
//!
//! Frames take one message each. Where the provider offers that (`FI_MULTI_RECV`), few long buffers take one message
//! behind another instead, without a call for each; the library says when it has given one up.
//!
//! ```text
//! single   posted -- message --> ours, looked at --> unposted --> posted
//! multi    posted -- message --> posted, the message's bytes are ours -- given up --> unposted --> posted
//! ```

use std::ffi::c_void;

use libfabric_sys as sys;

use crate::fabric::{Fault, frames::Frames};

/// Multi-receive buffers of an endpoint.
const BUFFERS: usize = 4;
/// Longest messages that one of them holds at least.
const MESSAGES: usize = 16;

/// Where a message has arrived. Its bytes are there until the memory is posted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    buffer: usize,
    offset: usize,
    len: usize,
    lap: u32,
}

/// What a completion came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Message(Arrival),
    /// A buffer was given up, and nothing more.
    Nothing,
    /// A message that is longer than it may be: a long buffer had room for it.
    TooLong,
    /// It is not of a receive.
    NotOurs,
}

/// Receives.
pub(super) struct Intake {
    buffers: Frames,
    /// How often each was posted.
    laps: Vec<u32>,
    /// Whether each was posted for many messages.
    takes_many: Vec<bool>,
    unposted: Vec<usize>,
    frame: usize,
}

impl Intake {
    /// For messages of up to `frame` bytes: `count` frames, or multi-receive buffers.
    pub(super) fn new(count: usize, frame: usize, is_multi: bool) -> Self {
        let (count, size) =
            if is_multi { (BUFFERS, frame.saturating_mul(MESSAGES)) } else { (count, frame) };
        Self {
            buffers: Frames::new(count, size),
            laps: vec![0; count],
            takes_many: vec![is_multi; count],
            unposted: (0..count).rev().collect(),
            frame,
        }
    }

    /// Longest message.
    pub(super) fn frame_size(&self) -> usize {
        self.frame
    }

    /// All of it, to be registered.
    pub(super) fn range(&self) -> (*mut c_void, usize) {
        self.buffers.range()
    }

    /// The library may reach its memory for as long as the process lives.
    pub(super) fn leak(&mut self) {
        self.buffers.leak();
    }

    /// Whether everything is posted that can be.
    pub(super) fn is_posted(&self) -> bool {
        self.unposted.is_empty()
    }

    /// Takes a completion.
    pub(super) fn completed(&mut self, entry: &sys::CqDataEntry) -> Taken {
        let found = self.buffers.find(entry.op_context);
        let Some(buffer) = found.filter(|buffer| self.buffers.is_lent(*buffer)) else {
            return Taken::NotOurs;
        };
        let lap = self.laps[buffer];
        if !self.takes_many[buffer] {
            self.buffers.take_back(buffer);
            if entry.len > self.frame {
                self.unposted.push(buffer);
                return Taken::TooLong;
            }
            return Taken::Message(Arrival { buffer, offset: 0, len: entry.len, lap });
        }
        if entry.flags & sys::MULTI_RECV != 0 {
            self.buffers.take_back(buffer);
            self.unposted.push(buffer);
        }
        match self.buffers.offset_in(buffer, entry.buf, entry.len) {
            Some(_) if entry.len > self.frame => Taken::TooLong,
            Some(offset) if entry.len > 0 => {
                Taken::Message(Arrival { buffer, offset, len: entry.len, lap })
            }
            _ => Taken::Nothing,
        }
    }

    /// A receive has failed: says whether the context is one's. Without a message a frame is free; a multi-receive
    /// buffer stays posted unless the library says otherwise.
    pub(super) fn failed(&mut self, context: *mut c_void, flags: u64) -> bool {
        let found = self.buffers.find(context).filter(|buffer| self.buffers.is_lent(*buffer));
        if let Some(buffer) = found
            && (!self.takes_many[buffer] || flags & sys::MULTI_RECV != 0)
        {
            self.buffers.take_back(buffer);
            self.unposted.push(buffer);
        }
        found.is_some()
    }

    /// The bytes of a message.
    pub(super) fn bytes(&self, arrival: Arrival) -> &[u8] {
        let Arrival { buffer, offset, len, lap } = arrival;
        assert!(self.laps[buffer] == lap, "looked at before its memory is posted again");
        self.buffers.complete_bytes(buffer, offset, len)
    }

    /// A message was looked at.
    pub(super) fn was_seen(&mut self, arrival: Arrival) {
        if !self.takes_many[arrival.buffer] {
            self.unposted.push(arrival.buffer);
        }
    }

    /// Posts what can be posted, by `post`: bytes, length and context. It answers whether they take many messages.
    ///
    /// # Errors
    /// What `post` says, but for "not now" and "no room": the rest is posted later.
    pub(super) fn post(
        &mut self,
        mut post: impl FnMut(*mut c_void, usize, *mut c_void) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        while let Some(buffer) = self.unposted.pop() {
            let (bytes, context) = self.buffers.lend(buffer);
            self.laps[buffer] = self.laps[buffer].wrapping_add(1);
            match post(bytes, self.buffers.size(), context) {
                Ok(takes_many) => self.takes_many[buffer] = takes_many,
                Err(fault) => {
                    self.buffers.take_back(buffer);
                    self.unposted.push(buffer);
                    return if fault.is_again() || fault.is_full() { Ok(()) } else { Err(fault) };
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Intake({:?} for messages of {} bytes)", self.buffers, self.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts everything; what was posted.
    fn posted(intake: &mut Intake, is_multi: bool) -> Vec<(usize, usize, *mut c_void)> {
        let mut all = Vec::new();
        let kept = intake.post(|bytes, len, context| {
            all.push((bytes.addr(), len, context));
            Ok(is_multi)
        });
        assert!(kept.is_ok() && intake.is_posted());
        all
    }

    fn entry(
        context: *mut c_void,
        flags: u64,
        (buf, len): (*mut c_void, usize),
    ) -> sys::CqDataEntry {
        sys::CqDataEntry { op_context: context, flags, len, buf, data: 0 }
    }

    #[test]
    fn a_frame_takes_one_message_and_is_posted_again_when_that_was_seen() {
        let mut intake = Intake::new(3, 64, false);
        let all = posted(&mut intake, false);
        assert_eq!(all.iter().map(|it| it.1).collect::<Vec<_>>(), [64; 3]);
        let Taken::Message(arrival) =
            intake.completed(&entry(all[1].2, sys::RECV, (std::ptr::null_mut(), 5)))
        else {
            panic!("a message")
        };
        assert_eq!(intake.bytes(arrival), [0; 5]);
        assert!(intake.is_posted());
        intake.was_seen(arrival);
        assert_eq!(posted(&mut intake, false), [all[1]]);
    }

    #[test]
    fn a_buffer_takes_many_messages_until_it_is_given_up() {
        let mut intake = Intake::new(3, 64, true);
        let (base, _) = intake.range();
        let all = posted(&mut intake, true);
        assert_eq!(all.iter().map(|it| it.1).collect::<Vec<_>>(), [64 * MESSAGES; BUFFERS]);
        let (_, len, context) = all[0];
        let buffer = (all[0].0 - base.addr()) / len;
        let at = |offset: usize| base.wrapping_byte_add(buffer * len + offset);
        for offset in [0, 40, 80] {
            let taken = intake.completed(&entry(context, sys::RECV, (at(offset), 40)));
            assert!(
                matches!(taken, Taken::Message(it) if it.offset == offset && it.buffer == buffer)
            );
            assert!(intake.is_posted());
        }
        let taken = intake.completed(&entry(context, sys::RECV, (at(0), 65)));
        assert_eq!(taken, Taken::TooLong);
        // Its last one, and, as later versions do, its end by itself.
        let taken = intake.completed(&entry(context, sys::RECV | sys::MULTI_RECV, (at(120), 30)));
        let Taken::Message(last) = taken else { panic!("a message") };
        assert!(!intake.is_posted() && intake.bytes(last).len() == 30);
        intake.was_seen(last);
        assert_eq!(posted(&mut intake, true), [all[0]]);
        let end = entry(context, sys::MULTI_RECV, (std::ptr::null_mut(), 0));
        assert_eq!(intake.completed(&end), Taken::Nothing);
        assert_eq!(posted(&mut intake, true), [all[0]]);
    }

    #[test]
    #[should_panic(expected = "looked at before its memory is posted again")]
    fn a_message_is_not_looked_at_once_its_memory_is_the_librarys() {
        let mut intake = Intake::new(1, 64, false);
        let all = posted(&mut intake, false);
        let Taken::Message(arrival) = intake.completed(&entry(all[0].2, 0, (all[0].2, 5))) else {
            return;
        };
        intake.was_seen(arrival);
        posted(&mut intake, false);
        let _ = intake.bytes(arrival);
    }

    #[test]
    fn a_failure_frees_a_frame_and_leaves_a_buffer_posted_unless_it_is_given_up() {
        for (is_multi, flags, is_freed) in
            [(false, 0, true), (true, 0, false), (true, sys::MULTI_RECV, true)]
        {
            let mut intake = Intake::new(2, 64, is_multi);
            let all = posted(&mut intake, is_multi);
            assert!(intake.failed(all[0].2, flags));
            assert_eq!(intake.is_posted(), !is_freed);
            assert!(!intake.failed(std::ptr::null_mut(), flags));
        }
    }

    #[test]
    fn a_buffer_that_was_posted_for_one_message_takes_one() {
        let mut intake = Intake::new(1, 64, true);
        let all = posted(&mut intake, false);
        let (base, len, context) = all[0];
        assert_eq!(len, 64 * MESSAGES);
        let start = std::ptr::without_provenance_mut(base);
        let Taken::Message(arrival) = intake.completed(&entry(context, sys::RECV, (start, 64)))
        else {
            panic!("a message")
        };
        assert!(intake.bytes(arrival).len() == 64 && intake.is_posted());
        intake.was_seen(arrival);
        assert_eq!(posted(&mut intake, true), [all[0]]);
        // Nothing is lost where the library has no room for another receive now.
        let end = entry(context, sys::MULTI_RECV, (std::ptr::null_mut(), 0));
        assert_eq!(intake.completed(&end), Taken::Nothing);
        let full = |_, _, _| Err(Fault::new("fi_recvmsg", nix::libc::ENOMEM));
        assert!(intake.post(full).is_ok() && !intake.is_posted());
        assert_eq!(posted(&mut intake, true), [all[0]]);
    }

    #[test]
    fn what_lies_outside_of_a_buffer_is_no_message() {
        let mut intake = Intake::new(1, 64, true);
        let all = posted(&mut intake, true);
        let (base, len, context) = all[0];
        for (buf, bytes) in [(base + len - 1, 2), (base - 1, 2), (base + 8, usize::MAX), (0, 1)] {
            let buf = std::ptr::without_provenance_mut(buf);
            assert_eq!(intake.completed(&entry(context, 0, (buf, bytes))), Taken::Nothing);
        }
    }
}
