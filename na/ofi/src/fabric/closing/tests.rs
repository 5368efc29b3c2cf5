//! Tests of endpoints over objects of libfabric's whose tables of functions are replaced: by ones that watch in which order objects are
//! closed and refuse where some provider would, and by ones that take a message and lose it.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{Arc, Weak},
};

use hg_na::Memory;
use hg_na_memory::Held;
use libfabric_sys as sys;

use crate::fabric::{
    Endpoint, Event, Form, Handed, Wanted, frames::FREED, offers, rma::UNCLOSED_MAX,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Registration,
    Endpoint,
}

/// What a provider refuses to close.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Refuses {
    #[default]
    Nothing,
    /// An endpoint with registrations: cxi.
    EndpointsInUse,
    /// A registration of an open endpoint: fi_mr(3).
    RegistrationsInUse,
    Endpoints,
    Registrations,
}

type Close = unsafe extern "C" fn(*mut sys::Fid) -> c_int;

#[derive(Default)]
struct Watch {
    refuses: Refuses,
    originals: HashMap<usize, (Kind, Close)>,
    closed: Vec<Kind>,
}

impl Watch {
    fn open(&self, kind: Kind) -> usize {
        let watched = self.originals.values().filter(|(it, _)| *it == kind).count();
        watched - self.closed.iter().filter(|it| **it == kind).count()
    }

    fn refuses(&self, kind: Kind) -> bool {
        match (self.refuses, kind) {
            (Refuses::EndpointsInUse, Kind::Endpoint) => self.open(Kind::Registration) > 0,
            (Refuses::RegistrationsInUse, Kind::Registration) => self.open(Kind::Endpoint) > 0,
            (Refuses::Endpoints, Kind::Endpoint) => true,
            (Refuses::Registrations, Kind::Registration) => true,
            _ => false,
        }
    }
}

thread_local! {
    static WATCH: RefCell<Watch> = RefCell::default();
    /// The context of the message that was lost last.
    static LOST: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
}

unsafe extern "C" fn watched_close(object: *mut sys::Fid) -> c_int {
    WATCH.with_borrow_mut(|watch| {
        let (kind, original) = watch.originals[&object.addr()];
        if watch.refuses(kind) {
            return -nix::libc::EBUSY;
        }
        watch.closed.push(kind);
        // SAFETY:
        // - the object's own function, called once.
        unsafe { original(object) }
    })
}

/// A copy of a table of functions, for ever. Each begins with its size in bytes.
///
/// # Safety
/// It is a table of libfabric's, of which `T` declares the beginning.
pub(in crate::fabric) unsafe fn copied<T>(table: *const T) -> *mut T {
    // SAFETY:
    // - the caller's.
    let size = unsafe { *table.cast::<usize>() };
    let copy =
        vec![0usize; size.max(size_of::<T>()).div_ceil(size_of::<usize>())].leak().as_mut_ptr();
    // SAFETY:
    // - so many bytes are there, in both.
    unsafe { ptr::copy_nonoverlapping(table.cast::<u8>(), copy.cast::<u8>(), size) };
    copy.cast()
}

fn watch(object: *mut sys::Fid, kind: Kind) {
    // SAFETY:
    // - open.
    let ops = unsafe { (*object).ops };
    // SAFETY:
    // - every object has this table.
    let ops = unsafe { copied(ops) };
    // SAFETY:
    // - a copy of this test's.
    let original = unsafe { std::mem::replace(&mut (*ops).close, watched_close) };
    // SAFETY:
    // - open, and used by this thread alone.
    unsafe { (*object).ops = ops };
    WATCH.with_borrow_mut(|watch| watch.originals.insert(object.addr(), (kind, original)));
}

/// An endpoint with registered frames, and memory that it has lent. Its registrations are said to be bound, and watched.
fn watched(refuses: Refuses) -> (Endpoint, Weak<Memory>) {
    let mut endpoint = endpoint(sys::MR_LOCAL);
    let memory = Arc::new(Memory::from(vec![0; 4096]));
    let lives = Arc::downgrade(&memory);
    let held = Held::from(memory);
    let run = held.segments()[0];
    endpoint.lend(&held, run, true).unwrap();
    endpoint.is_bound = true;
    WATCH.with_borrow_mut(|watch| *watch = Watch { refuses, ..Watch::default() });
    watch(endpoint.raw().cast(), Kind::Endpoint);
    for region in endpoint.registrations() {
        watch(region.fid(), Kind::Registration);
    }
    assert_eq!(WATCH.with_borrow(|watch| watch.open(Kind::Registration)), 3, "two of frames");
    FREED.set(0);
    (endpoint, lives)
}

