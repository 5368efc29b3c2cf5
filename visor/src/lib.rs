//! One daemon per node that owns the network, after RDMAvisor, and the transport `visor://` that goes through it.

#![forbid(unsafe_code)]

mod address;
mod arrive;
mod config;
mod context;
mod daemon;
mod domain;
mod machine;
mod plugin;
mod question;
mod send;
mod session;
mod settings;
mod way;
mod wire;

pub use config::{Config, NAME, User};
pub use daemon::{Daemon, Stopper};
pub use plugin::VisorPlugin;
pub use question::{Question, ask};
