//! Where something listens, as addresses and URLs say it.

use std::net::Ipv6Addr;

/// Host and port of `HOST:PORT`, either of which may be missing; an IPv6 address stands in brackets, which are taken off.
///
/// # Errors
/// It has not that form; why.
pub fn split(place: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']').ok_or("a bracket is not closed")?;
        inside.parse::<Ipv6Addr>().map_err(|_| "in brackets stands no IPv6 address")?;
        let port = match behind {
            "" => None,
            _ => Some(behind.strip_prefix(':').ok_or("behind the bracket stands no port")?),
        };
        (inside, port)
    } else {
        match place.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address stands in brackets, as in [::1]:4000");
            }
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    let port = port.map(|text| text.parse().map_err(|_| "a port is a number from 0 to 65535"));
    Ok((host, port.transpose()?))
}
