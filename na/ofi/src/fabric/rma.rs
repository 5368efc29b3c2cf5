//! One-sided operations (`fi_rma`): memory that is lent to a peer, and moves between own memory and a peer's.
//!
//! The provider's registration mode is honoured: [`grant_of`] says what a peer is told of a registration, [`register`]
//! what the library is. Each registration covers one run of memory: no provider has to take more than one segment.
//! Memory that the library may still touch is kept alive here, whatever becomes of its region.
//! Keys are random, as long as the provider takes them, where this side chooses them: whoever reaches the endpoint and guesses one reads or
//! writes what is lent. A provider that chooses its keys (`FI_MR_PROV_KEY`) answers for them.

use std::{ffi::c_void, mem, ptr};

use hg_na::{Device, Segment};
use hg_na_link::Grant;
use hg_na_memory::Held;
use hg_na_parts::regions;
use libfabric_sys::{self as sys, calls};

use crate::fabric::{
    Fault,
    endpoint::{Endpoint, Event},
    frames::Frames,
    handles::Handle,
    offer::Limits,
    shares::Shares,
};

/// Keys of the frames are not above this.
const FRAME_KEYS: u64 = 2;
/// `FI_ENOKEY`: of a registration whose key another one has.
const NO_KEY: i32 = 266;
/// Keys that are tried for a registration where they are so short that two may be the same.
const KEYS_TRIED: usize = 64;
/// Moves of all peers together, but for the first one of each.
const MOVES_MAX: usize = 64;
/// Places for moves. libfabric's shm (1.17) never tells of some that were under way to a process that is killed: nobody
/// knows whether it still has their contexts, so that their places are lost until the endpoint is closed. When all are,
/// bytes travel in frames.
const PLACES: usize = 4096;
/// Registrations that the library has refused to close, from which on nothing more is lent: bytes travel in frames.
pub(super) const UNCLOSED_MAX: usize = 64;

/// What a peer needs to reach a registered run, as the registration mode says: a virtual address, or 0 (`FI_MR_VIRT_ADDR`), and the
/// provider's key, or what it was asked for.
fn grant_of(mr_mode: i32, run: Segment, key: u64) -> Grant {
    let is_virtual = mr_mode & sys::MR_VIRT_ADDR != 0;
    Grant { address: if is_virtual { run.address as u64 } else { 0 }, key }
}

/// Registered memory of a peer's use, or of a move's own.
#[derive(Debug)]
struct Lent {
    region: Handle<sys::FidMr>,
    /// Stays until the registration was closed; there until it is dropped.
    memory: Option<Held>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(fault) = self.region.close() {
            tracing::error!(%fault, "libfabric did not close a registration: its memory is never freed");
            self.region.leave_open();
            mem::forget(self.memory.take());
        }
    }
}

/// A move under way.
#[derive(Debug)]
struct Move {
    note: u64,
    peer: u64,
    /// Its peer's address was removed.
    is_lost: bool,
    local: Option<Lent>,
    _memory: Held,
}

/// The one-sided side of an endpoint.
#[derive(Debug)]
pub(crate) struct OneSided {
    /// The numbers of lent memory are places here.
    lent: Vec<Option<Lent>>,
    moves: Vec<Option<Move>>,
    /// What the library has refused to close; tried again behind the endpoint.
    unclosed: Vec<Lent>,
    /// Those that are not lost.
    shares: Shares,
    /// Only their contexts are used: they name moves.
    contexts: Frames,
    mr_mode: i32,
    /// Bytes of a key.
    key_size: usize,
    /// Of a move to a peer's memory.
    flags: u64,
}

impl OneSided {
    /// `is_copied`: the provider copies at once, and delivers in order.
    ///
    /// libfabric's shm does, unless it is asked to wait for the peer's word. One that was killed never gives that, and
    /// then whatever else waits for a word waits for ever, or libfabric (1.17) looks for it in memory that is gone.
    pub(crate) fn new(limits: Limits, is_copied: bool) -> Self {
        let delivery = if is_copied { 0 } else { sys::DELIVERY_COMPLETE };
        Self {
            flags: sys::COMPLETION | delivery,
            lent: Vec::new(),
            unclosed: Vec::new(),
            moves: (0..PLACES).map(|_| None).collect(),
            shares: Shares::new(MOVES_MAX),
            contexts: Frames::new(PLACES, 1),
            mr_mode: limits.mr_mode,
            key_size: limits.mr_key_size,
        }
    }

