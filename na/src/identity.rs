//! Who a peer is, as far as somebody else than the peer vouches for it.

use std::net::SocketAddr;

/// Who a peer is ([`crate::Context::identity`]): what the kernel said of it when the connection was made, and nothing that
/// the peer says of itself.
///
/// A field is `None` where nobody vouches for it, so `None` is no permission, and two peers whose fields are `None` are not
/// the same one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The effective user id of its process, for a peer that is reached inside the machine. It is that of the moment when
    /// it connected, or began to listen where this side connected, in numbers of this process's user namespace: whoever
    /// has none there has the number that stands for nobody (`/proc/sys/kernel/overflowuid`).
    pub uid: Option<u32>,
    /// The id of the process that connected, or listened, for a peer that is reached inside the machine. The kernel may
    /// give it to another process once this one has ended.
    pub pid: Option<u32>,
    /// The address at the other end of its socket, for a peer that is reached over a network: the port is the one that it
    /// is known by there, and of whoever connected any. Behind a translation of addresses it is the translator's, and a
    /// network that lets anybody send from any address vouches for nothing.
    pub address: Option<SocketAddr>,
}

impl Identity {
    /// A process of this machine, as `SO_PEERCRED` says it: 0 is the id of one that is not visible from here.
    #[must_use]
    pub fn process(pid: i32, uid: u32) -> Self {
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
        Self { uid: Some(uid), pid, address: None }
    }

    /// Whoever is at the other end of a socket.
    #[must_use]
    pub fn network(address: SocketAddr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }
}
