//! `ofi+PROVIDER://`: Hydrargyrum's transport over libfabric (OFI).
//!
//! libfabric is loaded when the first such URL is opened; a program starts without it and is told then what to
//! install. Any provider with reliable unconnected endpoints and ordered messages will do, whether it has one-sided
//! operations, registration demands and wait objects or not.
//!
//! ```no_run
//! use hg_na::{Address, OpenOptions, Plugin as _};
//!
//! let domain = hg_na_ofi::OfiPlugin.open(&Address::new("ofi+tcp://")?, &OpenOptions::listening())?;
//! let context = domain.context(0)?;
//! println!("{}", context.address());
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! # Settings
//! | name | meaning |
//! |---|---|
//! | `domain` | libfabric's domain: an interface or a card (by default the nearest card; the processes of a node share those that are equally near) |
//! | `auth-key` | what admits to a part of the network: `SERVICE:VNI` (cxi), or hexadecimal digits, as the provider wants it |
//! | `traffic-class` | `best-effort`, `low-latency`, `dedicated-access`, `bulk-data`, `scavenger`, `network-ctrl` |
//! | `subnet` | `ADDRESS/BITS` in which the own address lies |
//! | `lifeline` | own address for lifelines, where the provider has no internet addresses |
//! | `connect-timeout-ms` | bound for greeting a peer (30,000) |
//! | `silence-bound-ms` | bound for noticing a peer that is cut off (30,000; 3,000 at least) |
//! | `retry-bound-ms` | bound for a live peer to which libfabric sends nothing (60,000) |
//! | `rma` | `off`: put and get travel in messages even where the provider has one-sided operations (`on`). Over providers that check in software (tcp, net, udp, sockets) `on` lets a peer to whom memory is lent for a transfer reach other memory of this process: `off` where not all peers are trusted |
//! | `device-memory` | `on`: memory of devices is moved (`hg_na::Memory::on_device`), where the provider can (`off`) |
//! | `multi-receive` | `off`, `on`: whether one buffer takes many messages where the provider has that |
//! | `messages` | `tagged`: libfabric's tagged messages even where the provider has `untagged` ones |
//! | `sleep` | `off`: who sleeps looks in steps that grow to 4 ms even where the provider has something to wait on (`on`) |
//! | `max-peers` | connections of one context (65,536) |
//! | `max-held-mib` | MiB that requests which wait for admission take, of all peers (1,024); past it the peer whose take most is disconnected, or whose messages stand still |
//! | `key-file`, `key-env` | where the pre-shared key is: 64 hexadecimal digits. Who has it not is no peer; frames are not encrypted |
//!
//! # Threads
//! As `hg_na` says. Each context has an endpoint and a domain of libfabric's of its own.
//!
//! # Cleanup
//! Dropping a context says goodbye to its peers and closes its endpoint; the library stays loaded.
//!
//! # Features
//! | feature | what | default |
//! |---|---|---|
//! | `key` | a pre-shared key for lifelines; brings `snow` and `graviola` | no |
//! | `fuzzing` | for fuzz targets only | no |

mod address;
mod cards;
mod choice;
mod domain;
#[expect(unsafe_code, reason = "calls into a C library")]
mod fabric;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod leftovers;
mod offered;
mod plugin;
mod settings;
mod shared;
mod stall;
#[cfg(test)]
mod tests;
mod transport;
mod vector;
mod wire;

#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_frames, fuzz_lifeline};
pub use offered::{Missing, PATH_VARIABLE, library_version};
pub use plugin::OfiPlugin;
