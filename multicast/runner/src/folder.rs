//! A folder that nothing leads out of: every lookup is the kernel's, below the folder's own descriptor.
//!
//! `openat2` with `RESOLVE_BENEATH` follows a link only as long as each step of it stays below, whatever others do to the
//! tree meanwhile. What is then made, replaced or removed is one name in the folder so found, and never through a link.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{self, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec,
        Timestamps, UTIME_OMIT, fchmod, flock, fstat, futimens, mkdirat, openat2, renameat,
        renameat_with, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

use crate::path::{Below, SPOOL};

/// A folder and all that is below it.
#[derive(Debug)]
pub struct Folder {
    root: OwnedFd,
    path: PathBuf,
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A folder.
    Folder,
    /// A plain file of so many bytes.
    File(u64),
    /// A link, which is not followed.
    Link,
    /// A device, a socket or a pipe.
    Other,
}

impl Folder {
    /// Opens it; links on the way to it are followed: whoever names it may name any.
    ///
    /// # Errors
    /// There is none, it is no folder, or the system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = match rustix::fs::open(path, FOLDER.union(OFlags::RDONLY), Mode::empty()) {
            Err(Errno::NOENT) => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "is not there: make it first"));
            }
            Err(Errno::NOTDIR) => return Err(no_folder()),
            root => root?,
        };
        Ok(Self { root, path: path::absolute(path)? })
    }

    /// Keeps others from it, as long as this is there, who ask for the same.
    ///
    /// # Errors
    /// Another one has it, or the system's.
    pub fn lock(&self) -> io::Result<()> {
        match flock(&self.root, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => Err(io::Error::other("another receiver has this folder")),
            locked => Ok(locked?),
        }
    }

    /// Where something in it lies, for people.
    #[must_use]
    pub fn whole(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }

    /// Its own descriptor.
    #[must_use]
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// What lies there; `None`: nothing does.
    ///
    /// # Errors
    /// The way there leads out, or is no folder.
    pub fn look(&self, path: &Below) -> io::Result<Option<Found>> {
        let parent = match self.parent(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            parent => parent?,
        };
        match statat(&parent, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
            Ok(found) => Ok(Some(Found::of(&found))),
        }
    }

    /// Whether it is, or by a link leads to, a folder below this one.
    ///
    /// # Errors
    /// The way there leads out.
    pub fn is_folder(&self, path: &Below) -> io::Result<bool> {
        match self.at(Some(path)) {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a folder, which its owner alone may use until it gets its mode.
    ///
    /// # Errors
    /// The system's: the folder above is not there, or something has this name.
    pub fn make(&self, path: &Below) -> io::Result<()> {
        Ok(mkdirat(self.parent(path)?, path.name(), BARE)?)
    }

    /// Opens a plain file, to be read.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, path: &Below) -> io::Result<File> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(beneath(&self.parent(path)?, path.name(), how)?))
    }

    /// Gives a file that lies in another folder of this file system its name here. Whether it may replace what has it.
    ///
    /// # Errors
    /// The system's.
    pub fn place(&self, from: (&OwnedFd, &str), path: &Below, replaces: bool) -> io::Result<()> {
        let (parent, name) = (self.parent(path)?, path.name());
        if replaces {
            return Ok(renameat(from.0, from.1, &parent, name)?);
        }
        match renameat_with(from.0, from.1, &parent, name, RenameFlags::NOREPLACE) {
            // Not every file system can: somebody else's file that comes in this moment is lost there.
            Err(Errno::INVAL) if self.look(path)?.is_none() => {
                Ok(renameat(from.0, from.1, &parent, name)?)
            }
            placed => Ok(placed?),
        }
    }

    /// Makes a link in a folder of the caller's, and gives it its name as `place` does.
    ///
    /// # Errors
    /// The system's.
    pub fn link(
        &self,
        scratch: (&OwnedFd, &str),
        target: &[u8],
        path: &Below,
        replaces: bool,
    ) -> io::Result<()> {
        match unlinkat(scratch.0, scratch.1, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        symlinkat(OsStr::from_bytes(target), scratch.0, scratch.1)?;
        self.place(scratch, path, replaces)
    }

    /// Sets mode and time of a folder.
    ///
    /// # Errors
    /// The system's.
    pub fn dress(&self, path: &Below, mode: u32, mtime: Option<(i64, u32)>) -> io::Result<()> {
        dress(&File::from(self.open_below(path, FOLDER)?), mode, mtime)
    }

    /// Sets the mode of a folder that [`make`](Self::make) has made, as the caller knows, or as its mode says, for an interrupted copy.
    /// One that was there keeps its own: it may be private, or somebody else's.
    ///
    /// # Errors
    /// The system's.
    pub fn dress_made(&self, path: &Below, mode: u32, is_made: bool) -> io::Result<()> {
        let found = match self.open_below(path, FOLDER.union(OFlags::NOFOLLOW)) {
            // A link, or what this user may not read: neither was made so.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(());
            }
            found => File::from(found?),
        };
        let is_made = is_made || fstat(&found)?.st_mode & BITS == BARE.bits();
        if is_made { dress(&found, mode, None) } else { Ok(()) }
    }

    /// The file system of a path that is there or not, and of this folder: whether they are the same.
    ///
    /// # Errors
    /// The way there leads out.
    pub fn is_one_file_system(&self, path: &Below) -> io::Result<bool> {
        let mut above = path.parent();
        loop {
            match self.at(above.as_ref()) {
                Ok(found) => return Ok(fstat(found)?.st_dev == fstat(&self.root)?.st_dev),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            above = above.and_then(|path| path.parent());
        }
    }

    pub(crate) fn parent(&self, path: &Below) -> io::Result<OwnedFd> {
        self.at(path.parent().as_ref())
    }

    fn at(&self, path: Option<&Below>) -> io::Result<OwnedFd> {
        match path {
            None => Ok(self.root.try_clone()?),
            Some(path) => self.open_below(path, FOLDER.union(OFlags::PATH)),
        }
    }

    fn open_below(&self, path: &Below, how: OFlags) -> io::Result<OwnedFd> {
        let found = beneath(&self.root, path.as_path().as_os_str(), how)?;
        // No path is spelled so, but a link may be.
        match statat(&self.root, SPOOL, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            spool => {
                let (spool, found) = (spool?, fstat(&found)?);
                if (spool.st_dev, spool.st_ino) == (found.st_dev, found.st_ino) {
                    let why =
                        "a link on the way there leads to where files lie that are not whole yet";
                    return Err(io::Error::other(why));
                }
            }
        }
        Ok(found)
    }
}

impl Found {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Folder,
            FileType::RegularFile => Self::File(u64::try_from(stat.st_size).unwrap_or(0)),
            FileType::Symlink => Self::Link,
            _ => Self::Other,
        }
    }
}

