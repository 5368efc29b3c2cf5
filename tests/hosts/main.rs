//! Hosts: processes on several of them, which are network namespaces joined by veth pairs ([`hosts`]), and what
//! becomes of calls and transfers when a cable is cut.
//!
//! | module | what it shows |
//! |---|---|
//! | `across` | calls, transfers and forwarded memory between two and three hosts, in the clear and sealed |
//! | `routes` | one address: shared memory inside a host, tcp across |
//! | `places` | interfaces, subnets, names, IPv6 |
//! | `cuts` | a cable that is cut and mended, a host that is started again, a lossy link |
//! | `ofi` | the same over libfabric |
//! | `leftovers` | nothing is left of hosts, whichever way a test ends |
//!
//! A process on a host is this test binary again, in a role: `roles`.

#![expect(clippy::unwrap_used, reason = "helpers of tests end the test, too")]

mod across;
#[expect(dead_code, unused_imports, reason = "shared with the tests in `system`, which need more")]
#[path = "../system/common/mod.rs"]
mod common;
mod cuts;
mod hosts;
mod leftovers;
#[cfg(feature = "ofi")]
mod ofi;
mod places;
mod roles;
mod routes;