    /// A move has completed.
    pub(crate) fn completed(
        &mut self,
        context: *mut c_void,
        fault: Option<Fault>,
    ) -> Option<Event> {
        let place = self.contexts.find(context).filter(|place| self.contexts.is_lent(*place))?;
        self.contexts.take_back(place);
        let mut ended = self.moves[place].take()?;
        if let Some(local) = ended.local.take() {
            self.end(local);
        }
        if !ended.is_lost {
            self.shares.remove(ended.peer);
        }
        Some(Event::Moved(ended.note, fault))
    }

    /// Ends a registration. Where the library refuses, its memory is kept: somebody may still write to it.
    fn end(&mut self, mut lent: Lent) {
        if let Err(fault) = lent.region.close() {
            tracing::error!(%fault, "libfabric does not close a registration: its memory is kept");
            self.unclosed.push(lent);
        }
    }

    /// All that are open.
    pub(super) fn registrations(&mut self) -> impl Iterator<Item = &mut Handle<sys::FidMr>> {
        let local = self.moves.iter_mut().flatten().filter_map(|it| it.local.as_mut());
        let lent = self.lent.iter_mut().flatten().chain(local).chain(&mut self.unclosed);
        lent.map(|it| &mut it.region)
    }

    /// An address is removed: what is still under way to it counts no more.
    pub(crate) fn lose(&mut self, address: u64) {
        let moves = self.moves.iter_mut().flatten();
        for lost in moves.filter(|it| it.peer == address && !it.is_lost) {
            lost.is_lost = true;
        }
        self.shares.forget(address);
    }
}

impl Endpoint {
    /// Registers a run of memory for a peer's access: to be written, or to be read. Answers its number, for
    /// [`Endpoint::revoke`], and what the peer needs.
    ///
    /// # Errors
    /// Whatever the library says.
    pub(crate) fn lend(
        &mut self,
        memory: &Held,
        run: Segment,
        is_written: bool,
    ) -> Result<(usize, Grant), Fault> {
        if self.one_sided.as_ref().is_none_or(|side| side.unclosed.len() >= UNCLOSED_MAX) {
            return Err(unsupported());
        }
        let access = if is_written { sys::REMOTE_WRITE } else { sys::REMOTE_READ };
        let (region, key) = self.register_run((run, memory.device()), access)?;
        let Some(side) = &mut self.one_sided else { return Err(unsupported()) };
        let grant = grant_of(side.mr_mode, run, key);
        let place = side.lent.iter().position(Option::is_none).unwrap_or(side.lent.len());
        let lent = Some(Lent { region, memory: Some(memory.clone()) });
        if place == side.lent.len() {
            side.lent.push(lent);
        } else {
            side.lent[place] = lent;
        }
        Ok((place, grant))
    }

    /// Ends a peer's access.
    pub(crate) fn revoke(&mut self, number: usize) {
        let Some(side) = &mut self.one_sided else { return };
        if let Some(lent) = side.lent[number].take() {
            side.end(lent);
        }
    }