fn endpoint(demands: i32) -> Endpoint {
    let source = Some("127.0.0.1".parse().unwrap());
    let wanted = Wanted { provider: Some("tcp"), source, one_sided: true, ..Wanted::default() };
    let mut all = offers(wanted).unwrap();
    let offer = all.iter_mut().find(|it| it.provider.starts_with("tcp")).unwrap();
    offer.demand(demands);
    Endpoint::open(offer, Form::of(4096)).unwrap()
}

fn closed() -> Vec<Kind> {
    WATCH.with_borrow(|watch| watch.closed.clone())
}

#[test]
fn bound_registrations_are_closed_before_their_endpoint() {
    let (endpoint, lives) = watched(Refuses::EndpointsInUse);
    drop(endpoint);
    let bound = [Kind::Registration; 3];
    assert_eq!(closed(), [&bound[..], &[Kind::Endpoint]].concat());
    assert!(lives.upgrade().is_none() && FREED.get() >= 2, "nothing is leaked");
}

#[test]
fn registrations_that_are_refused_while_their_endpoint_is_open_are_closed_behind_it() {
    let (endpoint, lives) = watched(Refuses::RegistrationsInUse);
    drop(endpoint);
    assert_eq!(closed(), [&[Kind::Endpoint][..], &[Kind::Registration; 3]].concat());
    assert!(lives.upgrade().is_none() && FREED.get() >= 2, "nothing is leaked");
}

type Register = unsafe extern "C" fn(
    *mut sys::Fid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut sys::FidMr,
    *mut c_void,
) -> c_int;

thread_local! {
    static REGISTER: Cell<Option<Register>> = const { Cell::new(None) };
}

/// The first registration is made and watched, the next one refused.
unsafe extern "C" fn registering_once(
    domain: *mut sys::Fid,
    base: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    region: *mut *mut sys::FidMr,
    context: *mut c_void,
) -> c_int {
    let Some(register) = REGISTER.take() else { return -nix::libc::ENOMEM };
    // SAFETY:
    // - the function that this one stands in for, and what that was asked.
    let result =
        unsafe { register(domain, base, len, access, offset, key, flags, region, context) };
    // SAFETY:
    // - just opened.
    watch(unsafe { *region }.cast(), Kind::Registration);
    result
}

#[test]
fn what_fails_to_open_behind_its_first_registration_is_closed_in_the_same_order() {
    let mut endpoint = endpoint(0);
    endpoint.is_bound = true;
    WATCH.with_borrow_mut(|watch| {
        *watch = Watch { refuses: Refuses::RegistrationsInUse, ..Watch::default() };
    });
    watch(endpoint.raw().cast(), Kind::Endpoint);
    FREED.set(0);
    // SAFETY:
    // - open, and used by this thread alone.
    let memory = unsafe { &mut (*endpoint.domain().raw()).mr };
    // SAFETY:
    // - a table of libfabric's.
    *memory = unsafe { copied(*memory) };
    // SAFETY:
    // - a copy of this test's.
    let register = unsafe { &mut (**memory).reg };
    REGISTER.set(Some(std::mem::replace(register, registering_once)));
    let fault = endpoint.register_frames(sys::MR_LOCAL).unwrap_err();
    assert_eq!(fault.number, nix::libc::ENOMEM);
    drop(endpoint);
    assert_eq!(closed(), [Kind::Endpoint, Kind::Registration], "and its memory behind both");
    assert!(FREED.get() >= 2, "nothing is leaked");
}

#[test]
fn memory_that_an_open_endpoint_may_reach_is_never_freed() {
    let (endpoint, lives) = watched(Refuses::Endpoints);
    drop(endpoint);
    assert_eq!(closed(), [Kind::Registration; 3]);
    assert!(lives.upgrade().is_some() && FREED.get() == 0, "{} rows are freed", FREED.get());
}

#[test]
fn memory_whose_registration_stays_open_is_never_freed() {
    let (endpoint, lives) = watched(Refuses::Registrations);
    drop(endpoint);
    assert_eq!(closed(), [Kind::Endpoint]);
    // That of one-sided operations: no registration reaches it.
    assert!(lives.upgrade().is_some() && FREED.get() <= 1, "{} rows are freed", FREED.get());
}

