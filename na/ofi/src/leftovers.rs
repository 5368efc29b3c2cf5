//! Memory that libfabric's `shm` leaves behind in /dev/shm when a process is killed.
//!
//! Each endpoint of that provider has a file `PID:UID:NUMBER` there, which libfabric removes when it closes. Whoever sees a peer die removes
//! the peer's ([`clear_up`]). When all processes have died at once, the next that opens an endpoint does ([`sweep`]).

use std::{
    fs, io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _, unix::fs::OpenOptionsExt as _},
    path::Path,
};

use nix::{libc, unistd::geteuid};

/// Where POSIX shared memory is.
pub(crate) const FOLDER: &str = "/dev/shm";
/// The kernel's number of the command (asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

/// Removes the memory of a peer that was killed. Its endpoint's address is a claim: only what bears the number of a
/// dead process is touched.
pub(crate) fn clear_up(name: &[u8]) {
    let Some(name) = file_of(name) else { return };
    if is_dead(&name) && fs::remove_file(Path::new(FOLDER).join(&name)).is_ok() {
        tracing::debug!(%name, "removed what a killed process has left behind");
    }
}

/// Removes this user's files of endpoints in a folder that no process maps: also none in another namespace of process ids, where the
/// number in the name says nothing.
pub(crate) fn sweep(folder: &Path) {
    let own = geteuid().as_raw();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_own = |it: fs::Metadata| it.is_file() && it.uid() == own;
        if !name.to_str().is_some_and(is_name) || !entry.metadata().is_ok_and(is_own) {
            continue;
        }
        if is_abandoned(&entry.path()) && fs::remove_file(entry.path()).is_ok() {
            tracing::debug!(?name, "removed what killed processes have left behind");
        }
    }
}

/// Nobody has it open or mapped: the kernel grants a write lease of it (`F_SETLEASE`, fcntl(2)), which goes back at once. Whoever opens it
/// in between asks for it with a signal; `SIGURG` is one that a process does not notice.
#[expect(unsafe_code, reason = "fcntl(2) of leases, which has no wrapper")]
fn is_abandoned(path: &Path) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = fs::OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    let fd = file.as_raw_fd();
    let asks = |command, number: libc::c_int| {
        // SAFETY:
        // - open; the commands take numbers.
        unsafe { libc::fcntl(fd, command, number) == 0 }
    };
    asks(F_SETSIG, libc::SIGURG) && asks(libc::F_SETLEASE, libc::F_WRLCK)
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
    use std::{fs::File, path::PathBuf};

    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    /// A folder of shared memory, removed with what is in it.
    struct Folder(PathBuf);

    impl Folder {
        fn file(&self, name: &str) -> File {
            let path = self.0.join(name);
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            file.set_len(4096).unwrap();
            file
        }

        fn names(&self) -> Vec<String> {
            let all = fs::read_dir(&self.0).unwrap().map(|it| it.unwrap().file_name());
            let mut all: Vec<_> = all.map(|it| it.into_string().unwrap()).collect();
            all.sort();
            all
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "memory of a file that nobody has open")]
    fn files_of_endpoints_that_nobody_maps_are_swept() {
        let folder = Folder(format!("{FOLDER}/hg-sweep-{}", std::process::id()).into());
        fs::create_dir(&folder.0).unwrap();
        // None of these is the number of a living process, as in another namespace.
        let [mapped, open] = ["99999999:0:0", "99999999:0:1"].map(|name| folder.file(name));
        for name in ["99999999:0:2", "somebody-else-s", "99999999:0"] {
            drop(folder.file(name));
        }
        let (len, protection) =
            (4096.try_into().unwrap(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY:
        // - a new mapping, of which nothing is read.
        let bytes =
            unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &mapped, 0) }.unwrap();
        drop(mapped);
        sweep(&folder.0);
        let kept = ["99999999:0", "99999999:0:0", "99999999:0:1", "somebody-else-s"];
        assert_eq!(folder.names(), kept);
        drop(open);
        // SAFETY:
        // - as it was mapped.
        unsafe { munmap(bytes, 4096) }.unwrap();
        sweep(&folder.0);
        assert_eq!(folder.names(), ["99999999:0", "somebody-else-s"]);
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
