//! How a call can fail, ordered by what the caller can do.

use std::fmt;

use hg_na::{Error as NaError, GoneReason};

use crate::rpc::{NoError, Rpc};

/// Why a call has no value. `E` is the handler's own error.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone)]
#[non_exhaustive]
pub enum CallError<E = NoError> {
    /// The handler has answered with its own error.
    Handler(E),
    /// The deadline has passed.
    DeadlineExceeded(Started),
    /// The caller has cancelled the call.
    Cancelled,
    /// The target is gone, and this [`Peer`](hg_na::Peer) with it: every further call to it ends so. Look its address
    /// up again to reach its next incarnation.
    PeerGone {
        /// What happened to it.
        reason: GoneReason,
        /// Whether the handler may have run.
        started: Started,
    },
    /// The target knows no RPC of this name. Register it there, or check the versions of both sides.
    NoSuchRpc {
        /// Name of the RPC.
        name: &'static str,
    },
    /// The two sides declare the RPC differently: other types, another order, other names of fields. Declare it once, in a crate
    /// that both share, and build both anew.
    SignatureMismatch(Box<SignatureMismatch>),
    /// The two sides speak other versions of the protocol, or other codecs. Build both from the same version, with the same
    /// feature (`bincode` or `postcard`).
    Incompatible(String),
    /// The target is about to end, or has ended, and begins nothing new: the handler has certainly not run. Call another target,
    /// or look this one's address up again when it is back.
    Draining,
    /// The target has as many requests in service as it wants (`Builder::reject_above`): the handler has certainly not run. Wait a
    /// little, or call another target.
    Overloaded(String),
    /// A limit of the target keeps it from taking the arguments or giving the result, or one of the caller from taking the result; or
    /// the handler gave no answer. The handler may have run.
    Rejected(String),
    /// Arguments or result cannot be decoded: a side is broken, or its declaration differs in what no signature shows.
    Decode(String),
    /// The handler panicked. The target lives on.
    Panicked(String),
    /// The call could not be made at all.
    NotMade(NaError),
    /// `wait` was called in a handler that runs on the progress thread, where it could never end; or a future was
    /// polled in a plain one (`block_on`), the same. Await it in an `async fn`, or use a blocking handler.
    WouldDeadlock,
    /// The engine of the caller was closed. Open a new one.
    Closed,
}

impl<E> CallError<E> {
    /// The sentence, in which the handler's own error stands as it is written by `own`.
    fn write(
        &self,
        out: &mut fmt::Formatter<'_>,
        own: impl FnOnce(&E, &mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        match self {
            Self::Handler(error) => {
                out.write_str("the handler answered with an error: ")?;
                own(error, out)
            }
            Self::DeadlineExceeded(started) => write!(out, "the deadline has passed; {started}"),
            Self::Cancelled => out.write_str("the call was cancelled"),
            Self::PeerGone { reason, started } => {
                let (what, then) = match reason {
                    // Whoever is there does not want this side.
                    GoneReason::Refused(_) => ("no connection to the target", ""),
                    GoneReason::Unreachable(_) => (
                        "no connection to the target",
                        "; look the address up again once somebody is there",
                    ),
                    GoneReason::Exhausted(_) => (
                        "no connection to the target",
                        "; make room, then look the address up again",
                    ),
                    _ => (
                        "the target is gone",
                        "; look the address up again to reach its next one",
                    ),
                };
                write!(out, "{what}: {reason}; {started}{then}")
            }
            Self::NoSuchRpc { name } => write!(
                out,
                "the target knows no RPC `{name}`: register it there, under this very name (declare it in a crate that both sides share, or with `name = \"...\"`)"
            ),
            Self::SignatureMismatch(mismatch) => write!(out, "{mismatch}"),
            Self::Incompatible(why) => write!(
                out,
                "the two sides cannot talk to each other: {why}; build both from the same version and with the same codec"
            ),
            Self::Draining => out.write_str(
                "the target is about to end and begins nothing new, nor has it begun this call: call another one, or look its address up again when it is back",
            ),
            Self::Overloaded(why) => write!(
                out,
                "the target has too much to do and has not begun the call: {why}; wait a little, or call another target"
            ),
            Self::Rejected(why) => write!(out, "the call was rejected: {why}"),
            Self::Decode(why) => write!(out, "the two sides do not agree on the RPC: {why}"),
            Self::Panicked(why) => write!(out, "the handler panicked: {why}"),
            Self::NotMade(NaError::TooLong { len, max }) => write!(
                out,
                "the call could not be made: arguments of {len} bytes are over this engine's own limit of {max} bytes (`Builder::large_max`): raise it, or pass a descriptor of memory (`expose`)"
            ),
            Self::NotMade(error) => write!(out, "the call could not be made: {error}"),
            Self::WouldDeadlock => out.write_str(
                "waiting inside this handler would block the progress that it waits for: `.await` it in an `async fn` handler, or `wait` in one with `#[hg::rpc(blocking)]`",
            ),
            Self::Closed => write!(out, "{}", NaError::Closed),
        }
    }

    /// Whether the handler has certainly not run, and the same call may succeed later, or at another target: it may be made
    /// again without being made twice. After [`CallError::PeerGone`] the address is to be looked up first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Draining
                | Self::Overloaded(_)
                | Self::DeadlineExceeded(Started::No)
                | Self::PeerGone { started: Started::No, .. }
                | Self::NotMade(NaError::Again | NaError::Limit { .. })
        )
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Handler(_) => "Handler",
            Self::DeadlineExceeded(_) => "DeadlineExceeded",
            Self::Cancelled => "Cancelled",
            Self::PeerGone { .. } => "PeerGone",
            Self::NoSuchRpc { .. } => "NoSuchRpc",
            Self::SignatureMismatch(_) => "SignatureMismatch",
            Self::Incompatible(_) => "Incompatible",
            Self::Draining => "Draining",
            Self::Overloaded(_) => "Overloaded",
            Self::Rejected(_) => "Rejected",
            Self::Decode(_) => "Decode",
            Self::Panicked(_) => "Panicked",
            Self::NotMade(_) => "NotMade",
            Self::WouldDeadlock => "WouldDeadlock",
            Self::Closed => "Closed",
        }
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(out, |error, out| error.fmt(out))
    }
}

