//! Where files lie that are not whole yet: one folder, `.multicast-cp`, in the one that a receiver was started with.
//!
//! A file's name there is made of the name that it is to get, so that a later copy to the same name finds what an
//! interrupted one has left. Whatever a receiver finds there that it is not offered again it removes, and the folder itself
//! when nothing is left in it: a kill leaves files in one place, until the next copy.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
};

use rustix::{
    fs::{
        AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, Stat, fallocate, fchmod, flock,
        fstat, ftruncate, mkdirat, openat, statat, unlinkat,
    },
    io::Errno,
};
use twox_hash::XxHash3_128;

pub use crate::path::SPOOL as NAME;
use crate::{folder::Folder, path::Below};

/// The folder, which one receiver has at a time.
#[derive(Debug)]
pub struct Spool {
    root: OwnedFd,
    fd: OwnedFd,
    /// Of the folder, and of all files in it that count.
    owner: u32,
}

impl Spool {
    /// Makes it, or takes the one over that another receiver has left.
    ///
    /// # Errors
    /// Another receiver has it, it is not this user's alone, or the system's.
    pub fn open(folder: &Folder) -> io::Result<Self> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match mkdirat(folder.root(), NAME, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let fd = match openat(folder.root(), NAME, how, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                fd => fd?,
            };
            match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => {
                    return Err(io::Error::other("another receiver is at work in this folder"));
                }
                locked => locked?,
            }
            // Whoever had it may have removed it before it was locked here.
            let is_there = statat(folder.root(), NAME, AtFlags::SYMLINK_NOFOLLOW);
            let own = fstat(&fd)?;
            if !is_there.is_ok_and(|there| own.st_ino == there.st_ino) {
                continue;
            }
            // Dropped, and so removed if it is empty, where it is refused.
            let this = Self { root: folder.root().try_clone()?, fd, owner: own.st_uid };
            // What lies in it gets names: nobody else may change it meanwhile.
            if !is_own_alone(&own, this.owner_of_files()?) {
                let why = "is somebody else's, or others may change it: remove it, or receive into another folder";
                return Err(io::Error::other(why));
            }
            return Ok(this);
        }
    }

    /// That of files that are made here, if they can be: servers of files know this process's user by another number, or as nobody.
    fn owner_of_files(&self) -> io::Result<Option<u32>> {
        // A receiver that was killed has left it.
        let _ = unlinkat(&self.fd, PROBE, AtFlags::empty());
        let owner = match openat(&self.fd, PROBE, FILE.union(OFlags::EXCL), WRITABLE) {
            Err(Errno::ACCESS) => return Ok(None),
            file => fstat(file?)?.st_uid,
        };
        unlinkat(&self.fd, PROBE, AtFlags::empty())?;
        Ok(Some(owner))
    }

    /// Its descriptor.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The name here of a file that is to get another one.
    #[must_use]
    pub fn name_of(path: &Below) -> String {
        format!("{:032x}", XxHash3_128::oneshot(path.bytes()))
    }

    /// Removes all but these.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_only(&self, names: &HashSet<String>) -> io::Result<()> {
        for name in self.names()? {
            if !names.contains(&name) {
                unlinkat(&self.fd, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// What lies here.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.fd)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names = entries.collect::<io::Result<Vec<_>>>()?;
        Ok(names.into_iter().filter(|name| !matches!(name.as_str(), "." | "..")).collect())
    }

    /// What an earlier copy has left of a file of this size, whatever mode it was to have. Links count for nothing, nor does
    /// what is somebody else's, or cannot be read.
    ///
    /// # Errors
    /// The system's.
    pub fn left(&self, name: &str, size: u64) -> io::Result<Option<File>> {
        match openat(&self.fd, name, LEFT, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP | Errno::ACCESS) => Ok(None),
            file => {
                let file = File::from(file?);
                let metadata = file.metadata()?;
                let is_own = metadata.uid() == self.owner;
                if !is_own || !metadata.is_file() || metadata.len() != size {
                    return Ok(None);
                }
                fchmod(&file, WRITABLE)?;
                Ok(Some(file))
            }
        }
    }

    /// A file of this size whose bytes do not matter yet, with room on the disk for all of them.
    ///
    /// # Errors
    /// The disk is full, the file is somebody else's, or the system's.
    pub fn start(&self, name: &str, size: u64) -> io::Result<File> {
        let file = File::from(openat(&self.fd, name, FILE, WRITABLE)?);
        let stat = fstat(&file)?;
        if stat.st_uid != self.owner {
            return Err(io::Error::other("somebody else's file lies where it is to be written"));
        }
        if u64::try_from(stat.st_size) != Ok(size) {
            ftruncate(&file, 0)?;
        }
        if size > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, size) {
                // Not every file system can: it says later that it is full.
                Err(Errno::OPNOTSUPP) => ftruncate(&file, size)?,
                allocated => allocated?,
            }
        }
        Ok(file)
    }

    /// Removes one.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // What is left in it is for the next copy.
        let _ = unlinkat(&self.root, NAME, AtFlags::REMOVEDIR);
    }
}

/// Whether a folder in which files get this owner is this user's, and nobody else may change it.
fn is_own_alone(folder: &Stat, owner_of_files: Option<u32>) -> bool {
    owner_of_files == Some(folder.st_uid) && folder.st_mode & 0o22 == 0
}

