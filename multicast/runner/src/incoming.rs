//! A copy on the receiver's side: what is there of it already, blocks that come in any order, and names for what is whole.
//!
//! ```text
//!   begin(offer) -> what is held -> settle(what of it is right) -> take(part)... -> finish
//! ```
//! A file is written in the [spool], with each block at its place, and gets its name when all of its blocks are there, sum up
//! to what the sender says, have reached the disk, and are read there as they came. What an interrupted copy has left is read and summed block by block: nothing beside the bytes
//! themselves says that they have come. A receiver that is dropped before the end leaves what it has to the next one.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{fstatvfs, readlinkat, syncfs};

use crate::{
    folder::{Folder, Found, dress, no_folder},
    offer::{Entry, Held, Offer, Sum, Trouble, What},
    part::Reader,
    path::Below,
    spool::{self, Spool},
};

/// A copy that comes.
#[derive(Debug)]
pub struct Incoming {
    folder: Folder,
    spool: Spool,
    offer: Offer,
    umask: u32,
    /// Of each entry.
    paths: Vec<Below>,
    states: Vec<State>,
    /// Folders that were made: not every file system keeps the mode that says so.
    made: HashSet<Below>,
    open: Option<(u32, File)>,
    /// Bytes of blocks that came.
    received: u64,
}

/// How far an entry is.
#[derive(Debug)]
enum State {
    /// Nothing is there that counts. Folders and links remain so until they are made.
    Missing,
    /// A file of its name and size is there.
    Target,
    /// Blocks lie in the spool.
    Begun(Vec<Option<Sum>>),
    /// It has its name.
    Whole,
}

impl Incoming {
    /// Looks what is there. `umask` takes bits away from modes that are not preserved.
    ///
    /// # Errors
    /// The offer makes no sense, or something is in its way: the path says where.
    pub fn begin(folder: Folder, offer: Offer, umask: u32) -> Result<(Self, Vec<Held>), Trouble> {
        offer.check()?;
        let spool = Spool::open(&folder);
        let spool = spool.map_err(|why| Trouble::new(folder.whole(spool::NAME).display(), why))?;
        let path = |entry: &Entry| {
            let path = entry.path.within(offer.into.as_ref());
            path.map_err(|why| Trouble::new(folder.whole(entry.path.as_path()).display(), why))
        };
        let paths = offer.entries.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        let states = paths.iter().map(|_| State::Missing).collect();
        let (made, open) = (HashSet::new(), None);
        let mut this = Self { folder, spool, offer, umask, paths, states, made, open, received: 0 };
        this.check_way()?;
        let mut held = Vec::new();
        for entry in 0..this.count() {
            let looked = this.look(entry).map_err(|why| this.trouble(entry, why))?;
            held.extend(looked);
        }
        this.clear().map_err(|why| this.trouble_at(spool::NAME, why))?;
        this.check_room()?;
        Ok((this, held))
    }

    /// What the sender says about what is held: these files are what they should be, and those will not come, so that nothing is in
    /// their way. Makes folders and links.
    ///
    /// # Errors
    /// A file is there that is another one and may not be replaced, or the system's.
    pub fn settle(&mut self, same: &[u32], lost: &[u32]) -> Result<(), Trouble> {
        let [same, lost] = [same, lost].map(|it| it.iter().copied().collect::<HashSet<u32>>());
        self.make_way().map_err(|(path, why)| self.trouble_at(path.as_path(), why))?;
        for entry in (0..self.count()).filter(|entry| !lost.contains(entry)) {
            let made = self.settle_one(entry, same.contains(&entry));
            made.map_err(|why| self.trouble(entry, why))?;
        }
        Ok(())
    }

    /// Takes what came.
    ///
    /// # Errors
    /// It is no part of this copy, it is damaged, or the system's: the disk is full.
    pub fn take(&mut self, part: &[u8]) -> Result<(), Trouble> {
        let malformed = |why| Trouble::new("a part of the copy", why);
        let reader = Reader::new(part).map_err(malformed)?;
        for block in reader.blocks(&self.offer).map_err(malformed)? {
            self.received += block.bytes.len() as u64;
            if matches!(self.state(block.entry), State::Whole) {
                continue;
            }
            let taken = if Sum::of(block.bytes) == block.sum {
                self.write(block.entry, block.from, block.bytes)
            } else {
                Err(io::Error::other("a block has arrived damaged"))
            };
            taken.map_err(|why| self.trouble(block.entry, why))?;
            if let State::Begun(sums) = &mut self.states[block.entry as usize] {
                sums[block.block as usize] = Some(block.sum);
            }
        }
        self.end(&reader.ends(&self.offer).map_err(malformed)?)
    }

