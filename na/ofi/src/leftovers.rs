//! Memory that libfabric's `shm` leaves behind in /dev/shm when a process is killed.
//!
//! Each endpoint of that provider has a file `PID:UID:NUMBER` there, which libfabric removes when it closes. Whoever
//! sees a peer die removes the peer's ([`clear_up`]). When all processes die at once nobody does: then the next one
//! that opens the provider ([`sweep`]). The number of a process proves nothing there, since containers may share
//! /dev/shm and not their processes. So each endpoint of this plugin marks its file, by the sticky bit, which means
//! nothing for a file, and holds a shared lock on it, which the kernel lets go of when the process ends, wherever
//! that is. Removed is what is marked, locked by nobody, this user's, and bears the number of no living process:
//! never a file of another program that uses libfabric.
//!
//! Between libfabric's making of the file and the mark a process may be killed, too. So it *announces* itself first ([`Announced`]): a file
//! with its number, locked as long as an endpoint is being opened, which appears locked and removes itself. Where one is left
//! that nobody locks, files of that number go that bear no mark and were made in the [`OPENING`] behind it.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use hg_na_parts::regions::random;
use nix::{
    fcntl::{AT_FDCWD, AtFlags},
    libc::O_TMPFILE,
    unistd::{geteuid, linkat},
};

/// Where POSIX shared memory is.
const FOLDER: &str = "/dev/shm";
/// Of a marked file.
const STICKY: u32 = 0o1000;

/// Begins the name of an announcement; its process's number and a random one follow.
const ANNOUNCED: &str = "hg-ofi-opening";
/// Longest time for which an endpoint is being opened.
const OPENING: Duration = Duration::from_secs(30);

/// Says that this process is making the memory of an endpoint; until it is dropped.
#[derive(Debug)]
pub(crate) struct Announced {
    path: PathBuf,
    _locked: File,
}

impl Announced {
    /// `None` where it cannot be said: then what a kill in the middle leaves behind stays.
    pub(crate) fn new() -> Option<Self> {
        Self::new_in(Path::new(FOLDER), std::process::id())
    }

    fn new_in(folder: &Path, pid: u32) -> Option<Self> {
        let random = u64::from_le_bytes(*random().ok()?.first_chunk()?);
        let path = folder.join(format!("{ANNOUNCED}.{pid}.{random}"));
        // It has no name before it is locked: nobody can take it for one that was left.
        let unnamed = File::options().write(true).mode(0o600).custom_flags(O_TMPFILE).open(folder);
        let locked = unnamed.ok()?;
        locked.try_lock().ok()?;
        let own = format!("/proc/self/fd/{}", locked.as_raw_fd());
        linkat(AT_FDCWD, own.as_str(), AT_FDCWD, &path, AtFlags::AT_SYMLINK_FOLLOW).ok()?;
        Some(Self { path, _locked: locked })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Somebody else has removed it, or the folder is gone.
        let _ = fs::remove_file(&self.path);
    }
}

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
    fs::symlink_metadata(path).is_ok_and(|it| !is_own(&it))
}

/// Removes what processes have left that all were killed.
pub(crate) fn sweep() {
    sweep_in(Path::new(FOLDER));
}

fn sweep_in(folder: &Path) {
    sweep_announced(folder);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_name(&name) && is_dead(&name) && is_left(&entry.path()) {
            // Whoever looked at the same time has removed it.
            let _ = fs::remove_file(entry.path());
            tracing::debug!(%name, "removed what killed processes have left behind");
        }
    }
}

/// Of processes that were killed before they could mark what they had made.
fn sweep_announced(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(pid) = announced_by(&name).filter(|pid| is_dead(pid)) else { continue };
        if !is_unlocked(&entry.path(), 0) {
            continue;
        }
        let Ok(since) = fs::metadata(entry.path()).and_then(|it| it.modified()) else { continue };
        for made in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = made.file_name().into_string() else { continue };
            let is_its = is_name(&name) && name.split(':').next() == Some(pid);
            if is_its && is_unmarked(&made.path(), since) {
                // Whoever looked at the same time has removed it.
                let _ = fs::remove_file(made.path());
                tracing::debug!(%name, "removed what a process has left that was killed at its start");
            }
        }
        // As above.
        let _ = fs::remove_file(entry.path());
    }
}

/// The process whose announcement bears such a name.
fn announced_by(name: &str) -> Option<&str> {
    let mut parts = name.strip_prefix(ANNOUNCED)?.strip_prefix('.')?.split('.');
    let (pid, random) = (parts.next()?, parts.next()?);
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    (parts.next().is_none() && is_number(pid) && is_number(random)).then_some(pid)
}

/// This user's, without a mark, and made while an endpoint may have been opened that was announced at that time.
fn is_unmarked(path: &Path, since: SystemTime) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| {
        let behind = it.modified().ok().and_then(|made| made.duration_since(since).ok());
        is_own(&it) && it.mode() & STICKY == 0 && behind.is_some_and(|behind| behind < OPENING)
    })
}

/// Marked, this user's, and locked by nobody.
fn is_left(path: &Path) -> bool {
    is_unlocked(path, STICKY)
}

/// This user's, with these bits of its mode, and locked by nobody.
fn is_unlocked(path: &Path, mode: u32) -> bool {
    // Not through a link, and not what somebody else's open would block on.
    if !fs::symlink_metadata(path).is_ok_and(|it| is_own(&it) && it.mode() & mode == mode) {
        return false;
    }
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

fn is_own(it: &fs::Metadata) -> bool {
    it.is_file() && it.uid() == geteuid().as_raw()
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
    fn what_was_made_before_its_mark_is_swept_by_its_announcement_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("hg-ofi-opening-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = |name: &str| fs::write(folder.join(name), b"memory").unwrap();
        // An announcement as a killed process leaves it: there, and locked by nobody.
        let leave = |pid: u32| {
            let announced = Announced::new_in(&folder, pid).unwrap();
            let kept = folder.join("kept");
            fs::hard_link(&announced.path, &kept).unwrap();
            let path = announced.path.clone();
            drop(announced);
            fs::rename(kept, path).unwrap();
        };
        file("9999991:0:1");
        let long_ago = SystemTime::now() - 2 * OPENING;
        let old = File::options().write(true).open(folder.join("9999991:0:1")).unwrap();
        old.set_modified(long_ago).unwrap();
        leave(9_999_991);
        file("9999991:0:0");
        let opening = Announced::new_in(&folder, 9_999_992).unwrap();
        file("9999992:0:0");
        leave(std::process::id());
        file(&format!("{}:0:0", std::process::id()));
        file("9999993:0:0");
        sweep_in(&folder);
        let is_there = |name: &str| folder.join(name).exists();
        assert!(!is_there("9999991:0:0"), "killed before its mark");
        assert!(is_there("9999991:0:1"), "older than the announcement");
        assert!(is_there("9999992:0:0") && opening.path.exists(), "being opened");
        assert!(is_there(&format!("{}:0:0", std::process::id())), "it lives");
        assert!(is_there("9999993:0:0"), "never announced: another program's");
        drop(opening);
        let names = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name());
        let announced = names.filter(|it| announced_by(it.to_str().unwrap()).is_some()).count();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(announced, 1, "that of the living process");
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
