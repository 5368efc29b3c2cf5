//! Memory that libfabric's `shm` leaves behind in /dev/shm when a process is killed.
//!
//! Each endpoint of that provider has a file `PID:UID:NUMBER` there, which libfabric removes when it closes. Whoever
//! sees a peer die removes the peer's ([`clear_up`]). When all processes die at once nobody does: then the next one
//! that opens the provider ([`sweep`]). The number of a process proves nothing there, since containers may share
//! /dev/shm and not their processes. So each endpoint of this plugin marks its file, by the sticky bit, which means
//! nothing for a file, and holds a shared lock on it, which the kernel lets go of when the process ends, wherever
//! that is. Removed is what is marked, locked by nobody, this user's, and bears the number of no living process:
//! never a file of another program that uses libfabric.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use nix::unistd::geteuid;

/// Where POSIX shared memory is.
const FOLDER: &str = "/dev/shm";
/// Of a marked file.
const STICKY: u32 = 0o1000;

/// The lock on the memory of an endpoint of this process; held as long as the endpoint.
#[derive(Debug)]
pub(crate) struct Mark {
    _locked: File,
}

impl Mark {
    /// Of an endpoint's memory, by the endpoint's name. `None` where it cannot be had: then nobody sweeps it.
    pub(crate) fn set(name: &[u8]) -> Option<Self> {
        Self::set_in(Path::new(FOLDER), &file_of(name)?)
    }

    fn set_in(folder: &Path, name: &str) -> Option<Self> {
        let file = File::open(folder.join(name)).ok()?;
        // Before it can be taken for one that nobody locks.
        file.lock_shared().ok()?;
        let mode = file.metadata().ok()?.permissions().mode();
        file.set_permissions(Permissions::from_mode(mode | STICKY)).ok()?;
        Some(Self { _locked: file })
    }
}

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
    file_of(name).is_some_and(|name| is_others(&Path::new(FOLDER).join(name)))
}

fn is_others(path: &Path) -> bool {
    let is_own = |it: &fs::Metadata| it.is_file() && it.uid() == geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|it| !is_own(&it))
}

/// Removes what processes have left that all were killed.
pub(crate) fn sweep() {
    sweep_in(Path::new(FOLDER));
}

fn sweep_in(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_name(&name) && is_dead(&name) && is_left(&entry.path()) {
            // Whoever looked at the same time has removed it.
            let _ = fs::remove_file(entry.path());
            tracing::debug!(%name, "removed what killed processes have left behind");
        }
    }
}

/// Marked, this user's, and locked by nobody.
fn is_left(path: &Path) -> bool {
    let is_own = |it: &fs::Metadata| {
        it.is_file() && it.uid() == geteuid().as_raw() && it.mode() & STICKY != 0
    };
    // Not through a link, and not what somebody else's open would block on.
    if !fs::symlink_metadata(path).is_ok_and(|it| is_own(&it)) {
        return false;
    }
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
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
    fn only_what_is_marked_and_locked_by_nobody_living_is_swept() {
        let folder = std::env::temp_dir().join(format!("hg-ofi-left-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let make = |name: &str| {
            fs::write(folder.join(name), b"memory").unwrap();
            name.to_owned()
        };
        // Numbers of processes go to 4,194,304 at most: these are of none.
        let left = make("9999991:0:0");
        drop(Mark::set_in(&folder, &left).unwrap());
        let held = make("9999992:0:0");
        let _mark = Mark::set_in(&folder, &held).unwrap();
        let unmarked = make("9999993:0:0");
        let living = make(&format!("{}:0:0", std::process::id()));
        drop(Mark::set_in(&folder, &living).unwrap());
        let other = make("9999994:0:0:name");
        drop(Mark::set_in(&folder, &other).unwrap());
        std::os::unix::fs::symlink(folder.join(&other), folder.join("9999995:0:0")).unwrap();
        sweep_in(&folder);
        let mut rest: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name()).collect();
        rest.sort_unstable();
        let mut expected: [std::ffi::OsString; 5] =
            [&held, &unmarked, &living, &other, "9999995:0:0"].map(Into::into);
        expected.sort_unstable();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(rest, expected);
    }

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
