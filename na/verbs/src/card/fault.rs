//! What a failed call, or a completion that is an error, says.

use std::{fmt, io};

use hg_na::Error;
use hg_na_parts::limits;
use nix::errno::Errno;
use rdma_core_sys as sys;

/// A failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not now: a queue is full, or frames are out.
    Again,
    /// A function has failed with a number of the system's.
    Call(&'static str, i32),
    /// A completion's status (`ibv_wc_status`).
    Status(i32),
    /// The card has said so by itself.
    Event(&'static str),
}

impl Fault {
    /// A key that no card has made.
    pub(crate) const NO_KEY: Self = Self::Status(10);

    /// From what a function returned that answers with a number of the system's.
    pub(crate) fn check(call: &'static str, returned: i32) -> Result<(), Self> {
        // Some answer with -1, and the number in `errno`.
        match returned {
            0 => Ok(()),
            -1 => Err(Self::last(call)),
            number => Err(Self::Call(call, number.saturating_abs())),
        }
    }

    /// Of a function that answers with a null pointer.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::Call(call, Errno::last_raw())
    }
}

/// Statuses of completions that are worth a word.
const STATUSES: [(i32, &str); 7] = [
    (2, "the card could not carry it out: is its port up?"),
    (sys::WC_WR_FLUSH_ERR, "given up since the queue pair is in error"),
    (sys::WC_RETRY_EXC_ERR, "nobody has answered, however often it was repeated"),
    (4, "memory that is not registered for it here"),
    (9, "the peer's card did not take the request"),
    (10, "memory that the peer has not registered for it"),
    (13, "the peer took no message, however often it was repeated"),
];

/// What makes a card's driver lock memory.
const LOCKING: [&str; 5] =
    ["ibv_reg_mr", "ibv_create_cq", "ibv_resize_cq", "ibv_create_qp", "ibv_create_srq"];

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again => out.write_str("not now"),
            Self::Call(call, number) => {
                write!(out, "{call}: {}", io::Error::from_raw_os_error(*number))
            }
            Self::Event(what) => out.write_str(what),
            Self::Status(status) => match STATUSES.iter().find(|(known, _)| known == status) {
                Some((_, meaning)) => out.write_str(meaning),
                None => write!(out, "an error of the card, status {status} of ibv_poll_cq(3)"),
            },
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Again => Self::Again,
            Fault::Call(call, number) => {
                let is_memory = number == nix::libc::ENOMEM || number == nix::libc::EAGAIN;
                let locked = (is_memory && LOCKING.contains(&call)).then(limits::locked_memory);
                locked.flatten().unwrap_or_else(|| limits::os_error(call, Errno::from_raw(number)))
            }
            Fault::Event(_) => Self::os("ibv_get_async_event", io::Error::other(fault)),
            Fault::Status(_) => Self::os("ibv_poll_cq", io::Error::other(fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_in_words() {
        let text = Fault::Status(sys::WC_RETRY_EXC_ERR).to_string();
        assert_eq!(text, "nobody has answered, however often it was repeated");
        assert!(Fault::Status(77).to_string().contains("77"));
        assert!(Fault::Call("ibv_open_device", 2).to_string().starts_with("ibv_open_device: "));
        assert_eq!(Fault::check("ibv_modify_qp", 22), Err(Fault::Call("ibv_modify_qp", 22)));
    }
}