const LEFT: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const FILE: OFlags = LEFT.union(OFlags::RDWR).union(OFlags::CREATE);
/// A name that no file here gets.
const PROBE: &str = "owner";
const WRITABLE: Mode = Mode::RUSR.union(Mode::WUSR);

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;
    use crate::test_folder::{TestFolder, as_ordinary_user, give_away};

    #[test]
    fn one_receiver_has_it_at_a_time_and_it_goes_when_nothing_is_left_in_it() {
        let test = TestFolder::new();
        let folder = Folder::open(&test.0).unwrap();
        let spool = Spool::open(&folder).unwrap();
        assert!(Spool::open(&folder).unwrap_err().to_string().contains("another receiver"));
        spool.start("a", 10).unwrap();
        drop(spool);
        let spool = Spool::open(&folder).unwrap();
        assert_eq!(spool.names().unwrap(), ["a"]);
        spool.keep_only(&HashSet::new()).unwrap();
        drop(spool);
        assert!(test.names().is_empty());
    }

    #[test]
    fn one_that_others_may_write_into_is_not_taken_over() {
        let test = TestFolder::new();
        let folder = Folder::open(&test.0).unwrap();
        let refused = || Spool::open(&folder).unwrap_err().to_string();
        let place = test.0.join(NAME);
        fs::create_dir(&place).unwrap();
        fs::write(place.join("a"), "12345").unwrap();
        for mode in [0o777, 0o720, 0o702] {
            fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
            assert!(refused().contains("somebody else"), "{mode:o}");
        }
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
        if give_away(&place) {
            assert!(refused().contains("somebody else"));
            assert!(as_ordinary_user(refused).contains("somebody else"));
        }
    }

    /// As servers of files give them, of which some know nobody by his number, and some no modes.
    #[test]
    fn it_is_this_user_s_where_it_has_the_owner_that_files_there_get() {
        let test = TestFolder::new();
        let mut stat = fstat(Folder::open(&test.0).unwrap().root()).unwrap();
        for (owner, mode, is_own) in [
            (7, 0o700, true),
            (7, 0o755, true),
            (8, 0o700, false),
            (7, 0o775, false),
            (7, 0o702, false),
        ] {
            (stat.st_uid, stat.st_mode) = (owner, 0o040_000 | mode);
            assert_eq!(is_own_alone(&stat, Some(7)), is_own, "{owner} {mode:o}");
        }
        assert!(!is_own_alone(&stat, None));
    }

    #[test]
    fn one_that_others_may_read_is_taken_over() {
        let test = TestFolder::new();
        let place = test.0.join(NAME);
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
        let folder = Folder::open(&test.0).unwrap();
        let spool = Spool::open(&folder).unwrap();
        assert!(spool.names().unwrap().is_empty());
    }

    #[test]
    fn one_that_is_refused_as_soon_as_it_was_made_does_not_stay() {
        let test = TestFolder::new();
        let (place, is_over) = (test.0.join(NAME), AtomicBool::new(false));
        let folder = Folder::open(&test.0).unwrap();
        thread::scope(|scope| {
            // As a file system does that gives rights to all. Relaxed: it ends a little later, or at once.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = fs::set_permissions(&place, Permissions::from_mode(0o777));
                }
            });
            while Spool::open(&folder).is_ok() {}
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(test.names().is_empty());
    }

    #[test]
    fn a_file_of_somebody_else_is_none_and_gets_no_name() {
        let test = TestFolder::new();
        let folder = Folder::open(&test.0).unwrap();
        let spool = Spool::open(&folder).unwrap();
        let file = test.0.join(NAME).join("a");
        fs::write(&file, "12345").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        if give_away(&file) {
            as_ordinary_user(|| {
                assert!(spool.left("a", 5).unwrap().is_none());
                assert!(spool.start("a", 5).unwrap_err().to_string().contains("somebody else"));
            });
            assert_eq!(fs::read(file).unwrap(), b"12345");
        }
    }

    #[test]
    fn what_is_left_counts_only_with_the_size_that_is_asked_for() {
        let test = TestFolder::new();
        let folder = Folder::open(&test.0).unwrap();
        let spool = Spool::open(&folder).unwrap();
        fs::write(test.0.join(NAME).join("a"), "12345").unwrap();
        assert!(spool.left("a", 5).unwrap().is_some() && spool.left("a", 6).unwrap().is_none());
        assert!(spool.left("b", 5).unwrap().is_none());
        drop(spool.start("a", 5).unwrap());
        assert_eq!(fs::read(test.0.join(NAME).join("a")).unwrap(), b"12345");
        drop(spool.start("a", 6).unwrap());
        assert_eq!(fs::read(test.0.join(NAME).join("a")).unwrap(), [0; 6]);
    }

    #[test]
    fn a_link_that_leads_into_it_is_no_way_for_what_is_copied() {
        let test = TestFolder::new();
        let folder = Folder::open(&test.0).unwrap();
        let spool = Spool::open(&folder).unwrap();
        std::os::unix::fs::symlink(NAME, test.0.join("x")).unwrap();
        fs::write(test.0.join("file"), "").unwrap();
        let below = |path: &str| Below::new(path).unwrap();
        let refused = [
            folder.make(&below("x/d")),
            folder.place((folder.root(), "file"), &below("x/file"), true),
            folder.look(&below("x/d")).map(drop),
            folder.dress(&below("x"), 0, None),
        ];
        assert!(spool.names().unwrap().is_empty(), "a folder there could not be removed");
        for refused in refused {
            assert!(refused.unwrap_err().to_string().contains("not whole yet"));
        }
    }

    #[test]
    fn a_link_of_its_name_is_not_followed() {
        let (test, outside) = (TestFolder::new(), TestFolder::new());
        std::os::unix::fs::symlink(&outside.0, test.0.join(NAME)).unwrap();
        assert!(Spool::open(&Folder::open(&test.0).unwrap()).is_err());
        assert!(outside.names().is_empty());
    }
}