pub(crate) fn no_folder() -> io::Error {
    io::Error::new(io::ErrorKind::NotADirectory, "is a file, not a folder")
}

/// Sets mode and time of an open file.
///
/// # Errors
/// The system's.
pub fn dress(file: &File, mode: u32, mtime: Option<(i64, u32)>) -> io::Result<()> {
    fchmod(file, Mode::from_raw_mode(mode))?;
    let Some((seconds, nanoseconds)) = mtime else { return Ok(()) };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Ok(futimens(file, &Timestamps { last_access, last_modification })?)
}

fn beneath(folder: &OwnedFd, path: &OsStr, how: OFlags) -> io::Result<OwnedFd> {
    let bounds = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(folder, path, how, Mode::empty(), bounds) {
            // Somebody renamed a folder while the kernel looked: it says rather nothing than something wrong.
            Err(Errno::AGAIN) => {}
            Err(Errno::XDEV) => {
                return Err(io::Error::other("a link on the way there leads out of the folder"));
            }
            Err(Errno::NOSYS) => {
                let why = "the kernel has no openat2, which keeps a receiver in its folder: Linux 5.6 has";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            opened => return Ok(opened?),
        }
    }
    Err(io::Error::from(Errno::AGAIN))
}

/// Of a folder until it gets its mode: nobody gives a folder this one, in which the sticky bit has no meaning.
const BARE: Mode = Mode::RWXU.union(Mode::SVTX);
/// Of modes: without those that a folder takes over from the one above it.
const BITS: u32 = 0o1777;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// Lookups while others rename folders.
const TRIES: usize = 128;

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;
    use crate::test_folder::TestFolder;

    fn below(path: &str) -> Below {
        Below::new(path).unwrap()
    }

    #[test]
    fn a_link_that_leads_out_is_not_followed_on_the_way_nor_at_the_end() {
        let (inside, outside) = (TestFolder::new(), TestFolder::new());
        fs::write(outside.0.join("secret"), "theirs").unwrap();
        let up = format!("../{}", outside.0.file_name().unwrap().display());
        symlink(&outside.0, inside.0.join("absolute")).unwrap();
        symlink(up, inside.0.join("relative")).unwrap();
        symlink("/proc/self/root", inside.0.join("magic")).unwrap();
        symlink(outside.0.join("secret"), inside.0.join("file")).unwrap();
        let folder = Folder::open(&inside.0).unwrap();
        for way in ["absolute", "relative", "magic"] {
            let path = below(&format!("{way}/new"));
            let said = folder.make(&path).unwrap_err().to_string();
            assert!(said.contains("leads out"), "{way}: {said}");
            assert!(
                folder.look(&path).is_err()
                    && folder.read(&below(&format!("{way}/secret"))).is_err()
            );
            let from = (folder.root(), "file");
            assert!(
                folder.place(from, &path, true).is_err()
                    && folder.place(from, &path, false).is_err()
            );
            assert!(folder.dress(&below(way), 0o777, None).is_err());
        }
        assert!(folder.read(&below("file")).is_err());
        assert_eq!(folder.look(&below("file")).unwrap(), Some(Found::Link));
        assert_eq!(outside.names(), ["secret"]);
    }

    #[test]
    fn a_link_that_stays_inside_is_a_way_like_any_other() {
        let inside = TestFolder::new();
        fs::create_dir_all(inside.0.join("real/deep")).unwrap();
        symlink("real/deep", inside.0.join("short")).unwrap();
        let folder = Folder::open(&inside.0).unwrap();
        folder.make(&below("short/new")).unwrap();
        assert!(
            inside.0.join("real/deep/new").is_dir() && folder.is_folder(&below("short")).unwrap()
        );
    }

    #[test]
    fn folders_that_are_swapped_for_links_during_a_lookup_lead_nowhere_else() {
        let (inside, outside) = (TestFolder::new(), TestFolder::new());
        fs::create_dir(inside.0.join("way")).unwrap();
        symlink(&outside.0, inside.0.join("link")).unwrap();
        let mode = || fs::metadata(&outside.0).unwrap().permissions().mode();
        let (folder, before) = (Folder::open(&inside.0).unwrap(), mode());
        let (way, swap, is_over) = (below("way"), RenameFlags::EXCHANGE, AtomicBool::new(false));
        thread::scope(|scope| {
            // Relaxed: it ends a little later, or at once.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(&folder.root, "way", &folder.root, "link", swap).unwrap();
                }
            });
            let (mut well, mut refused) = (0, 0);
            while well.min(refused) < 200 {
                let path = below(&format!("way/{well}-{refused}"));
                fs::write(inside.0.join("new"), "").unwrap();
                for done in [
                    folder.look(&path).map(drop),
                    folder.place((&folder.root, "new"), &path, well % 2 == 0),
                    folder.make(&below(&format!("{path}-folder"))),
                    folder.dress(&way, 0o711, None),
                    folder.dress_made(&way, 0o711, false),
                ] {
                    match done {
                        Ok(()) => well += 1,
                        Err(error) if error.to_string().contains("leads out") => refused += 1,
                        Err(_) => {}
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!((outside.names(), mode()), (Vec::new(), before));
    }

    #[test]
    fn a_folder_that_is_swapped_for_a_link_gives_its_mode_to_no_other_one() {
        let inside = TestFolder::new();
        for name in ["way", "private"] {
            fs::create_dir(inside.0.join(name)).unwrap();
        }
        fs::set_permissions(inside.0.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("private", inside.0.join("link")).unwrap();
        let folder = Folder::open(&inside.0).unwrap();
        let (way, swap, is_over) = (below("way"), RenameFlags::EXCHANGE, AtomicBool::new(false));
        let made = File::from(folder.open_below(&way, FOLDER).unwrap());
        thread::scope(|scope| {
            // Relaxed: it ends a little later, or at once.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(&folder.root, "way", &folder.root, "link", swap).unwrap();
                }
            });
            let mut dressed = 0;
            while dressed < 20_000 {
                fchmod(&made, BARE).unwrap();
                folder.dress_made(&way, 0o711, false).unwrap();
                dressed += u32::from(fstat(&made).unwrap().st_mode & BITS == 0o711);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let private = fs::metadata(inside.0.join("private")).unwrap();
        assert_eq!(private.permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn what_is_there_is_replaced_only_where_that_is_asked_for_and_a_link_itself_not_what_it_points_to()
     {
        let inside = TestFolder::new();
        for (name, text) in [("old", "old"), ("new", "new"), ("pointed", "kept")] {
            fs::write(inside.0.join(name), text).unwrap();
        }
        symlink("pointed", inside.0.join("link")).unwrap();
        let folder = Folder::open(&inside.0).unwrap();
        let refused = folder.place((folder.root(), "new"), &below("old"), false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        folder.place((folder.root(), "new"), &below("link"), true).unwrap();
        assert_eq!(fs::read_to_string(inside.0.join("pointed")).unwrap(), "kept");
        assert_eq!(folder.look(&below("link")).unwrap(), Some(Found::File(3)));
    }
}
