//! What this process learns about the machine that it runs on.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs as _},
    os::fd::AsFd,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};

use crate::error::Error;

/// What decides whether two ranks share a node: that of shared memory. Where there is no /proc, the name of the host.
pub(crate) fn identity() -> String {
    hg_na_memory::node_id().map_or_else(|_| hostname(), |id| id.to_string())
}

fn hostname() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}

/// Addresses at which others may reach this machine, at most so many: those of a link first, then loopback.
pub(crate) fn addresses(max: usize) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = nix::ifaddrs::getifaddrs()
        .map(|list| list.filter_map(|one| one.address.as_ref().and_then(ip)).collect())
        .unwrap_or_default();
    found.retain(|ip| !ip.is_loopback() && !is_link_local(ip));
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found.truncate(max);
    found.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    found
}

fn ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    }
}

/// A listening socket on every address of this machine, or on the given one.
pub(crate) fn listen(on: Option<&str>) -> Result<TcpListener, Error> {
    match on {
        Some(on) => TcpListener::bind(on).map_err(Error::os(format!("listening on {on}"))),
        None => TcpListener::bind("[::]:0")
            .or_else(|_| TcpListener::bind("0.0.0.0:0"))
            .map_err(Error::os("listening on a TCP port")),
    }
}

/// A free port of the given address, or of every one where that is another machine's.
pub(crate) fn listen_beside(on: Option<&str>) -> Result<TcpListener, Error> {
    let ips = on.and_then(|on| on.to_socket_addrs().ok()).into_iter().flatten();
    let free: Vec<SocketAddr> = ips.map(|at| SocketAddr::new(at.ip(), 0)).collect();
    TcpListener::bind(&free[..]).or_else(|_| listen(None))
}

/// A machine that vanishes is noticed within half a minute, and small messages leave at once.
pub(crate) fn keep_alive(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    // Only a comfort: a connection works without.
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_secs(25)));
    let _ = socket.set_tcp_nodelay(true);
}

/// Raises the soft limit of descriptors if it is lower than this, as far as the hard one allows.
pub(crate) fn allow_descriptors(wanted: u64) {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        // Too few: later ranks cannot connect, and are named as missing.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_the_same_twice_and_fits_in_a_hello() {
        assert_eq!(identity(), identity());
        assert!(identity().len() < 128, "{}", identity());
        assert!(!identity().contains(['/', ' ', '=', ';']));
    }

    #[test]
    fn beside_an_address_of_this_machine_is_the_same_one_and_beside_another_s_is_every_one() {
        let taken = listen(Some("127.0.0.2:0")).unwrap();
        let at = taken.local_addr().unwrap();
        let text = at.to_string();
        let beside = |on: Option<&str>| listen_beside(on).unwrap().local_addr().unwrap();
        assert_eq!(beside(Some(&text)).ip(), at.ip());
        // Of a range that is for examples.
        for on in [None, Some("192.0.2.1:4477"), Some("nonsense")] {
            assert!(beside(on).ip().is_unspecified(), "{on:?}");
        }
    }

    #[test]
    fn loopback_is_the_last_address() {
        let found = addresses(3);
        assert!(found.len() <= 4);
        assert_eq!(found.last(), Some(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