    /// Moves a run of own memory to a peer's (`to_peer`), or the other way; an [`Event::Moved`] with the note
    /// follows, when the bytes are where they belong.
    ///
    /// # Errors
    /// A [`Fault`] that [is no more than "not now"](Fault::is_again), or a worse one.
    pub(crate) fn move_run(
        &mut self,
        (peer, grant): (u64, Grant),
        (memory, run): (&Held, Segment),
        to_peer: bool,
        note: u64,
    ) -> Result<(), Fault> {
        let near = self.near_to(peer);
        let _held = match &near {
            Some(near) => Some(near.hold().ok_or(Fault::new("fi_write", nix::libc::EHOSTDOWN))?),
            None => None,
        };
        if !self.may_send(peer) {
            return Err(Fault::new("fi_write", sys::errno::AGAIN));
        }
        let side = self.one_sided.as_ref().ok_or_else(unsupported)?;
        if !side.shares.may_add(peer) {
            return Err(Fault::new("fi_write", sys::errno::AGAIN));
        }
        // All lost: no waiting helps.
        let free = side.moves.iter().position(Option::is_none);
        let place = free.ok_or(Fault::new("fi_write", nix::libc::ENOSPC))?;
        let device = memory.device();
        let is_local = side.mr_mode & sys::MR_LOCAL != 0 || device.is_some();
        let local = if is_local {
            let access = if to_peer { sys::WRITE } else { sys::READ };
            let (region, _) = self.register_run((run, device), access)?;
            Some(Lent { region, memory: Some(memory.clone()) })
        } else {
            None
        };
        let descriptor = local.as_ref().map_or(ptr::null_mut(), |lent| {
            // SAFETY:
            // - open; the field is set when it is registered.
            unsafe { (*lent.region.raw()).mem_desc }
        });
        let Some(side) = &mut self.one_sided else { return Err(unsupported()) };
        let (_, context) = side.contexts.lend(place);
        let result = self.start_move((peer, grant), run, to_peer, (descriptor, context));
        let Some(side) = &mut self.one_sided else { return Err(unsupported()) };
        if let Err(fault) = result {
            side.contexts.take_back(place);
            return Err(fault);
        }
        let (is_lost, _memory) = (false, memory.clone());
        side.moves[place] = Some(Move { note, peer, is_lost, local, _memory });
        side.shares.add(peer);
        Ok(())
    }

