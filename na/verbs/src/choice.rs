//! Which operation of the card's moves the bytes of a transfer, and what settings allow of it. No I/O.
//!
//! | transfer | long | short, or not allowed |
//! |---|---|---|
//! | get | [`Operation::Write`], by the owner | [`Operation::Send`] |
//! | put | [`Operation::Read`], by the owner | [`Operation::Send`] |
//!
//! How busy either end is has no say. The owner of the memory takes part in each of them, and what costs it time is not the post but
//! the registration, since keys die with their transfer. If the initiator posted instead, the owner would register all the same, say the key, and be told of the end.

/// What moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// In messages, of frames.
    Send,
    /// The owner writes into the initiator's memory.
    Write,
    /// The owner reads from the initiator's memory.
    Read,
}

/// What a setting allows, as in `RC|SEND|WRITE`: the transport, and operations on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) sends: bool,
    pub(crate) writes: bool,
    pub(crate) reads: bool,
}

impl Flags {
    /// Everything.
    pub(crate) const ALL: Self = Self { sends: true, writes: true, reads: true };
    /// Messages alone.
    pub(crate) const SENDS: Self = Self { sends: true, writes: false, reads: false };

    /// Reads flags; a transport alone allows all operations.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn read(text: &str) -> Result<Self, &'static str> {
        let mut flags = Self { sends: false, writes: false, reads: false };
        for word in text.split('|') {
            match word.trim() {
                "RC" => {}
                "SEND" => flags.sends = true,
                "WRITE" => flags.writes = true,
                "READ" => flags.reads = true,
                "UC" | "UD" => return Err("connections are reliable ones: RC"),
                _ => return Err("it takes RC, SEND, WRITE and READ, as in RC|SEND|WRITE"),
            }
        }
        let is_none = !flags.sends && !flags.writes && !flags.reads;
        Ok(if is_none { Self::ALL } else { flags })
    }
}

/// What moves a transfer of `len` bytes, of which those from `from` bytes on are long. What can be neither written nor read is sent, whatever is allowed: so
/// are all messages.
pub(crate) fn choose(len: u64, is_get: bool, flags: Flags, from: u64) -> Operation {
    let (is_allowed, one_sided) = match is_get {
        true => (flags.writes, Operation::Write),
        false => (flags.reads, Operation::Read),
    };
    let is_long = len >= from || !flags.sends;
    if is_allowed && is_long { one_sided } else { Operation::Send }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn flags_name_a_transport_and_operations() {
        assert_eq!(Flags::read("RC"), Ok(Flags::ALL));
        assert_eq!(Flags::read("RC|SEND"), Ok(Flags::SENDS));
        assert_eq!(
            Flags::read("WRITE | RC"),
            Ok(Flags { sends: false, writes: true, reads: false })
        );
        for wrong in ["", "RC|", "UD|SEND", "UC", "RC|FETCH", "rc"] {
            assert!(Flags::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_operation_alone_is_pinned_at_every_length() {
        let write = Flags::read("RC|WRITE").expect("flags");
        assert_eq!(choose(0, true, write, 32_768), Operation::Write);
        assert_eq!(
            choose(1 << 30, false, write, 32_768),
            Operation::Send,
            "a put is never written"
        );
        assert_eq!(choose(1 << 30, true, Flags::SENDS, 32_768), Operation::Send);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_chosen_that_is_not_allowed_and_no_longer_transfer_is_sent_instead(
            (sends, writes, reads) in any::<(bool, bool, bool)>(),
            (len, more, from) in (0_u64..1 << 20, 0_u64..1 << 20, 1_u64..1 << 20),
            is_get in any::<bool>(),
        ) {
            let flags = Flags { sends, writes, reads };
            let is_allowed = if is_get { writes } else { reads };
            let chosen = choose(len, is_get, flags, from);
            match chosen {
                Operation::Send => prop_assert!(len < from || !is_allowed),
                Operation::Write => prop_assert!(is_get && writes),
                Operation::Read => prop_assert!(!is_get && reads),
            }
            if chosen != Operation::Send {
                prop_assert_eq!(choose(len + more, is_get, flags, from), chosen);
            }
        }
    }
}
