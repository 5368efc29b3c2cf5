//! Credits: what one side may send before the other one has taken some of it, counted in messages and in bytes.
//!
//! Both sides begin with the same window. The sender spends, the receiver counts what comes, so that nobody is sent more than it has
//! room for. What was taken is given back in lumps of a quarter of the window, each by a word of the transport's. No I/O.

/// Messages, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub messages: u32,
    /// The sum of their lengths.
    pub bytes: u32,
}

/// Messages of one kind, both ways.
#[derive(Debug)]
pub struct Credits {
    window: Amount,
    /// What may still be sent.
    left: Amount,
    /// What the peer has sent and not got back; the part of it that it is owed.
    used: Amount,
    owed: Amount,
}

/// A part of the window that is given back at once: so much may be owed and not told of. A message is no longer than the rest of it.
pub const OWED_PART: u32 = 4;

impl Credits {
    /// Nothing is under way, with the same window for both directions.
    #[must_use]
    pub fn new(window: Amount) -> Self {
        Self { window, left: window, used: Amount::default(), owed: Amount::default() }
    }

    /// Whether there are enough for a message of this length.
    #[inline]
    #[must_use]
    pub fn are_enough(&self, len: u32) -> bool {
        self.left.messages > 0 && self.left.bytes >= len
    }

    /// Takes them for a message, when there are enough; says whether there were.
    #[inline]
    pub fn spend(&mut self, len: u32) -> bool {
        let are_enough = self.are_enough(len);
        if are_enough {
            self.left.messages -= 1;
            self.left.bytes -= len;
        }
        are_enough
    }

    /// The peer gives some back.
    ///
    /// # Errors
    /// What the peer has done wrong.
    pub fn refill(&mut self, amount: Amount) -> Result<(), &'static str> {
        let sum = |have: u32, more: u32, most: u32| {
            have.checked_add(more).filter(|sum| *sum <= most).ok_or("more credits than were spent")
        };
        self.left.messages = sum(self.left.messages, amount.messages, self.window.messages)?;
        self.left.bytes = sum(self.left.bytes, amount.bytes, self.window.bytes)?;
        Ok(())
    }

    /// A message has come: the peer has spent credits. `len` is no more than the window's bytes.
    ///
    /// # Errors
    /// What the peer has done wrong.
    #[inline]
    pub fn receive(&mut self, len: u32) -> Result<(), &'static str> {
        self.used.messages += 1;
        self.used.bytes += len;
        let Self { used, window, .. } = self;
        let is_within = used.messages <= window.messages && used.bytes <= window.bytes;
        if is_within { Ok(()) } else { Err("more messages than credits") }
    }

    /// A message that has come was taken; gives what the peer is to be told that it has back, when it is time for that.
    #[inline]
    pub fn release(&mut self, len: u32) -> Option<Amount> {
        self.owed.messages += 1;
        self.owed.bytes += len;
        let is_due = self.owed.messages >= self.window.messages / OWED_PART
            || self.owed.bytes >= self.window.bytes / OWED_PART;
        if !is_due {
            return None;
        }
        let owed = std::mem::take(&mut self.owed);
        self.used.messages -= owed.messages;
        self.used.bytes -= owed.bytes;
        Some(owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u32 = 750;

    fn credits(messages: u32) -> Credits {
        Credits::new(Amount { messages, bytes: 1000 })
    }

    #[test]
    fn a_sender_never_starves_while_its_messages_are_taken() {
        for messages in [1, 3, 4, 256] {
            let (mut near, mut far) = (credits(messages), credits(messages));
            for len in [0, 8, 100, LONGEST] {
                for _ in 0..1000 {
                    assert!(near.spend(len), "{len}");
                    far.receive(len).unwrap();
                    if let Some(amount) = far.release(len) {
                        near.refill(amount).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_sent_beyond_the_window_and_nothing_more_is_taken() {
        let (mut near, mut far) = (credits(4), credits(4));
        for _ in 0..4 {
            assert!(near.spend(1));
            far.receive(1).unwrap();
        }
        assert!(!near.are_enough(1) && !near.spend(1));
        assert!(far.receive(1).is_err());
        let mut bytes = credits(1000);
        while bytes.spend(LONGEST) {}
        assert!(bytes.spend(0), "messages are left, bytes are not");
    }

    #[test]
    fn credits_that_were_not_spent_are_refused() {
        let refill = |credits: &mut Credits, messages, bytes| {
            credits.refill(Amount { messages, bytes }).is_err()
        };
        assert!(refill(&mut credits(4), 1, 0));
        for (messages, bytes) in [(1, 9), (u32::MAX, 8), (2, 8)] {
            let mut credits = credits(4);
            assert!(credits.spend(8));
            assert!(refill(&mut credits, messages, bytes), "{messages}, {bytes}");
        }
    }
}