impl<E: fmt::Debug> fmt::Debug for CallError<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(out, |error, out| error.fmt(out))?;
        match self {
            Self::NotMade(error) => write!(out, " [{}: {}]", self.kind(), error.kind()),
            _ => write!(out, " [{}]", self.kind()),
        }
    }
}

/// A handler's own error is part of the sentence, and is no source: it need not be an error (a `String`, say), and a report of all
/// sources would say it twice. Whoever wants it matches [`CallError::Handler`].
impl<E: fmt::Debug + fmt::Display> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotMade(error) => Some(error),
            _ => None,
        }
    }
}

impl<E> From<NaError> for CallError<E> {
    fn from(error: NaError) -> Self {
        match error {
            NaError::Closed => Self::Closed,
            error => Self::NotMade(error),
        }
    }
}

/// A call's failure without a handler's own error.
pub type Failure = CallError<NoError>;

impl Failure {
    /// The same failure of a call of `R`.
    #[must_use]
    pub fn of<R: Rpc>(mut self) -> CallError<R::Error> {
        if let Self::SignatureMismatch(mismatch) = &mut self {
            mismatch.caller = R::signature().words();
        }
        self.widen()
    }

    /// What the transport has said of a call.
    #[cold]
    #[must_use]
    pub fn of_transport(error: NaError, started: Started) -> Self {
        match error {
            NaError::PeerGone(reason) => Self::PeerGone { reason, started },
            NaError::UnknownPeer => Self::PeerGone { reason: GoneReason::Ended, started },
            NaError::Cancelled => Self::Cancelled,
            other => other.into(),
        }
    }

    /// The same failure where a handler has errors of its own.
    #[must_use]
    pub fn widen<E>(self) -> CallError<E> {
        match self {
            Self::Handler(never) => match never {},
            Self::DeadlineExceeded(started) => CallError::DeadlineExceeded(started),
            Self::Cancelled => CallError::Cancelled,
            Self::PeerGone { reason, started } => CallError::PeerGone { reason, started },
            Self::NoSuchRpc { name } => CallError::NoSuchRpc { name },
            Self::SignatureMismatch(mismatch) => CallError::SignatureMismatch(mismatch),
            Self::Incompatible(why) => CallError::Incompatible(why),
            Self::Draining => CallError::Draining,
            Self::Overloaded(why) => CallError::Overloaded(why),
            Self::Rejected(why) => CallError::Rejected(why),
            Self::Decode(why) => CallError::Decode(why),
            Self::Panicked(why) => CallError::Panicked(why),
            Self::NotMade(error) => CallError::NotMade(error),
            Self::WouldDeadlock => CallError::WouldDeadlock,
            Self::Closed => CallError::Closed,
        }
    }
}

/// What two sides mean by an RPC of one name, each in words ([`crate::signature`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureMismatch {
    /// Name of the RPC.
    pub name: &'static str,
    /// What the caller calls; empty where nobody knows any more.
    pub caller: &'static str,
    /// What the target serves, cut to [`STATUS_TEXT_MAX`] bytes.
    pub target: String,
}

impl fmt::Display for SignatureMismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, caller, target } = self;
        write!(
            out,
            "the two sides declare the RPC `{name}` differently: called as `{caller}`, served as `{target}`; declare it once, in a crate that both share, and build both anew"
        )
    }
}

/// Whether a call that failed had been started at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// Certainly not: it may be repeated elsewhere without running twice.
    No,
    /// Unknown: it may have run.
    Unknown,
}

impl fmt::Display for Started {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::No => "the call was certainly not started",
            Self::Unknown => "whether the call was started is unknown",
        })
    }
}

