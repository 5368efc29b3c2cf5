//! What shared memory offers here, and whether the system permits the fast way for long transfers.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::Arc,
};

use hg_na::{Address, Domain, Error, Offer, OpenOptions};
use hg_na_memory::node_id;
use hg_na_parts::limits::nofile;
use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

use crate::rendezvous::name::SCHEME;

/// Where Yama, a security module of the kernel's, says who may reach into other processes.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// `CAP_SYS_PTRACE`: its bit in `CapEff`.
const SYS_PTRACE: u32 = 19;
/// Descriptors that each peer costs.
const DESCRIPTORS_PER_PEER: u64 = 4;

/// The one URL, with what decides how well it works.
pub(crate) fn offers(
    open: impl FnOnce(&Address, &OpenOptions) -> Result<Arc<dyn Domain>, Error>,
) -> Vec<Offer> {
    let Ok(url) = Address::new(&format!("{SCHEME}://")) else { return Vec::new() };
    let opened = open(&url, &OpenOptions::listening());
    let offer = Offer::new(SCHEME, url);
    let offer = match opened {
        Ok(opened) => offer.fact("memfd", "permitted").tried(Ok(opened)),
        Err(error) => offer.missing(format!(
            "{error}; shared memory needs Linux 5.4 or later with /proc, and a sandbox (seccomp) that permits \
             memfd_create, pidfd_open and abstract unix sockets"
        )),
    };
    let offer = match node_id() {
        Ok(node) => offer.fact("node", node.to_string()),
        Err(error) => offer.fact("node", error.to_string()),
    };
    let limit = nofile();
    let peers = format!("{limit} (ulimit -n): about {} peers", limit / DESCRIPTORS_PER_PEER);
    let cma = cma().unwrap_or_else(|denied| denied);
    vec![offer.fact("cma", cma).fact("descriptors", peers).fact("huge-pages", "not used")]
}

/// Whether a process of the same user can be reached by `process_vm_readv`; where not, why.
fn cma() -> Result<String, String> {
    match read_oneself() {
        Ok(()) => {}
        Err(Errno::ENOSYS) => return Err(denied("this kernel has no process_vm_readv", None)),
        Err(errno) => {
            let why = format!("a sandbox (seccomp) forbids process_vm_readv: {}", errno.desc());
            return Err(denied(&why, Some("allow process_vm_readv and process_vm_writev")));
        }
    }
    let scope = std::fs::read_to_string(YAMA).ok().and_then(|text| text.trim().parse().ok());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    permitted_by_yama(scope, may_trace(&status))
}

/// Sandboxes forbid the call whatever it is for; to read oneself nothing else is needed.
fn read_oneself() -> Result<(), Errno> {
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    let base = IoSlice::new(&from).as_ptr().addr();
    let remote = [RemoteIoVec { base, len: from.len() }];
    let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut to)], &remote)?;
    if read == from.len() && to == from { Ok(()) } else { Err(Errno::EFAULT) }
}

fn permitted_by_yama(scope: Option<u32>, may_trace: bool) -> Result<String, String> {
    match scope {
        None | Some(0) => Ok("permitted".to_owned()),
        Some(1 | 2) if may_trace => {
            Ok("permitted to this process (CAP_SYS_PTRACE), whatever kernel.yama.ptrace_scope says"
                .to_owned())
        }
        Some(scope @ 1..=2) => {
            let why = format!("kernel.yama.ptrace_scope is {scope}");
            Err(denied(&why, Some("sysctl -w kernel.yama.ptrace_scope=0")))
        }
        Some(scope) => {
            let why = format!("kernel.yama.ptrace_scope is {scope}, until the next boot");
            Err(denied(&why, None))
        }
    }
}

fn denied(why: &str, remedy: Option<&str>) -> String {
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; to permit it: {remedy}"));
    format!("denied, long transfers are copied through shared memory: {why}{remedy}")
}

/// Reads `/proc/self/status`.
fn may_trace(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use hg_na::Plugin as _;

    use super::*;
    use crate::plugin::SmPlugin;

    #[test]
    fn what_yama_forbids_is_told_with_what_permits_it() {
        assert!(permitted_by_yama(None, false).is_ok());
        assert!(permitted_by_yama(Some(0), false).is_ok());
        assert!(permitted_by_yama(Some(1), true).is_ok());
        let denied = permitted_by_yama(Some(1), false).unwrap_err();
        assert!(denied.contains("sysctl -w kernel.yama.ptrace_scope=0"), "{denied}");
        assert!(!permitted_by_yama(Some(3), true).unwrap_err().contains("sysctl"));
    }

    #[test]
    fn the_capability_is_one_bit_of_the_effective_set() {
        let status =
            |bits: u64| format!("Name:\thg\nCapPrm:\t{:016x}\nCapEff:\t{bits:016x}\n", u64::MAX);
        assert!(may_trace(&status(1 << 19)) && may_trace(&status(u64::MAX)));
        assert!(!may_trace(&status(1 << 18 | 1 << 20)) && !may_trace(""));
    }

    #[test]
    fn this_process_can_read_itself() {
        assert_eq!(read_oneself(), Ok(()));
    }

    #[test]
    fn shared_memory_is_offered_once_with_its_node() {
        let offers = SmPlugin.offers();
        assert_eq!(offers.len(), 1);
        assert!(offers[0].is_available(), "{offers:?}");
        assert_eq!(offers[0].facts["node"], node_id().unwrap().to_string());
    }
}
