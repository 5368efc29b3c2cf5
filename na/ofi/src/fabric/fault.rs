//! What the library's numbers mean: every one has a name.

use std::{fmt, io};

use hg_na::Error;
use libfabric_sys::errno;

/// A failure of a function of libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The function.
    pub(crate) call: &'static str,
    /// Its number, positive.
    pub(crate) number: i32,
}

/// Numbers of libfabric's own. The others are those of the system.
const NAMES: [(i32, &str, &str); 17] = [
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
    (errno::NODATA, "FI_ENODATA", "nothing fits"),
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
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, ..)| *number == self.number) {
            Some((_, name, meaning)) => write!(out, "{name}: {meaning}"),
            None if self.number < 256 => {
                fmt::Display::fmt(&io::Error::from_raw_os_error(self.number), out)
            }
            None => write!(out, "error {} of the provider", self.number),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let source = match NAMES.iter().any(|(number, ..)| *number == fault.number) {
            false if fault.number < 256 => io::Error::from_raw_os_error(fault.number),
            _ => io::Error::other(fault),
        };
        Self::os(fault.call, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_name() {
        let text = |number: i32| Error::from(Fault::new("fi_send", number)).to_string();
        assert_eq!(text(-266), "fi_send failed: FI_ENOKEY: no such memory key");
        assert!(text(-113).starts_with("fi_send failed: No route to host"), "{}", text(-113));
        assert_eq!(text(-9999), "fi_send failed: error 9999 of the provider");
        assert!(Fault::new("fi_send", -11).is_again());
        assert!(Fault::check("fi_send", 0).is_ok() && Fault::check("fi_cq_read", 5i64).is_ok());
    }
}
