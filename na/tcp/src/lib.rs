//! Hydrargyrum's transport over plain TCP sockets: `tcp://`.
//!
//! No system library, no daemon: one listening port per domain, one connection per pair of contexts,
//! used both ways. Puts and gets are served by their owner's progress. With a pre-shared key everything
//! is authenticated and encrypted.
//!
//! ```
//! use hg_na::{OpenOptions, Plugin};
//!
//! let domain = hg_na_tcp::TcpPlugin.open(&"tcp://127.0.0.1".parse()?, &OpenOptions::listening())?;
//! let context = domain.context(0)?;
//! assert_eq!(context.address().scheme(), "tcp");
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! # Addresses
//! `tcp://HOST:PORT`, with `/ID` behind it for a context other than 0. A host is an IPv4 address, an IPv6
//! address in brackets, or a name, which a thread of the domain's resolves. To open: `tcp://` listens at the address that it
//! announces, which `interface` or `subnet` chooses; `tcp://0.0.0.0` and `tcp://[::]` listen at every one; port 0 is any free one.
//! Who listens beyond this machine without a key says so in the log.
//!
//! # Settings
//! | name | meaning | default |
//! |---|---|---|
//! | `interface` | at whose address it listens, and which it announces | the first that is up, no loopback |
//! | `subnet` | `ADDRESS/BITS`, where it lies | any |
//! | `connect-timeout-ms` | until a peer that does not greet is given up | 30,000 |
//! | `silence-bound-ms` | until a peer that is cut off is given up, at least 3,000 | 30,000 |
//! | `unsent-kib` | KiB that the kernel takes of what it cannot send yet: few (64) let messages pass bulk data on links below some 10 Gbit/s | as many as it likes |
//! | `max-peers` | connections of one context | 65,536 |
//! | `max-held-mib` | MiB that requests which wait for admission take, of all peers; past it the peer whose take most is disconnected, or whose message stands still | 1,024 |
//! | `key-file`, `key-env` | where the pre-shared key is: 64 hexadecimal digits | no encryption |
//!
//! A key file must be readable by its owner only:
//! `head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > key; chmod 600 key`. A build without optimisation encrypts
//! a few MB/s only; `[profile.dev.package."*"] opt-level = 3` in your `Cargo.toml` helps.
//!
//! # Layers
//! | module | what it is |
//! |---|---|
//! | `frame`, `greeting`, `address` | what travels, and what is configured |
//! | `inbound`, `outbound` | the two halves of a stream |
//! | `wire`, `link`, `transfers` | one connection; one peer over it |
//! | `context`, `post`, `short_cuts`, `rounds`, `reading`, `arrivals`, `handshake`, `strangers`, `dialling`, `silence`, `watched`, `flushing` | one endpoint |
//! | `plugin`, `offer`, `domain`, `shared`, `settings` | what is opened, and what could be |
//! | `inbox`, `resolver`, `interfaces`, `kernel` | threads and the operating system |
//!
//! # Threads
//! A context is used by one thread at a time; its waiter by any. A domain by any. Up to four threads
//! resolve host names, and end when there are none.
//!
//! # Cleanup
//! Dropping a context says goodbye to its peers. A process that dies is noticed by its peers through the
//! kernel, a host that is cut off by its silence, within `silence-bound-ms`; one that is only busy is not.
//!
//! # Features
//! | feature | what | default |
//! |---|---|---|
//! | `tcp-key` | a pre-shared key and encryption: the settings `key-file` and `key-env`; brings `snow` and `graviola` | no |
//! | `fuzzing` | for fuzz targets only | no |

#![deny(unsafe_code)]

mod address;
mod arrivals;
mod context;
mod dialling;
mod domain;
mod flushing;
mod frame;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod greeting;
mod handshake;
mod inbound;
mod inbox;
mod interfaces;
#[expect(unsafe_code, reason = "asks the kernel what no safe interface tells")]
mod kernel;
mod link;
mod offer;
mod outbound;
mod pace;
mod part;
mod parts;
mod plugin;
mod post;
mod reading;
mod resolver;
mod rounds;
mod settings;
mod shared;
mod short_cuts;
mod silence;
mod strangers;
mod transfers;
mod watched;
mod wire;

#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_frames, fuzz_greeting, fuzz_sealed};
pub use plugin::TcpPlugin;