    /// All that comes has come: folders that were made get their modes and times, and nothing is left beside what was copied.
    ///
    /// # Errors
    /// A file has not come whole, or the system's.
    pub fn finish(self) -> Result<(), Trouble> {
        let is_whole = |state: &State| matches!(state, State::Whole);
        let lost = self.states.iter().position(|state| !is_whole(state));
        // What is in a folder changes its time, so those inside come first.
        for entry in (0..self.count()).rev() {
            let (path, mode) = (self.path(entry), self.mode(entry, FOLDER_BITS));
            let dressed = match self.entry(entry).what {
                // The next copy has to be able to write there.
                What::Folder if lost.is_some() && mode & 0o200 == 0 => continue,
                What::Folder if self.offer.preserve => {
                    self.folder.dress(path, mode, self.mtime(entry))
                }
                What::Folder => self.folder.dress_made(path, mode, self.made.contains(path)),
                What::File(_) | What::Link(_) => continue,
            };
            dressed.map_err(|why| self.trouble(entry, why))?;
        }
        match lost {
            Some(entry) => Err(self.trouble_at(self.paths[entry].as_path(), "has not come whole")),
            None => Ok(()),
        }
    }

    /// Bytes of blocks that have come so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// What is held of an entry.
    fn look(&mut self, entry: u32) -> io::Result<Vec<Held>> {
        let path = self.path(entry).clone();
        if !self.folder.is_one_file_system(&path)? {
            return Err(io::Error::other(
                "lies on another file system than the receiver's folder: start a receiver there",
            ));
        }
        let found = self.folder.look(&path)?;
        let in_the_way = |is: &str| Err(io::Error::other(format!("{is} of this name is there")));
        match (&self.entry(entry).what, found) {
            (What::Folder, None | Some(Found::Folder)) => return Ok(Vec::new()),
            (What::Folder, Some(Found::Link)) if self.folder.is_folder(&path)? => {
                return Ok(Vec::new());
            }
            (What::Folder, Some(_)) => return in_the_way("something else than a folder"),
            (_, Some(Found::Folder)) => return in_the_way("a folder"),
            (What::Link(target), Some(Found::Link)) if self.points(&path, target)? => {
                self.states[entry as usize] = State::Whole;
                return Ok(Vec::new());
            }
            (What::File(size), Some(Found::File(len))) if *size == len => {}
            (_, Some(_)) if !self.offer.force => return Err(other_file()),
            _ => {}
        }
        let What::File(size) = self.entry(entry).what else { return Ok(Vec::new()) };
        let mut held = Vec::new();
        if let Some(left) = self.spool.left(&Spool::name_of(&path), size)? {
            held.push(self.held(entry, size, &left, false)?);
            let sums = held[0].sums.iter().copied().map(Some).collect();
            self.states[entry as usize] = State::Begun(sums);
        }
        if found == Some(Found::File(size)) {
            held.push(self.held(entry, size, &self.folder.read(&path)?, true)?);
            if held.len() == 1 {
                self.states[entry as usize] = State::Target;
            }
        }
        Ok(held)
    }

    /// The sums of what lies there.
    fn held(&self, entry: u32, size: u64, file: &File, is_target: bool) -> io::Result<Held> {
        let mut bytes = vec![0; self.offer.block as usize];
        let ranges = (0..).map_while(|block| self.offer.range(size, block));
        let sum = |(from, len): (u64, usize)| {
            file.read_exact_at(&mut bytes[..len], from)?;
            Ok(Sum::of(&bytes[..len]))
        };
        Ok(Held { entry, is_target, sums: ranges.map(sum).collect::<io::Result<_>>()? })
    }

    fn points(&self, path: &Below, target: &[u8]) -> io::Result<bool> {
        let parent = self.folder.parent(path)?;
        Ok(readlinkat(parent, path.name(), Vec::new())?.as_bytes() == target)
    }

    /// Removes what an interrupted copy has left that is not offered again.
    fn clear(&self) -> io::Result<()> {
        let begun = self.states.iter().zip(&self.paths);
        let names = begun.filter(|(state, _)| matches!(state, State::Begun(_)));
        self.spool.keep_only(&names.map(|(_, path)| Spool::name_of(path)).collect())
    }

