//! Hydrargyrum's shared-memory transport

#[cfg(not(loom))]
mod node;
#[cfg(not(loom))]
mod os;
#[cfg(not(loom))]
mod rendezvous;
mod sync;