/// First byte that the target answers with. Bounded text follows where it helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The payload is the value.
    Ok = 0,
    /// The payload is the handler's own error.
    HandlerError = 1,
    /// No RPC of this name.
    NoSuchRpc = 2,
    /// Arguments or result refused by a limit, or never answered; text.
    Rejected = 3,
    /// Header or arguments cannot be read; text.
    Decode = 4,
    /// The handler panicked; text.
    Panicked = 5,
    /// The handler saw the cancellation.
    Cancelled = 6,
    /// The deadline had passed before the handler was started.
    DeadlineExceeded = 7,
    /// The RPC of this name has another signature; the text is the target's.
    SignatureMismatch = 8,
    /// Another version of the protocol, or another codec; text.
    Incompatible = 9,
    /// The target is about to end, and begins nothing new.
    Draining = 10,
    /// As many requests are in service as the target wants; text.
    Overloaded = 11,
}

/// Longest text that travels with a status, in bytes.
pub const STATUS_TEXT_MAX: usize = 512;

impl Status {
    /// From the wire.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        const ALL: [Status; 12] = [
            Status::Ok,
            Status::HandlerError,
            Status::NoSuchRpc,
            Status::Rejected,
            Status::Decode,
            Status::Panicked,
            Status::Cancelled,
            Status::DeadlineExceeded,
            Status::SignatureMismatch,
            Status::Incompatible,
            Status::Draining,
            Status::Overloaded,
        ];
        ALL.get(usize::from(byte)).copied()
    }

    /// What the caller is told, when this is a failure.
    #[must_use]
    pub fn failure(self, name: &'static str, text: &[u8]) -> Option<Failure> {
        let text =
            || String::from_utf8_lossy(&text[..text.len().min(STATUS_TEXT_MAX)]).into_owned();
        match self {
            Self::Ok | Self::HandlerError => None,
            Self::NoSuchRpc => Some(Failure::NoSuchRpc { name }),
            Self::SignatureMismatch => {
                let mismatch = SignatureMismatch { name, caller: "", target: text() };
                Some(Failure::SignatureMismatch(Box::new(mismatch)))
            }
            Self::Incompatible => Some(Failure::Incompatible(text())),
            Self::Draining => Some(Failure::Draining),
            Self::Overloaded => Some(Failure::Overloaded(text())),
            Self::Rejected => Some(Failure::Rejected(text())),
            Self::Decode => Some(Failure::Decode(text())),
            Self::Panicked => Some(Failure::Panicked(text())),
            Self::Cancelled => Some(Failure::Cancelled),
            Self::DeadlineExceeded => Some(Failure::DeadlineExceeded(Started::No)),
        }
    }
}

/// The longest prefix of a sentence that fits in a status text.
#[must_use]
pub fn bounded_text(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(STATUS_TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_up_again_is_advised_only_where_it_can_help_and_main_prints_sentences() {
        let gone = |reason| Failure::PeerGone { reason, started: Started::No };
        for reason in [GoneReason::Exited, GoneReason::Closed, GoneReason::TimedOut] {
            let said = gone(reason).to_string();
            assert!(said.contains("look the address up again"), "{said}");
        }
        for (reason, end) in [
            (
                GoneReason::Unreachable("nobody listens".into()),
                "; look the address up again once somebody is there",
            ),
            (GoneReason::Refused("no".into()), ""),
        ] {
            let said = format!("{:?}", gone(reason));
            assert!(said.starts_with("no connection to the target: it "), "{said}");
            let end = format!("the call was certainly not started{end} [PeerGone]");
            assert!(said.ends_with(&end), "{said}");
        }
        let said = format!("{:?}", Failure::NotMade(NaError::Forked));
        assert!(said.starts_with("the call could not be made: this engine was opened"), "{said}");
        assert!(said.ends_with(" [NotMade: Forked]"), "{said}");
        let own = CallError::Handler(Started::Unknown);
        assert!(own.to_string().ends_with("error: whether the call was started is unknown"));
        assert!(format!("{own:?}").ends_with("error: Unknown [Handler]"), "{own:?}");
    }

    #[test]
    fn declarations_that_differ_are_shown_with_what_to_do() {
        let failure = Status::SignatureMismatch.failure("add", b"(i64)").expect("it is a failure");
        let said = failure.to_string();
        assert!(said.contains("the RPC `add` differently: called as ``, served as `(i64)`"));
        assert!(said.ends_with("in a crate that both share, and build both anew"), "{said}");
    }

    #[test]
    fn every_status_survives_the_wire() {
        for byte in 0..=u8::MAX {
            if let Some(status) = Status::from_wire(byte) {
                assert_eq!(status as u8, byte);
            }
        }
        assert_eq!(Status::from_wire(12), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "\u{e9}".repeat(STATUS_TEXT_MAX);
        assert!(std::str::from_utf8(bounded_text(&text)).is_ok());
        assert!(bounded_text(&text).len() <= STATUS_TEXT_MAX);
    }
}