    /// Whether the disk has room for what is missing.
    fn check_room(&self) -> Result<(), Trouble> {
        let missing = self.offer.entries.iter().zip(&self.states);
        let size = |(entry, state): (&Entry, &State)| match (&entry.what, state) {
            (What::File(size), State::Missing) => *size,
            _ => 0,
        };
        let needed = missing.map(size).fold(0, u64::saturating_add);
        let disk = fstatvfs(self.folder.root())
            .map_err(|why| self.trouble_at("", io::Error::from(why)))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed > free {
            let why =
                format!("the disk is too full: {needed} bytes are to come, and {free} are free");
            return Err(self.trouble_at("", why));
        }
        Ok(())
    }

    /// The folder that all of it goes into, and those above it, from the top.
    fn way(&self) -> Vec<Below> {
        let mut way: Vec<Below> = Vec::new();
        let mut next = self.offer.into.clone();
        while let Some(folder) = next {
            next = folder.parent();
            way.push(folder);
        }
        way.reverse();
        way
    }

    /// Whether no file is where a folder on the way is to be.
    fn check_way(&self) -> Result<(), Trouble> {
        for folder in self.way() {
            let trouble = |why| self.trouble_at(folder.as_path(), why);
            if let Some(Found::File(_) | Found::Other) =
                self.folder.look(&folder).map_err(trouble)?
            {
                return Err(trouble(no_folder()));
            }
        }
        Ok(())
    }

    /// Makes them.
    fn make_way(&mut self) -> Result<(), (Below, io::Error)> {
        for folder in self.way() {
            let (made, mode) = (self.make_folder(&folder), 0o777 & !self.umask);
            let is_made = self.made.contains(&folder);
            let made = made.and_then(|()| self.folder.dress_made(&folder, mode, is_made));
            made.map_err(|error| (folder, error))?;
        }
        Ok(())
    }

    fn make_folder(&mut self, path: &Below) -> io::Result<()> {
        if !self.folder.is_folder(path)? {
            self.folder.make(path)?;
            self.made.insert(path.clone());
        }
        Ok(())
    }

    fn settle_one(&mut self, entry: u32, is_same: bool) -> io::Result<()> {
        let path = self.path(entry).clone();
        match (&self.entry(entry).what, self.state(entry)) {
            (What::Folder, _) => {
                self.make_folder(&path)?;
                self.states[entry as usize] = State::Whole;
            }
            (What::Link(_), State::Whole) => {}
            (What::Link(target), _) => {
                let scratch = (self.spool.fd(), Spool::name_of(&path));
                let scratch = (scratch.0, scratch.1.as_str());
                self.folder.link(scratch, target, &path, self.offer.force)?;
                self.states[entry as usize] = State::Whole;
            }
            (What::File(_), State::Missing | State::Whole) => {}
            (What::File(size), State::Target | State::Begun(_)) => {
                let is_there = self.folder.look(&path)? == Some(Found::File(*size));
                if is_same && is_there {
                    self.keep(entry, &path)?;
                } else if is_there && !self.offer.force {
                    return Err(other_file());
                } else if matches!(self.state(entry), State::Target) {
                    self.states[entry as usize] = State::Missing;
                }
            }
        }
        Ok(())
    }

    /// A file that is there already is what it should be.
    fn keep(&mut self, entry: u32, path: &Below) -> io::Result<()> {
        if matches!(self.state(entry), State::Begun(_)) {
            self.spool.remove(&Spool::name_of(path))?;
        }
        if self.offer.preserve {
            dress(&self.folder.read(path)?, self.mode(entry, FILE_BITS), self.mtime(entry))?;
        }
        self.states[entry as usize] = State::Whole;
        Ok(())
    }

    fn write(&mut self, entry: u32, from: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(entry)?.write_all_at(bytes, from)
    }

