//! Hydrargyrum's shared-memory transport

#[cfg(not(loom))]
mod os;
mod sync;
