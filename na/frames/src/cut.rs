//! The end of a lifeline.

use std::io;

/// How a lifeline ended without a goodbye.
#[derive(Debug)]
pub enum Cut {
    /// The other process has ended.
    Exited,
    /// Nobody answers the kernel's probes.
    Silent,
    /// It never was connected.
    NotThere(io::Error),
    /// Something that is no record came.
    Rubbish(&'static str),
    /// The two ends have not the same key.
    Refused(&'static str),
}
