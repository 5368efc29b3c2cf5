//! The plugin over an imitation of libibverbs within this process, on every machine.

#![cfg(not(loom))]

mod behaviour;
mod conformance;
mod forked;
mod imitation;
mod neighbours;
mod ports;
mod sharing;
mod strangers;