    /// The file in the spool, which is begun where it is not.
    fn file(&mut self, entry: u32) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != entry) {
            let What::File(size) = self.entry(entry).what else {
                unreachable!("a part has blocks of files only")
            };
            let file = self.spool.start(&Spool::name_of(self.path(entry)), size)?;
            if !matches!(self.state(entry), State::Begun(_)) {
                let blocks = self.offer.blocks(size) as usize;
                self.states[entry as usize] = State::Begun(vec![None; blocks]);
            }
            self.open = Some((entry, file));
        }
        Ok(&self.open.as_ref().expect("set above").1)
    }

    /// All of these files has been sent: they get their names, if they are what they should be.
    fn end(&mut self, ends: &[(u32, Sum)]) -> Result<(), Trouble> {
        for (entry, sum) in ends {
            self.check_sums(*entry, *sum).map_err(|why| self.trouble(*entry, why))?;
        }
        let is_many = ends.len() > SYNCED_EACH;
        if is_many {
            let synced = syncfs(self.spool.fd());
            synced.map_err(|why| self.trouble_at(spool::NAME, io::Error::from(why)))?;
        }
        for (entry, _) in ends {
            let named = self.name(*entry, is_many);
            named.map_err(|why| self.trouble(*entry, why))?;
        }
        Ok(())
    }

    /// Whether all blocks of a file have come, and sum up to this.
    fn check_sums(&mut self, entry: u32, sum: Sum) -> io::Result<()> {
        if matches!(self.state(entry), State::Whole) {
            return Ok(());
        }
        self.file(entry)?;
        let (sums, size) = self.begun(entry);
        let sums: Option<Vec<Sum>> = sums.iter().copied().collect();
        let sums = sums.ok_or_else(|| io::Error::other("some of its blocks have not come"))?;
        if Sum::of_file(size, &sums) != sum {
            return Err(io::Error::other("its checksum is wrong"));
        }
        Ok(())
    }

    /// Gives a file mode, time and name once it is on the disk, and what is read there is what has come.
    fn name(&mut self, entry: u32, is_synced: bool) -> io::Result<()> {
        if matches!(self.state(entry), State::Whole) {
            return Ok(());
        }
        self.file(entry)?;
        let (_, file) = self.open.take().expect("opened above");
        if !is_synced {
            file.sync_all()?;
        }
        let (sums, size) = self.begun(entry);
        let there = self.held(entry, size, &file, false)?.sums;
        if !there.iter().map(Some).eq(sums.iter().map(Option::as_ref)) {
            return Err(io::Error::other("what lies there is not what was written"));
        }
        // Not earlier: it may be a mode with which its owner cannot open it again.
        dress(&file, self.mode(entry, FILE_BITS), self.mtime(entry))?;
        let path = self.path(entry);
        let placed =
            self.folder.place((self.spool.fd(), &Spool::name_of(path)), path, self.offer.force);
        placed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                io::Error::other("another file of this name has come meanwhile")
            }
            _ => error,
        })?;
        self.states[entry as usize] = State::Whole;
        Ok(())
    }

    /// The sums of a file's blocks that have come, and its size.
    fn begun(&self, entry: u32) -> (&[Option<Sum>], u64) {
        match (self.state(entry), &self.entry(entry).what) {
            (State::Begun(sums), What::File(size)) => (sums, *size),
            _ => unreachable!("a file that was opened is begun"),
        }
    }

    fn trouble(&self, entry: u32, why: impl fmt::Display) -> Trouble {
        self.trouble_at(self.path(entry).as_path(), why)
    }

    fn trouble_at(&self, path: impl AsRef<Path>, why: impl fmt::Display) -> Trouble {
        // Without a slash behind the folder itself.
        let place: PathBuf = self.folder.whole(path).components().collect();
        Trouble::new(place.display(), why)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.paths.len()).expect("the offer was checked")
    }

    fn entry(&self, entry: u32) -> &Entry {
        &self.offer.entries[entry as usize]
    }

    fn path(&self, entry: u32) -> &Below {
        &self.paths[entry as usize]
    }

    fn state(&self, entry: u32) -> &State {
        &self.states[entry as usize]
    }

    /// Set-user and set-group bits are not passed on: the owner is another one.
    fn mode(&self, entry: u32, bits: u32) -> u32 {
        let mode = self.entry(entry).mode & bits;
        if self.offer.preserve { mode } else { mode & 0o777 & !self.umask }
    }

    fn mtime(&self, entry: u32) -> Option<(i64, u32)> {
        self.offer.preserve.then(|| self.entry(entry).mtime)
    }
}

/// Files of a part that are brought to the disk one by one; more of them all at once, with whatever else is on its way there.
const SYNCED_EACH: usize = 8;
/// Of modes.
const FILE_BITS: u32 = 0o777;
const FOLDER_BITS: u32 = 0o1777;

fn other_file() -> io::Error {
    io::Error::other("another file of this name is there (--force replaces it)")
}

/// Blocks that are held of each entry, for whoever looks them up.
#[must_use]
pub fn by_entry(held: &[Held]) -> HashMap<(u32, bool), &[Sum]> {
    held.iter().map(|held| ((held.entry, held.is_target), &held.sums[..])).collect()
}

#[cfg(test)]
mod tests;
