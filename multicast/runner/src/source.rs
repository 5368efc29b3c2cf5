//! The sender's files: what there is below the paths that it was given, and their blocks.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use serde_bytes::ByteBuf;

use crate::{
    offer::{Entry, Offer, Sum, Trouble, What},
    path::Below,
};

/// Everything that is copied, and where each entry lies here.
#[derive(Debug)]
pub struct Source {
    /// The entries, in the order of those of the offer.
    pub entries: Vec<Entry>,
    /// Where each lies.
    pub places: Vec<PathBuf>,
    /// When each was changed last, its times among it: who sets those back does not set this one.
    changed: Vec<(i64, i64)>,
}

impl Source {
    /// Looks at all of them; folders, and all that is in them, where `recursive` says so. A link that was named is followed, one
    /// inside a folder is copied as a link.
    ///
    /// # Errors
    /// One is not there, or cannot be copied: the path says which.
    pub fn gather(paths: &[PathBuf], recursive: bool) -> Result<Self, Trouble> {
        let mut this = Self { entries: Vec::new(), places: Vec::new(), changed: Vec::new() };
        for path in paths {
            let trouble = |why: &dyn std::fmt::Display| Trouble::new(path.display(), why);
            let metadata = fs::metadata(path).map_err(|error| trouble(&error))?;
            if metadata.is_dir() && !recursive {
                return Err(trouble(&"is a folder: --recursive copies it, and all that is in it"));
            }
            // `.` and `a/..` have names, too.
            let real = fs::canonicalize(path).map_err(|error| trouble(&error))?;
            let name = path.file_name().or_else(|| real.file_name());
            let name = name.ok_or_else(|| trouble(&"has no name that a copy could get"))?;
            let name = Below::new(name.as_bytes()).map_err(|why| trouble(&why))?;
            this.add(path, name, &metadata)?;
        }
        Ok(this)
    }

    fn add(&mut self, place: &Path, path: Below, metadata: &Metadata) -> Result<(), Trouble> {
        let trouble = |why: &dyn std::fmt::Display| Trouble::new(place.display(), why);
        let kind = metadata.file_type();
        let what = if kind.is_dir() {
            What::Folder
        } else if kind.is_file() {
            // As those of `/proc`, which know it only when they are read.
            let is_longer = || File::open(place)?.read(&mut [0]);
            if metadata.len() == 0 && is_longer().map_err(|error| trouble(&error))? > 0 {
                let why = "has bytes, although its length is said to be 0: copy it to a file of its own first";
                return Err(trouble(&why));
            }
            What::File(metadata.len())
        } else if kind.is_symlink() {
            let target = fs::read_link(place).map_err(|error| trouble(&error))?;
            What::Link(ByteBuf::from(target.as_os_str().as_bytes()))
        } else {
            return Err(trouble(
                &"is neither a file nor a folder nor a link, and cannot be copied: leave it out, or remove it",
            ));
        };
        let mtime = (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0));
        let is_folder = what == What::Folder;
        self.entries.push(Entry {
            path: path.clone(),
            what,
            mode: metadata.mode() & 0o7777,
            mtime,
        });
        self.places.push(place.to_owned());
        self.changed.push((metadata.ctime(), metadata.ctime_nsec()));
        if !is_folder {
            return Ok(());
        }
        let inside = fs::read_dir(place).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut inside = inside.map_err(|error| trouble(&error))?;
        inside.sort_by_key(fs::DirEntry::file_name);
        for entry in inside {
            let place = entry.path();
            let trouble = |why: &dyn std::fmt::Display| Trouble::new(place.display(), why);
            let path = [path.bytes(), b"/", entry.file_name().as_bytes()].concat();
            let path = Below::new(path).map_err(|why| trouble(&why))?;
            let metadata = fs::symlink_metadata(&place).map_err(|error| trouble(&error))?;
            self.add(&place, path, &metadata)?;
        }
        Ok(())
    }

    /// Opens a file, as it was when it was looked at.
    ///
    /// # Errors
    /// It has changed since, or the system's.
    pub fn open(&self, entry: u32) -> Result<File, Trouble> {
        let file = File::open(self.place(entry)).map_err(|error| self.trouble(entry, error))?;
        self.check(entry, &file)?;
        Ok(file)
    }

    /// Whether a file is still as it was when it was looked at.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, entry: u32, file: &File) -> Result<(), Trouble> {
        let metadata = file.metadata().map_err(|error| self.trouble(entry, error))?;
        let known = &self.entries[entry as usize];
        let mtime = (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0));
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let is_same = known.mtime == mtime && self.changed[entry as usize] == changed;
        if known.what != What::File(metadata.len()) || !is_same {
            return Err(self.trouble(entry, "has changed while it was copied"));
        }
        Ok(())
    }

    /// The sums of all blocks of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn sums(&self, offer: &Offer, entry: u32) -> Result<Vec<Sum>, Trouble> {
        let What::File(size) = self.entries[entry as usize].what else { return Ok(Vec::new()) };
        let (file, mut bytes) = (self.open(entry)?, vec![0; offer.block as usize]);
        let ranges = (0..).map_while(|block| offer.range(size, block));
        let sum = |(from, len): (u64, usize)| {
            file.read_exact_at(&mut bytes[..len], from)
                .map_err(|error| self.trouble(entry, error))?;
            Ok(Sum::of(&bytes[..len]))
        };
        ranges.map(sum).collect()
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let size = |entry: &Entry| if let What::File(size) = entry.what { size } else { 0 };
        self.entries.iter().map(size).sum()
    }

    /// Where an entry lies.
    #[must_use]
    pub fn place(&self, entry: u32) -> &Path {
        &self.places[entry as usize]
    }

    fn trouble(&self, entry: u32, why: impl std::fmt::Display) -> Trouble {
        Trouble::new(self.place(entry).display(), why)
    }
}
