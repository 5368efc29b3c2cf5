//! A range of internet addresses, as settings name one.

use std::net::IpAddr;

/// A range of addresses: `10.1.0.0/16`, `fd00::/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    base: IpAddr,
    bits: u8,
}

impl Subnet {
    /// Reads `ADDRESS/BITS`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (base, bits) = text.split_once('/')?;
        let (base, bits): (IpAddr, u8) = (base.parse().ok()?, bits.parse().ok()?);
        let most = if base.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { base, bits })
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        let (one, other, width) = match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                (u128::from(base.to_bits()), u128::from(ip.to_bits()), 32)
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => (base.to_bits(), ip.to_bits(), 128),
            _ => return false,
        };
        (one ^ other).checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_contains_what_shares_its_bits() {
        let ten = Subnet::parse("10.1.0.0/16").unwrap();
        assert!(ten.contains("10.1.255.255".parse().unwrap()));
        assert!(!ten.contains("10.2.0.0".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
        assert!(Subnet::parse("0.0.0.0/0").unwrap().contains("255.255.255.255".parse().unwrap()));
        assert!(Subnet::parse("::1/128").unwrap().contains("::1".parse().unwrap()));
        assert!(!Subnet::parse("::1/128").unwrap().contains("::2".parse().unwrap()));
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "/8", "10.0.0.0/"] {
            assert_eq!(Subnet::parse(bad), None, "{bad}");
        }
    }
}