    fn start_move(
        &mut self,
        (peer, grant): (u64, Grant),
        run: Segment,
        to_peer: bool,
        (mut descriptor, context): (*mut c_void, *mut c_void),
    ) -> Result<(), Fault> {
        let bytes: *mut c_void = ptr::with_exposed_provenance_mut(run.address);
        let own = sys::Iovec { iov_base: bytes, iov_len: run.len };
        let theirs = sys::RmaIov { addr: grant.address, len: run.len, key: grant.key };
        let message = sys::MsgRma {
            msg_iov: &raw const own,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            rma_iov: &raw const theirs,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        if !to_peer {
            // SAFETY:
            // - open; the memory is kept by the move until it has completed, or the endpoint is closed.
            // - the description is read before this returns.
            let result = unsafe { calls::readmsg(self.raw(), &raw const message, sys::COMPLETION) };
            return Fault::check("fi_readmsg", i64::try_from(result).unwrap_or(-1));
        }
        // Complete when the bytes are there: what is said afterwards arrives after them.
        let flags = self.one_sided.as_ref().ok_or_else(unsupported)?.flags;
        // SAFETY:
        // - as above; the description is read before this returns.
        let result = unsafe { calls::writemsg(self.raw(), &raw const message, flags) };
        Fault::check("fi_writemsg", i64::try_from(result).unwrap_or(-1))
    }

    /// Registers one run. Answers the key, too.
    fn register_run(
        &mut self,
        (run, device): (Segment, Option<Device>),
        access: u64,
    ) -> Result<(Handle<sys::FidMr>, u64), Fault> {
        let Some(OneSided { mr_mode, key_size, .. }) = self.one_sided else {
            return Err(unsupported());
        };
        let bytes: *const c_void = ptr::with_exposed_provenance(run.address);
        let mut tries = 0;
        let (region, wanted) = loop {
            let key = random_key(key_size)?;
            let memory = (bytes, run.len, device);
            match register(self.domain(), self.ep(), memory, access, (mr_mode, key)) {
                // Another one has that key.
                Err(fault) if fault.number == NO_KEY && tries < KEYS_TRIED => tries += 1,
                region => break (region?, key),
            }
        };
        let key = if mr_mode & sys::MR_PROV_KEY != 0 {
            // SAFETY:
            // - open; the field is set when it is registered, or enabled.
            unsafe { (*region.raw()).key }
        } else {
            wanted
        };
        if key == sys::KEY_NOTAVAIL {
            return Err(unsupported());
        }
        Ok((region, key))
    }
}

/// A key that nobody guesses, of so many bytes at most. Never one of the frames' ([`Endpoint::open`]), nor what stands for none.
fn random_key(size: usize) -> Result<u64, Fault> {
    let bits = u32::try_from(size.clamp(1, 8) * 8).unwrap_or(u64::BITS);
    loop {
        let random = regions::random().map_err(|_| Fault::new("getrandom", nix::libc::EAGAIN))?;
        let key = u64::from_le_bytes(*random.first_chunk().expect("16 bytes hold 8"));
        let key = key >> (u64::BITS - bits);
        if key > FRAME_KEYS && key != sys::KEY_NOTAVAIL {
            return Ok(key);
        }
    }
}

fn unsupported() -> Fault {
    Fault::new("fi_mr_reg", nix::libc::EOPNOTSUPP)
}

/// Registers memory with a domain, as the mode says: bound to the endpoint and enabled where it asks for that
/// (`FI_MR_ENDPOINT`). The memory exists (`FI_MR_ALLOCATED`).
pub(crate) fn register(
    domain: &Handle<sys::FidDomain>,
    ep: &Handle<sys::FidEp>,
    (base, len, device): (*const c_void, usize, Option<Device>),
    access: u64,
    (mr_mode, key): (i32, u64),
) -> Result<Handle<sys::FidMr>, Fault> {
    let mut region = ptr::null_mut();
    let result = match device {
        // SAFETY:
        // - open; the memory stays until the region was closed: who calls this sees to it.
        None => unsafe { calls::mr_reg(domain.raw(), base, len, access, key, &raw mut region) },
        Some(device) => {
            let run = sys::Iovec { iov_base: base.cast_mut(), iov_len: len };
            let attr = attr_of(&run, access, key, device);
            // SAFETY:
            // - as above; the attributes are read before this returns.
            unsafe { calls::mr_regattr(domain.raw(), &raw const attr, &raw mut region) }
        }
    };
    Fault::check("fi_mr_reg", result)?;
    // SAFETY:
    // - just opened; the domain is closed later.
    let region: Handle<sys::FidMr> = unsafe { Handle::new(region) };
    if mr_mode & sys::MR_ENDPOINT != 0 {
        // SAFETY:
        // - open objects of one domain.
        let result = unsafe { calls::bind(region.fid(), ep.fid(), 0) };
        Fault::check("fi_mr_bind", result)?;
        // SAFETY:
        // - bound.
        let result = unsafe { calls::enable(region.fid()) };
        Fault::check("fi_mr_enable", result)?;
    }
    Ok(region)
}

/// How memory of a device is registered.
pub(super) fn attr_of(run: &sys::Iovec, access: u64, key: u64, device: Device) -> sys::MrAttr {
    let (iface, number) = match device {
        Device::Cuda(number) => (sys::HMEM_CUDA, number),
        Device::LevelZero(number) => (sys::HMEM_ZE, number),
        _ => (sys::HMEM_ROCR, 0),
    };
    let mut union = [0; 8];
    union[..4].copy_from_slice(&number.to_ne_bytes());
    sys::MrAttr {
        mr_iov: run,
        iov_count: 1,
        access,
        offset: 0,
        requested_key: key,
        context: ptr::null_mut(),
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
        iface,
        device: u64::from_ne_bytes(union),
        later: [0; 8],
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use hg_na::Memory;

    use super::*;
    use crate::fabric::{Form, Wanted, offers};

    #[test]
    fn a_grant_is_a_virtual_address_or_an_offset_as_the_mode_says() {
        let run = Segment { address: 0x7000, len: 64 };
        let grant = grant_of(sys::MR_VIRT_ADDR | sys::MR_ALLOCATED, run, 5);
        assert_eq!(grant, Grant { address: 0x7000, key: 5 });
        assert_eq!(grant.at(8).address, 0x7008);
        let grant = grant_of(sys::MR_LOCAL | sys::MR_PROV_KEY, run, 9);
        assert_eq!(grant, Grant { address: 0, key: 9 });
        assert_eq!(grant.at(8), Grant { address: 8, key: 9 });
    }

    /// Two endpoints, each knowing the other, with a registration mode that demands more than the provider's does.
    pub(in crate::fabric) fn pair(provider: &str, further: i32) -> Option<[(Endpoint, u64); 2]> {
        let source = (provider != "shm").then(|| "127.0.0.1".parse().unwrap());
        let wanted =
            Wanted { provider: Some(provider), source, one_sided: true, ..Wanted::default() };
        let all = offers(wanted).unwrap();
        let offer = all.iter().find(|it| it.provider.starts_with(provider))?;
        let mut ends = [0, 1].map(|_| Endpoint::open(offer, Form::of(4096)).unwrap());
        for end in &mut ends {
            end.one_sided.as_mut().unwrap().mr_mode |= further;
        }
        let names = [ends[1].name().to_vec(), ends[0].name().to_vec()];
        let [mut one, mut other] = ends;
        let there = [one.insert(&names[0]).unwrap(), other.insert(&names[1]).unwrap()];
        Some([(one, there[0]), (other, there[1])])
    }

    /// Moves from the first one's memory to the second one's, or back, and says with what it ended.
    pub(in crate::fabric) fn moved(
        pair: &mut [(Endpoint, u64); 2],
        own: &Held,
        grant: Grant,
        to_peer: bool,
    ) -> Option<Fault> {
        let run = own.segments()[0];
        let mut events = Vec::new();
        let mut is_handed = false;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            assert!(std::time::Instant::now() < end, "the move does not end");
            if !is_handed {
                let there = pair[0].1;
                match pair[0].0.move_run((there, grant), (own, run), to_peer, 77) {
                    Ok(()) => is_handed = true,
                    Err(fault) if fault.is_again() => {}
                    Err(fault) => return Some(fault),
                }
            }
            for (end, _) in pair.iter_mut() {
                end.poll(&mut events).unwrap();
            }
            if let Some(fault) = events.drain(..).find_map(|event| match event {
                Event::Moved(77, fault) => Some(fault),
                _ => None,
            }) {
                return fault;
            }
        }
    }

    #[test]
    fn memory_is_moved_both_ways_in_every_mode_and_not_with_a_wrong_key() {
        const LEN: usize = 100_000;
        for provider in ["tcp", "shm"] {
            for further in [0, sys::MR_LOCAL, sys::MR_PROV_KEY, sys::MR_LOCAL | sys::MR_ALLOCATED] {
                let Some(mut pair) = pair(provider, further) else { continue };
                if !pair[0].0.reaches_memory_of(pair[0].1) {
                    continue; // Within a process, later versions of shm are not used at all.
                }
                let memory = [7, 1, 0].map(|byte| Arc::new(Memory::from(vec![byte; LEN])));
                let [own, lent, back] = memory.each_ref().map(|it| Held::from(Arc::clone(it)));
                let run = lent.segments()[0];
                let (number, grant) = pair[1].0.lend(&lent, run, true).unwrap();
                assert_eq!(moved(&mut pair, &own, grant, true), None, "{provider} {further}");
                pair[1].0.revoke(number);
                let (number, grant) = pair[1].0.lend(&lent, run, false).unwrap();
                assert_eq!(moved(&mut pair, &back, grant, false), None, "{provider} {further}");
                pair[1].0.revoke(number);
                if provider == "tcp" {
                    let wrong = Grant { key: grant.key + 1000, ..grant };
                    assert!(
                        moved(&mut pair, &own, wrong, true).is_some(),
                        "{provider}: a forged key"
                    );
                }
                drop((pair, own, lent, back));
                for memory in memory {
                    let bytes = Arc::try_unwrap(memory).unwrap().into_vec().unwrap();
                    assert!(bytes == vec![7; LEN], "{provider} {further}");
                }
            }
        }
    }

    #[test]
    fn moves_wait_for_places_that_come_back_and_are_refused_when_all_are_lost() {
        let Some([(mut one, there), _other]) = pair("tcp", 0) else { panic!("no tcp") };
        let memory = Held::from(Arc::new(Memory::from(vec![0; 64])));
        let run = memory.segments()[0];
        let lost =
            |note| Move { note, peer: there, is_lost: false, local: None, _memory: memory.clone() };
        let side = one.one_sided.as_mut().unwrap();
        while side.shares.may_add(there) {
            side.shares.add(there);
        }
        let grant = Grant { address: 0, key: 1 };
        let fault = one.move_run((there, grant), (&memory, run), true, 5).unwrap_err();
        assert!(fault.is_again(), "{fault}");
        let side = one.one_sided.as_mut().unwrap();
        let places = side.moves.len() as u64;
        side.moves = (0..places).map(|note| Some(lost(note))).collect();
        side.lose(there);
        assert!(side.shares.may_add(there) && side.moves.iter().flatten().all(|it| it.is_lost));
        let fault = one.move_run((there, grant), (&memory, run), true, 5).unwrap_err();
        assert!(!fault.is_again(), "{fault}");
    }

    #[test]
    fn moves_to_one_that_takes_nothing_leave_places_to_others() {
        let (Some(mut pair), Some([_, (mut friend, _)])) = (pair("tcp", 0), pair("tcp", 0)) else {
            panic!("no tcp")
        };
        let [own, stopped_s, friend_s] =
            [1, 0, 0].map(|byte| Held::from(Arc::new(Memory::from(vec![byte; 100]))));
        let (_, grant) = pair[1].0.lend(&stopped_s, stopped_s.segments()[0], true).unwrap();
        assert!(moved(&mut pair, &own, grant, true).is_none(), "they are connected");
        let [(mut one, stopped), _takes_nothing] = pair;
        let (run, mut events, mut note) = (own.segments()[0], Vec::new(), 0);
        while one.move_run((stopped, grant), (&own, run), true, note).is_ok() {
            note += 1;
        }
        assert!(note > 1, "as many as it may have");
        let address = one.insert(friend.name()).unwrap();
        let (_, grant) = friend.lend(&friend_s, friend_s.segments()[0], true).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let (last, mut is_handed) = (1000, false);
        while !events.iter().any(|it| matches!(it, Event::Moved(1000, None))) {
            assert!(std::time::Instant::now() < end, "held up by one that takes nothing");
            is_handed |=
                !is_handed && one.move_run((address, grant), (&own, run), true, last).is_ok();
            one.poll(&mut events).unwrap();
            friend.poll(&mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn nobody_guesses_a_key_and_none_is_a_frame_s() {
        for (size, most) in [(1, 0xFF), (2, 0xFFFF), (4, u64::from(u32::MAX)), (8, u64::MAX)] {
            let keys: Vec<_> = (0..200).map(|_| random_key(size).unwrap()).collect();
            assert!(keys.iter().all(|key| *key > FRAME_KEYS && *key <= most), "{size}: {keys:?}");
            assert!(keys.iter().any(|key| *key > most / 2), "{size}: {keys:?}");
        }
        let Some(mut pair) = pair("tcp", 0) else { panic!("no tcp") };
        let memory = [1, 0].map(|byte| Arc::new(Memory::from(vec![byte; 100])));
        let [own, lent] = memory.each_ref().map(|it| Held::from(Arc::clone(it)));
        let run = lent.segments()[0];
        let (number, grant) = pair[1].0.lend(&lent, run, true).unwrap();
        // Where others that count begin, and those beside a key that is known.
        for key in [0, 1, 2, 3, 16, 17, grant.key ^ 1, grant.key.wrapping_add(1)] {
            let guess = Grant { address: 0, key };
            assert!(moved(&mut pair, &own, guess, true).is_some(), "{key:x}");
        }
        pair[1].0.revoke(number);
        drop((pair, own, lent));
        let [_, lent] = memory.map(|it| Arc::try_unwrap(it).unwrap().into_vec().unwrap());
        assert_eq!(lent, [0; 100]);
    }

    #[test]
    fn short_keys_that_are_taken_are_not_asked_for_again_and_again() {
        let Some([(mut one, _), _other]) = pair("tcp", 0) else { panic!("no tcp") };
        one.one_sided.as_mut().unwrap().key_size = 1;
        let memory = Held::from(Arc::new(Memory::from(vec![0; 64])));
        let run = memory.segments()[0];
        let lent: Vec<_> = (0..100).map(|_| one.lend(&memory, run, false)).collect();
        assert!(lent.iter().all(Result::is_ok), "{lent:?}");
    }
}
