//! Memory of this process as registered regions: what a bulk handle owns.

use std::{
    fmt,
    ops::RangeBounds,
    sync::{Arc, OnceLock},
};

use hg_na::{Address, Domain, Error, LocalSlice, Memory, Region, Rights};

use crate::{Descriptor, Place, Range, zeroed};

/// Registered memory. Dropping it unregisters it.
///
/// Memory of more segments than the transport takes at a time becomes several regions; memory without a
/// byte becomes none.
pub struct Local {
    regions: Vec<Region>,
    held: Held,
    len: u64,
    rights: Rights,
    writable: bool,
    owner: u64,
    plain: OnceLock<Descriptor>,
}

/// Memory that no region owns.
enum Held {
    /// The only region owns it all.
    Nothing,
    /// It has no byte.
    Null(Memory),
    /// The regions have parts of it.
    Whole(Arc<Memory>),
}

impl Local {
    /// Registers memory with the domain that `owner` numbers in this process.
    ///
    /// # Errors
    /// [`Error::Denied`] when the memory cannot grant these rights, [`Error::Limit`], [`Error::Unsupported`] for memory of a device
    /// that the domain does not reach.
    pub fn register(
        domain: &dyn Domain,
        owner: u64,
        memory: Memory,
        rights: Rights,
    ) -> Result<Self, Error> {
        let (len, writable) = (memory.len(), memory.writable());
        if rights.contains(Rights::WRITE) && !writable {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        if memory.device().is_some() && !domain.caps().device_memory {
            return Err(Error::Unsupported(
                "memory of a device over this transport: ofi+... with its setting device-memory may reach it",
            ));
        }
        let count = memory.segments().len();
        let at_once = domain.caps().max_segments.max(1);
        let (regions, held) = if len == 0 {
            (Vec::new(), Held::Null(memory))
        } else if count <= at_once {
            (vec![domain.register(memory, rights)?], Held::Nothing)
        } else {
            let whole = Arc::new(memory);
            let part = |first: usize| {
                let part = Memory::alias_part(&whole, first..count.min(first + at_once));
                domain.register(part, rights)
            };
            let regions = (0..count).step_by(at_once).map(part).collect::<Result<_, _>>()?;
            (regions, Held::Whole(whole))
        };
        Ok(Self { regions, held, len, rights, writable, owner, plain: OnceLock::new() })
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What others may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Whether bytes can arrive here.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Who registered it.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The transport's side of it.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Size of a region in bytes.
    pub(crate) fn region_len(&self, region: usize) -> Option<u64> {
        self.regions.get(region).map(Region::len)
    }

    /// A range of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(self: &Arc<Self>, range: impl RangeBounds<u64>) -> Result<Range, Error> {
        Range::new(self, range)
    }

    /// All of it.
    #[must_use]
    pub fn all(self: &Arc<Self>) -> Range {
        Range::all(self)
    }

    pub(crate) fn slice(&self, place: Place, len: u64) -> Result<LocalSlice, Error> {
        match self.regions.get(place.region) {
            Some(region) => region.slice(place.offset, len),
            None => Err(Error::OutOfRange { offset: place.offset, len, size: self.len }),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if let [region] = self.regions.as_slice() {
            return region.read(offset, into);
        }
        let mut rest = into;
        self.each_region(offset, rest.len(), |region, offset, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            rest = later;
            region.read(offset, now)
        })
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Denied`] for read-only memory.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if !self.writable {
            return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        if let [region] = self.regions.as_slice() {
            return region.write(offset, from);
        }
        let mut rest = from;
        self.each_region(offset, from.len(), |region, offset, len| {
            let (now, later) = rest.split_at(len);
            rest = later;
            region.write(offset, now)
        })
    }

    /// Calls `copy` with each region that a range touches, an offset in it, and a length.
    fn each_region(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&Region, u64, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange { offset, len: len as u64, size: self.len });
        }
        let (mut skip, mut left) = (offset, len);
        for region in &self.regions {
            if left == 0 {
                break;
            }
            let here = region.len().saturating_sub(skip);
            if here > 0 {
                let now = usize::try_from(here).unwrap_or(usize::MAX).min(left);
                copy(region, skip, now)?;
                left -= now;
            }
            skip = skip.saturating_sub(region.len());
        }
        Ok(())
    }

    /// What others need to reach it.
    #[must_use]
    pub fn descriptor(&self, scheme: &str) -> Descriptor {
        self.plain.get_or_init(|| self.describe(scheme, None)).clone()
    }

    /// The same with the owner's address, so that whoever holds it can look the owner up.
    #[must_use]
    pub fn bound_descriptor(&self, address: &Address) -> Descriptor {
        self.describe(address.scheme(), Some(address))
    }

    fn describe(&self, scheme: &str, owner: Option<&Address>) -> Descriptor {
        let regions = self.regions.iter().map(Region::descriptor).collect();
        Descriptor::of_regions(self.rights, scheme, owner, regions)
    }

    /// Its bytes as they are now, in a descriptor: for small memory that others only read. `None` when it
    /// is longer than `limit`, grants anything else, or cannot be read.
    #[must_use]
    pub fn eager_descriptor(&self, limit: u64, owner: Option<&Address>) -> Option<Descriptor> {
        if self.rights != Rights::READ || self.len == 0 || self.len > limit {
            return None;
        }
        let len = usize::try_from(self.len).ok()?;
        Descriptor::with_bytes(len, owner, |bytes| self.read(0, bytes)).ok()
    }

    /// Ends all access by others and gives the memory back, or a copy where a stopped peer stays in the
    /// middle of a transfer, or where a peer was given memory to map that is not frozen.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while an operation in flight uses it; it is then unregistered when that
    /// operation is dropped, and freed.
    pub fn unregister(self) -> Result<Memory, Error> {
        let given: Vec<Memory> =
            self.regions.into_iter().map(Region::unregister).collect::<Result<_, _>>()?;
        match self.held {
            Held::Null(memory) => Ok(memory),
            Held::Nothing => Ok(given.into_iter().next().expect("memory with bytes has a region")),
            Held::Whole(whole) => assemble(whole, given),
        }
    }
}

/// The memory whose parts were given back; a copy when a part is a copy.
fn assemble(whole: Arc<Memory>, parts: Vec<Memory>) -> Result<Memory, Error> {
    let same = parts.iter().flat_map(Memory::segments).eq(whole.segments());
    if same {
        drop(parts);
        return Arc::try_unwrap(whole).map_err(|_in_use| Error::RegionBusy);
    }
    // A transport holds on to a part and has given a copy of it.
    let mut copies = Vec::with_capacity(whole.segments().len());
    for part in &parts {
        let mut offset = 0;
        for segment in part.segments() {
            let len = segment.len as u64;
            copies.push(copy_out(part, offset, len)?);
            offset += len;
        }
    }
    Ok(Memory::from(copies))
}

/// The bytes of memory that is not registered.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn copy_of(memory: &Memory) -> Result<Vec<u8>, Error> {
    copy_out(memory, 0, memory.len())
}

fn copy_out(memory: &Memory, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
    let mut copy = zeroed(len)?;
    hg_na_memory::copy_out(memory, offset, &mut copy)?;
    Ok(copy)
}

impl fmt::Debug for Local {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Local({} bytes in {} regions, {:?})",
            self.len,
            self.regions.len(),
            self.rights
        )
    }
}
