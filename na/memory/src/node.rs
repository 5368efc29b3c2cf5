//! Which node this process is on: equal ids mean that shared memory can work.
//!
//! What decides: the same kernel since the same boot (memory), the same network namespace (abstract
//! sockets), the same pid namespace (`process_vm_readv`). Two containers that cannot reach each other
//! differ in one of them.

use std::os::unix::fs::MetadataExt as _;

use hg_na::Error;
use uuid::Uuid;

/// The namespace of node ids: random, chosen once.
const NODES: Uuid = Uuid::from_u128(0x6f0c_8a52_3a9e_4f0b_9d57_25c4_1be6_70d8);

/// The id of this process's node: UUID version 5 of boot id, network and pid namespace.
///
/// # Errors
/// [`Error::Os`] where there is no /proc.
pub fn node_id() -> Result<Uuid, Error> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| Error::os("read(/proc/sys/kernel/random/boot_id)", e))?;
    let network = namespace("/proc/thread-self/ns/net")?;
    let pid = namespace("/proc/thread-self/ns/pid")?;
    Ok(id_of(boot.trim(), network, pid))
}

fn id_of(boot: &str, network: u64, pid: u64) -> Uuid {
    Uuid::new_v5(&NODES, format!("{boot} {network} {pid}").as_bytes())
}

/// The inode that a namespace is known by while it lives.
fn namespace(path: &str) -> Result<u64, Error> {
    Ok(std::fs::metadata(path).map_err(|e| Error::os("stat(/proc/thread-self/ns)", e))?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_on_its_node() {
        assert_eq!(node_id().unwrap(), node_id().unwrap());
    }

    #[test]
    fn each_of_the_three_makes_another_node() {
        let here = id_of("boot", 1, 2);
        for other in [id_of("again", 1, 2), id_of("boot", 2, 2), id_of("boot", 1, 1)] {
            assert_ne!(here, other);
        }
        assert_ne!(id_of("boot", 1, 12), id_of("boot", 11, 2));
    }
}
