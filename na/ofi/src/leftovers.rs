//! Memory that libfabric's `shm` leaves behind in /dev/shm when a process is killed.
//!
//! Each endpoint of that provider has a file `PID:UID:NUMBER` there, which libfabric removes when it closes. Whoever sees a peer die removes
//! the peer's ([`clear_up`]). When all processes die at once nobody does: those files stay, which is a limit of `ofi+shm`.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use nix::unistd::geteuid;

/// Where POSIX shared memory is.
const FOLDER: &str = "/dev/shm";

/// Removes the memory of a peer that was killed. Its endpoint's address is a claim: only what bears the number of a
/// dead process is touched.
pub(crate) fn clear_up(name: &[u8]) {
    let Some(name) = file_of(name) else { return };
    if is_dead(&name) && fs::remove_file(Path::new(FOLDER).join(&name)).is_ok() {
        tracing::debug!(%name, "removed what a killed process has left behind");
    }
}

/// Whether there is a file of an endpoint's name that this user has not made: libfabric would map it, and trust what stands in it.
pub(crate) fn is_of_other_user(name: &[u8]) -> bool {
    file_of(name).is_some_and(|name| {
        let file = fs::symlink_metadata(Path::new(FOLDER).join(name));
        file.is_ok_and(|it| !it.is_file() || it.uid() != geteuid().as_raw())
    })
}

/// The file of an endpoint of that provider.
fn file_of(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name.strip_prefix(b"fi_shm://")?).ok()?;
    let name = name.trim_end_matches('\0').to_owned();
    is_name(&name).then_some(name)
}

/// `PID:UID:NUMBER`.
fn is_name(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split(':').count() == 3 && name.split(':').all(is_number)
}

/// No living process here bears the number that the name begins with.
fn is_dead(name: &str) -> bool {
    let Some(pid) = name.split(':').next() else { return false };
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_of_libfabric_s_is_a_file() {
        assert_eq!(file_of(b"fi_shm://12:0:3\0\0").as_deref(), Some("12:0:3"));
        for other in
            ["fi_sockaddr://12:0:3", "fi_shm://12:0", "fi_shm://../x:0:1", "fi_shm://12:0:x"]
        {
            assert_eq!(file_of(other.as_bytes()), None, "{other}");
        }
    }
}