#[test]
fn memory_is_kept_when_its_revocation_is_refused_and_little_of_it() {
    let mut endpoint = endpoint(0);
    WATCH.with_borrow_mut(|watch| {
        *watch = Watch { refuses: Refuses::RegistrationsInUse, ..Watch::default() };
    });
    watch(endpoint.raw().cast(), Kind::Endpoint);
    let mut lives = Vec::new();
    for _ in 0..UNCLOSED_MAX {
        let memory = Arc::new(Memory::from(vec![0; 4096]));
        lives.push(Arc::downgrade(&memory));
        let held = Held::from(memory);
        let run = held.segments()[0];
        let (number, _) = endpoint.lend(&held, run, true).unwrap();
        let known = WATCH.with_borrow(|watch| watch.originals.clone());
        let new: Vec<_> = endpoint.registrations().map(|it| it.fid()).collect();
        for region in new.into_iter().filter(|it| !known.contains_key(&it.addr())) {
            watch(region, Kind::Registration);
        }
        endpoint.revoke(number);
    }
    assert!(lives.iter().all(|it| it.upgrade().is_some()), "somebody may still write to it");
    let held = Held::from(Arc::new(Memory::from(vec![0; 4096])));
    let run = held.segments()[0];
    assert!(endpoint.lend(&held, run, true).is_err(), "bytes travel in frames");
    drop(endpoint);
    assert!(lives.iter().all(|it| it.upgrade().is_none()), "they are closed behind it");
}

unsafe extern "C" fn losing_sendmsg(_: *mut sys::FidEp, message: *const sys::Msg, _: u64) -> isize {
    // SAFETY:
    // - a message of this process's, as fi_sendmsg(3) wants it.
    LOST.set(unsafe { (*message).context });
    0
}

unsafe extern "C" fn failing_read(_: *mut sys::FidCq, _: *mut c_void, _: usize) -> isize {
    -(sys::errno::AVAIL as isize)
}

unsafe extern "C" fn failing_readerr(
    _: *mut sys::FidCq,
    entry: *mut sys::CqErrEntry,
    _: u64,
) -> isize {
    let lost = LOST.replace(ptr::null_mut());
    if lost.is_null() {
        return -(sys::errno::AGAIN as isize);
    }
    // SAFETY:
    // - room for an entry, as fi_cq_readerr(3) wants it.
    unsafe { (*entry).op_context = lost };
    // SAFETY:
    // - as above.
    unsafe { (*entry).err = nix::libc::ECONNRESET };
    1
}

/// From now on messages are taken and fail.
pub(crate) fn lose_everything(endpoint: &mut Endpoint) {
    let (ep, cq) = (endpoint.raw(), endpoint.cq.raw());
    // SAFETY:
    // - open, and used by this thread alone.
    let (messages, queue) = (unsafe { &mut (*ep).msg }, unsafe { &mut (*cq).ops });
    // SAFETY:
    // - tables of libfabric's.
    (*messages, *queue) = (unsafe { copied(*messages) }, unsafe { copied(*queue) });
    // SAFETY:
    // - copies of this test's.
    let (messages, queue) = (unsafe { &mut **messages }, unsafe { &mut **queue });
    messages.sendmsg = losing_sendmsg;
    (queue.read, queue.readerr) = (failing_read, failing_readerr);
}

#[test]
fn an_injected_message_that_is_lost_says_to_whom_it_was_on_its_way() {
    let (mut sender, receivers) = (endpoint(0), [endpoint(0), endpoint(0)]);
    let [one, other] = receivers.each_ref().map(|it| sender.insert(it.name()).unwrap());
    lose_everything(&mut sender);
    for to in [one, other, one] {
        assert_eq!(sender.send(to, (8, false), 1, |_| true), Ok(Handed::Injected));
        let mut events = Vec::new();
        sender.poll(&mut events).unwrap();
        let lost = matches!(events[..], [Event::Lost(address, fault)]
            if address == to && fault.number == nix::libc::ECONNRESET);
        assert!(lost, "{events:?}");
    }
    sender.send(one, (8, false), 1, |_| true).unwrap();
    sender.remove(one);
    let mut events = Vec::new();
    sender.poll(&mut events).unwrap();
    assert!(matches!(events[..], [Event::Failed(_)]), "nobody's any more: {events:?}");
}
