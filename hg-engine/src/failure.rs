//! Why a call was not made.

use std::io;

use hg_core::{
    codec::CodecError,
    error::{Failure, Started},
};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

#[cold]
pub(crate) fn forked() -> Failure {
    Failure::NotMade(hg_na::Error::Forked)
}

/// Why there is no memory of the transport's for a message.
#[cold]
pub(crate) fn not_reserved(error: hg_na::Error) -> Failure {
    Failure::of_transport(error, Started::No)
}

/// Why there is no thread, from what the system said.
#[cold]
pub(crate) fn no_thread(error: io::Error) -> hg_na::Error {
    // What fails is mostly the mapping of a stack, which the system calls a lack of threads.
    match getrlimit(Resource::RLIMIT_AS) {
        Ok((limit, _)) if limit != RLIM_INFINITY => hg_na::Error::Limit {
            what: "threads, or address space for the stack of one more (RLIMIT_AS),",
            limit,
            remedy: "raise it with `ulimit -v`, or open engines that start none (`Progress::Own`)",
        },
        _ => {
            hg_na::Error::os("pthread_create (see RLIMIT_NPROC, and pids.max of the cgroup)", error)
        }
    }
}

#[cold]
pub(crate) fn unencodable(name: &str, error: &CodecError) -> Failure {
    Failure::Decode(format!("`{name}`: {error}"))
}
