//! Faults that are planted on purpose: a search that finds none of them proves nothing.
//!
//! Each one is a transport, or an engine's settings, that behaves as an earlier version of this project did. The engine above is the
//! real one, as it is.

use std::{fmt, str::FromStr};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// That a peer has hung up is told behind its last requests: not while admission is closed to it.
    HangUpWithheld,
    /// Unmatched answers are kept; the ninth of a peer stays at the head of its lane for ever.
    AnswerStalls,
    /// No request is taken from anybody while four control messages wait for one peer.
    AdmissionBehindControl,
    /// What a handler that panics is answered with is sent twice.
    AnsweredTwice,
    /// Room is told in each round, where there is none.
    RoomForNothing,
    /// What waits for peers has a thousand times the room that was asked for.
    NoBoundInBytes,
    /// An endpoint sleeps although something has come.
    LostWakeUp,
    /// It is said that no connection has ever stood, whatever has left.
    NeverConnected,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::HangUpWithheld,
        Self::AnswerStalls,
        Self::AdmissionBehindControl,
        Self::AnsweredTwice,
        Self::RoomForNothing,
        Self::NoBoundInBytes,
        Self::LostWakeUp,
        Self::NeverConnected,
    ];

    /// The check of [`crate::judge`], or the transport's own, that has to find it.
    #[must_use]
    pub fn found_by(self) -> &'static str {
        match self {
            Self::HangUpWithheld => "left",
            Self::AnswerStalls | Self::AdmissionBehindControl | Self::LostWakeUp => "stuck",
            Self::AnsweredTwice => "answered twice",
            Self::RoomForNothing => "refused",
            Self::NoBoundInBytes => "bytes",
            Self::NeverConnected => "outcome",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::HangUpWithheld => "hang-up-withheld",
            Self::AnswerStalls => "answer-stalls",
            Self::AdmissionBehindControl => "admission-behind-control",
            Self::AnsweredTwice => "answered-twice",
            Self::RoomForNothing => "room-for-nothing",
            Self::NoBoundInBytes => "no-bound-in-bytes",
            Self::LostWakeUp => "lost-wake-up",
            Self::NeverConnected => "never-connected",
        }
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| format!("no fault `{name}` can be planted: {}", known()))
    }
}

/// Unmatched answers of a peer that are kept.
pub(super) const KEPT_ANSWERS: u32 = 8;
/// Control messages that close admission.
pub(super) const CONTROLS: usize = 4;
/// So much more may wait.
pub(crate) const BYTES: u64 = 1000;
