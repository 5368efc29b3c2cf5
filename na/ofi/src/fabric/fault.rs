//! What the library's numbers mean: every one has a name.

use std::{fmt, io};

use hg_na::Error;
use hg_na_parts::limits;
use libfabric_sys::errno;
use nix::errno::Errno;

/// A failure of a function of libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The function.
    pub(crate) call: &'static str,
    /// Its number, positive.
    pub(crate) number: i32,
}

/// Numbers of libfabric's own. The others are those of the system, with `FI_` before their names.
const NAMES: [(i32, &str, &str); 16] = [
    (256, "FI_EOTHER", "unspecified error of the provider"),
    (257, "FI_ETOOSMALL", "a buffer of ours is too small"),
    (258, "FI_EOPBADSTATE", "not permitted in this state"),
    (259, "FI_EAVAIL", "an error waits to be read"),
    (260, "FI_EBADFLAGS", "flags that the provider does not take"),
    (261, "FI_ENOEQ", "no event queue"),
    (262, "FI_EDOMAIN", "objects of different domains"),
    (263, "FI_ENOCQ", "no completion queue"),
    (264, "FI_ECRC", "checksum error on the wire"),
    (265, "FI_ETRUNC", "a message was cut off"),
    (266, "FI_ENOKEY", "no such memory key"),
    (267, "FI_ENOAV", "no address vector"),
    (268, "FI_EOVERRUN", "a queue overflowed"),
    (269, "FI_ENORX", "the receiver is not ready"),
    (270, "FI_ENOMR", "no more memory regions"),
    (271, "FI_EFIREWALLADDR", "the address is behind a firewall"),
];

impl Fault {
    /// From what a function returned: negative on failure.
    pub(crate) fn check(call: &'static str, returned: impl Into<i64>) -> Result<(), Self> {
        let returned = returned.into();
        if returned >= 0 { Ok(()) } else { Err(Self::new(call, returned)) }
    }

    /// From a number of either sign.
    pub(crate) fn new(call: &'static str, number: impl Into<i64>) -> Self {
        let number = i32::try_from(number.into().unsigned_abs()).unwrap_or(i32::MAX);
        Self { call, number }
    }

    /// Whether it says no more than "not now".
    pub(crate) fn is_again(self) -> bool {
        self.number == errno::AGAIN
    }

    /// Whether the library has no memory for it, now.
    pub(crate) fn is_full(self) -> bool {
        self.number == nix::libc::ENOMEM
    }
}

/// What makes a card's driver lock memory.
const LOCKING: [&str; 4] = ["fi_mr_reg", "fi_endpoint", "fi_enable", "fi_cq_open"];

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, ..)| *number == self.number) {
            Some((_, name, meaning)) => write!(out, "{name}: {meaning}"),
            None => match Errno::from_raw(self.number) {
                Errno::UnknownErrno => write!(out, "error {} of the provider", self.number),
                known => write!(out, "FI_{known:?}: {}", known.desc()),
            },
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        if LOCKING.contains(&fault.call)
            && fault.is_full()
            && let Some(limit) = limits::locked_memory()
        {
            return limit;
        }
        // With the system's kind, where it has one.
        let kind = match Errno::from_raw(fault.number) {
            Errno::UnknownErrno => io::ErrorKind::Other,
            known => io::Error::from(known).kind(),
        };
        let source = io::Error::new(kind, fault);
        Self::os(fault.call, source)
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    fn text(number: i32) -> String {
        Error::from(Fault::new("fi_send", number)).to_string()
    }

    #[test]
    fn memory_that_may_not_be_locked_is_named_with_its_limit() {
        let said = Error::from(Fault::new("fi_mr_reg", libc::ENOMEM)).to_string();
        let is_limited = limits::locked_memory().is_some();
        assert_eq!(
            said.contains("RLIMIT_MEMLOCK") && said.contains("ulimit -l"),
            is_limited,
            "{said}"
        );
        assert!(text(-libc::ENOMEM).contains("FI_ENOMEM"), "a send locks nothing");
    }

    #[test]
    fn every_number_has_a_name() {
        assert_eq!(text(-266), "fi_send failed: FI_ENOKEY: no such memory key");
        assert_eq!(text(-113), "fi_send failed: FI_EHOSTUNREACH: No route to host");
        assert_eq!(text(-9999), "fi_send failed: error 9999 of the provider");
        assert!(Fault::new("fi_send", -11).is_again());
        assert!(Fault::check("fi_send", 0).is_ok() && Fault::check("fi_cq_read", 5i64).is_ok());
    }

    /// Checks that each number of the system's is told by its name in `fi_errno.h`.
    macro_rules! told {
        ($($name:ident)*) => {$(
            let expected = concat!("fi_send failed: FI_", stringify!($name), ": ");
            let told = text(-libc::$name);
            assert!(told.starts_with(expected) && told.len() > expected.len(), "{told}");
        )*};
    }

    #[test]
    fn all_codes_of_the_c_header_are_told_by_their_names() {
        told!(EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
            ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
            ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
            ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR
            EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK
            EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC
            ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ
            EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT
            EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET
            ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
            EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM
            EMEDIUMTYPE ECANCELED EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE);
        let own = [
            "EOTHER",
            "ETOOSMALL",
            "EOPBADSTATE",
            "EAVAIL",
            "EBADFLAGS",
            "ENOEQ",
            "EDOMAIN",
            "ENOCQ",
            "ECRC",
            "ETRUNC",
            "ENOKEY",
            "ENOAV",
            "EOVERRUN",
            "ENORX",
            "ENOMR",
            "EFIREWALLADDR",
        ];
        for (number, name) in (256..).zip(own) {
            let told = text(-number);
            assert!(told.starts_with(&format!("fi_send failed: FI_{name}: ")), "{told}");
        }
    }
}
