//! An imitation of libibverbs for contexts of one process: the same functions, over cards that are a table behind a lock.
//!
//! A send is delivered when it is posted, or as soon as there is room for it (a real card repeats it until then); a write or read is checked
//! against the table of registrations. Completions come in the order of each queue pair, only where they were asked for, and always for
//! errors. Handles are leaked, so that none is ever used anew; what they stand for is freed ([`left`]).

#![expect(unsafe_code, reason = "stands for a C library")]

mod fabric;

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rdma_core_sys as sys;

use fabric::{Fabric, QUEUE_MAX, Queued, Run};

/// All cards of this process.
static FABRIC: Mutex<Option<Fabric>> = Mutex::new(None);

/// Cards, and the last byte of their addresses in 127.0.0.0/8.
const CARDS: [(&std::ffi::CStr, u8); 9] = [
    (c"imitated0", 1),
    (c"imitated1", 2),
    (c"imitated2", 3),
    (c"imitated3", 4),
    (c"imitated4", 5),
    (c"imitated5", 6),
    (c"imitated6", 7),
    (c"imitated7", 8),
    (c"imitated8", 9),
];

/// What there is of an opened card.
const OPS: sys::ContextOps = sys::ContextOps {
    before: [ptr::null(); 11],
    poll_cq,
    req_notify_cq,
    between: [ptr::null(); 7],
    post_srq_recv,
    queue_pairs: [ptr::null(); 4],
    post_send,
    behind: [ptr::null(); 6],
};

/// The functions.
pub(crate) static LIBRARY: sys::Library = sys::Library {
    get_device_list,
    free_device_list,
    get_device_name,
    open_device,
    close_device,
    query_device,
    query_port,
    query_gid,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    resize_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    get_async_event,
    ack_async_event,
    create_srq,
    destroy_srq,
    create_qp,
    modify_qp,
    destroy_qp,
};

/// Queue pairs and registrations that there are of a card.
pub(crate) fn left(card: usize) -> (usize, usize) {
    with(|fabric| fabric.left(card))
}

/// What was posted on a card so far, and completions of that.
pub(crate) fn counts(card: usize) -> (u64, u64) {
    with(|fabric| fabric.counts.get(&card).copied().unwrap_or_default())
}

/// Queue pairs of a card whose last posts have not asked for a completion.
pub(crate) fn silent(card: usize) -> usize {
    with(|fabric| fabric.silent(card))
}

/// Bytes that were written, and read, by a card so far.
pub(crate) fn moved(card: usize) -> (u64, u64) {
    with(|fabric| fabric.moved.get(&card).copied().unwrap_or_default())
}

/// Puts the oldest queue pair of a card in error; `false`: there is none.
pub(crate) fn break_pair(card: usize) -> bool {
    with(|fabric| fabric.break_pair(card))
}

/// Takes a card's port down, or up again, and tells of it. While it is down nothing is delivered from it or to it.
pub(crate) fn set_port(card: usize, is_up: bool) {
    with(|fabric| fabric.set_port(card, is_up));
}

/// What is posted stands still, of which nobody is told, or goes on.
pub(crate) fn hold(card: usize, is_held: bool) {
    with(|fabric| fabric.hold(card, is_held));
}

/// Removes a card from those who have opened it.
pub(crate) fn remove(card: usize) {
    with(|fabric| fabric.remove(card));
}

/// Tells of an event of the oldest queue pair of a card; `false`: there is none.
pub(crate) fn tell_of_pair(card: usize, kind: c_int) -> bool {
    with(|fabric| fabric.tell_of_pair(card, kind))
}

/// From now on the completion queues of a card cannot be polled.
pub(crate) fn fail_polls(card: usize) {
    with(|fabric| fabric.fail_polls(card));
}

/// Tells of an event of each completion queue of a card, which is lost.
pub(crate) fn lose_queues(card: usize) {
    with(|fabric| fabric.lose_queues(card));
}

/// The queue pairs of a card, oldest first.
pub(crate) fn pairs(card: usize) -> Vec<u32> {
    with(|fabric| fabric.pairs_of(card))
}

/// Delivers a message to a queue pair, as if the other end had sent it; `false`: there is no room for it, or no such end.
pub(crate) fn say_to(pair: u32, word: u32, bytes: &[u8]) -> bool {
    with(|fabric| fabric.say_to(pair, word, bytes))
}

/// Registers memory for the other end of a queue pair, to be read and written from here; answers its key.
pub(crate) fn lend_to(pair: u32, bytes: &mut [u8]) -> u32 {
    let run = Run { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
    with(|fabric| fabric.lend_to(pair, run))
}

/// Tells a queue pair of a write of so many bytes with a word beside it: it uses up a receive, whose memory it leaves as it is.
pub(crate) fn tell_of_write(pair: u32, word: u32, len: u32) -> bool {
    with(|fabric| fabric.tell_of_write(pair, word, len))
}

fn with<T>(act: impl FnOnce(&mut Fabric) -> T) -> T {
    let mut fabric: MutexGuard<'_, _> = FABRIC.lock().unwrap_or_else(PoisonError::into_inner);
    act(fabric.get_or_insert_default())
}

/// A handle.
fn handle<T>(of: T) -> *mut T {
    Box::into_raw(Box::new(of))
}

/// Reads what the plugin has passed.
fn passed<T: Copy>(pointer: *const T) -> T {
    // SAFETY:
    // - the plugin passes what the manual pages ask for.
    unsafe { *pointer }
}

/// Fills what the plugin has passed.
fn fill<T>(pointer: *mut T, with: T) {
    // SAFETY:
    // - as above.
    unsafe { *pointer = with };
}

fn card_of(context: *mut sys::Context) -> usize {
    // SAFETY:
    // - opened, and never freed.
    unsafe { (*context).device }.addr() - 1
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut sys::Device {
    fill(count, c_int::try_from(CARDS.len()).expect("few"));
    // A card is its place, and one.
    let cards: [*mut sys::Device; CARDS.len() + 1] = std::array::from_fn(|place| {
        ptr::without_provenance_mut(if place < CARDS.len() { place + 1 } else { 0 })
    });
    handle(cards).cast()
}

unsafe extern "C" fn free_device_list(_list: *mut *mut sys::Device) {}

unsafe extern "C" fn get_device_name(device: *mut sys::Device) -> *const c_char {
    CARDS[device.addr() - 1].0.as_ptr()
}

unsafe extern "C" fn open_device(device: *mut sys::Device) -> *mut sys::Context {
    let async_fd = with(|fabric| fabric.open_card(device.addr() - 1));
    handle(sys::Context { device, ops: OPS, cmd_fd: -1, async_fd })
}

unsafe extern "C" fn close_device(context: *mut sys::Context) -> c_int {
    with(|fabric| fabric.close_card(events_of(context)));
    0
}

/// What names an opened card.
fn events_of(context: *mut sys::Context) -> std::os::fd::RawFd {
    // SAFETY:
    // - opened, and never freed.
    unsafe { (*context).async_fd }
}

/// What is run once an event of a port that is down was taken, before its taker knows of it.
static ON_PORT_DOWN: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

/// Has something happen between the taking of the next event of a port that is down, and its hearing.
pub(crate) fn on_port_down(run: impl FnOnce() + Send + 'static) {
    *ON_PORT_DOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(run));
}

unsafe extern "C" fn get_async_event(
    context: *mut sys::Context,
    into: *mut sys::AsyncEvent,
) -> c_int {
    match with(|fabric| fabric.next_event(events_of(context))) {
        Ok((event_type, element)) => {
            if event_type == sys::EVENT_PORT_ERR {
                let run = ON_PORT_DOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
                run.into_iter().for_each(|run| run());
            }
            let element = ptr::with_exposed_provenance_mut(element);
            fill(into, sys::AsyncEvent { element, event_type });
            0
        }
        Err(error) => {
            error.set();
            -1
        }
    }
}

unsafe extern "C" fn ack_async_event(_event: *mut sys::AsyncEvent) {}

unsafe extern "C" fn query_device(_: *mut sys::Context, attr: *mut sys::DeviceAttr) -> c_int {
    // SAFETY:
    // - numbers only.
    let mut all: sys::DeviceAttr = unsafe { std::mem::zeroed() };
    (all.max_qp_wr, all.max_srq_wr, all.max_cqe) = (1 << 14, 1 << 14, QUEUE_MAX);
    (all.max_qp_rd_atom, all.max_qp_init_rd_atom, all.phys_port_cnt) = (16, 16, 1);
    fill(attr, all);
    0
}

unsafe extern "C" fn query_port(
    context: *mut sys::Context,
    _: u8,
    attr: *mut sys::PortAttr,
) -> c_int {
    let is_down = with(|fabric| fabric.is_port_down(events_of(context)));
    fill(
        attr,
        sys::PortAttr {
            state: if is_down { 0 } else { sys::PORT_ACTIVE },
            active_mtu: 5,
            gid_tbl_len: 2,
            active_width: 1,
            active_speed: 1,
            link_layer: sys::LINK_LAYER_ETHERNET,
            ..Default::default()
        },
    );
    0
}

unsafe extern "C" fn query_gid(
    context: *mut sys::Context,
    _port: u8,
    place: c_int,
    gid: *mut sys::Gid,
) -> c_int {
    let card = card_of(context);
    let mapped = std::net::Ipv4Addr::new(127, 0, 0, CARDS[card].1).to_ipv6_mapped();
    let link_local = std::net::Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, CARDS[card].1.into());
    fill(gid, sys::Gid(if place == 0 { link_local.octets() } else { mapped.octets() }));
    0
}

unsafe extern "C" fn alloc_pd(context: *mut sys::Context) -> *mut sys::Pd {
    let pd = handle(sys::Pd { context });
    with(|fabric| fabric.open_domain(pd.addr(), card_of(context)));
    pd
}

unsafe extern "C" fn dealloc_pd(_pd: *mut sys::Pd) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut sys::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::Mr {
    let run = Run { address: addr.expose_provenance(), len: length };
    let key = with(|fabric| fabric.register(pd.addr(), run, access));
    let context = passed(pd.cast_const().cast());
    handle(sys::Mr { context, pd, addr, length, handle: key, lkey: key, rkey: key })
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::Mr) -> c_int {
    // SAFETY:
    // - made by `reg_mr`, and never freed.
    let key = unsafe { (*mr).lkey };
    with(|fabric| fabric.unregister(key))
}

unsafe extern "C" fn create_comp_channel(context: *mut sys::Context) -> *mut sys::CompChannel {
    let fd = with(Fabric::open_channel);
    handle(sys::CompChannel { context, fd, refcnt: 0 })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut sys::CompChannel) -> c_int {
    // SAFETY:
    // - made above, and never freed.
    let fd = unsafe { (*channel).fd };
    with(|fabric| drop(fabric.channels.remove(&fd)));
    0
}

unsafe extern "C" fn create_cq(
    context: *mut sys::Context,
    count: c_int,
    _cq_context: *mut c_void,
    channel: *mut sys::CompChannel,
    _vector: c_int,
) -> *mut sys::Cq {
    let cq = handle(sys::Cq { context, channel });
    let events = events_of(context);
    // SAFETY:
    // - made above, and never freed.
    let fd = unsafe { (*channel).fd };
    with(|fabric| fabric.open_queue(cq.addr(), (fd, events), count));
    cq
}

static KEEPS_SIZE: AtomicBool = AtomicBool::new(false);

/// Whether queues cannot grow, as on some cards.
pub(crate) fn keep_size(is_kept: bool) {
    KEEPS_SIZE.store(is_kept, Ordering::SeqCst);
}

unsafe extern "C" fn resize_cq(cq: *mut sys::Cq, count: c_int) -> c_int {
    if KEEPS_SIZE.load(Ordering::SeqCst) {
        return nix::libc::EOPNOTSUPP;
    }
    with(|fabric| fabric.resize_queue(cq.addr(), count))
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::Cq) -> c_int {
    with(|fabric| drop(fabric.queues.remove(&cq.addr())));
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut sys::CompChannel,
    cq: *mut *mut sys::Cq,
    _context: *mut *mut c_void,
) -> c_int {
    // SAFETY:
    // - made above, and never freed.
    let fd = unsafe { (*channel).fd };
    let is_there = with(|fabric| {
        let mut near = fabric.channels.get(&fd).map(|(near, _)| near)?;
        near.read(&mut [0]).ok().filter(|len| *len == 1)
    });
    fill(cq, ptr::null_mut());
    if is_there.is_some() { 0 } else { -1 }
}

unsafe extern "C" fn ack_cq_events(_cq: *mut sys::Cq, _count: c_uint) {}

unsafe extern "C" fn create_srq(pd: *mut sys::Pd, _attr: *mut sys::SrqInitAttr) -> *mut sys::Srq {
    let srq = handle(sys::Srq { context: passed(pd.cast_const().cast()) });
    with(|fabric| drop(fabric.receives.insert(srq.addr(), Default::default())));
    srq
}

unsafe extern "C" fn destroy_srq(srq: *mut sys::Srq) -> c_int {
    with(|fabric| drop(fabric.receives.remove(&srq.addr())));
    0
}

unsafe extern "C" fn create_qp(pd: *mut sys::Pd, attr: *mut sys::QpInitAttr) -> *mut sys::Qp {
    let given = passed(attr);
    let qp_num = with(|fabric| fabric.open_pair(pd.addr(), given.send_cq.addr(), given.srq.addr()));
    let qp = handle(sys::Qp {
        context: passed(pd.cast_const().cast()),
        qp_context: ptr::null_mut(),
        pd,
        send_cq: given.send_cq,
        recv_cq: given.recv_cq,
        srq: given.srq,
        handle: qp_num,
        qp_num,
    });
    let events = events_of(passed(pd.cast_const().cast()));
    with(|fabric| fabric.name_pair(qp_num, (events, qp.expose_provenance())));
    qp
}

fn number(qp: *mut sys::Qp) -> u32 {
    // SAFETY:
    // - made above, and never freed.
    unsafe { (*qp).qp_num }
}

unsafe extern "C" fn modify_qp(qp: *mut sys::Qp, attr: *mut sys::QpAttr, set: c_int) -> c_int {
    let (number, attr) = (number(qp), passed(attr));
    with(|fabric| fabric.modify(number, &attr, set))
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::Qp) -> c_int {
    let number = number(qp);
    with(|fabric| fabric.close_pair(number));
    0
}

unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, count: c_int, into: *mut sys::Wc) -> c_int {
    let most = usize::try_from(count).expect("no negative number");
    let Some(taken) = with(|fabric| fabric.poll(cq.addr(), most)) else { return -1 };
    for (place, completion) in taken.iter().enumerate() {
        fill(into.wrapping_add(place), *completion);
    }
    c_int::try_from(taken.len()).expect("as many as asked for")
}

unsafe extern "C" fn req_notify_cq(cq: *mut sys::Cq, _solicited_only: c_int) -> c_int {
    with(|fabric| fabric.arm(cq.addr()));
    0
}

fn run_of(sge: *const sys::Sge) -> Run {
    let sys::Sge { addr, length, .. } = passed(sge);
    let fits = "this process has 64 bits";
    Run { address: usize::try_from(addr).expect(fits), len: usize::try_from(length).expect(fits) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::Srq,
    list: *mut sys::RecvWr,
    _bad: *mut *mut sys::RecvWr,
) -> c_int {
    let sys::RecvWr { wr_id, sg_list, .. } = passed(list);
    with(|fabric| fabric.post_receive(srq.addr(), wr_id, run_of(sg_list)));
    0
}

unsafe extern "C" fn post_send(
    qp: *mut sys::Qp,
    list: *mut sys::SendWr,
    _bad: *mut *mut sys::SendWr,
) -> c_int {
    let request = passed(list);
    let run = (request.num_sge > 0).then(|| run_of(request.sg_list));
    let is_inline = request.send_flags & sys::SEND_INLINE != 0;
    let queued = Queued {
        id: request.wr_id,
        opcode: request.opcode,
        is_signalled: request.send_flags & sys::SEND_SIGNALED != 0,
        word: request.imm_data,
        remote: (request.remote_addr, request.rkey),
        taken: if is_inline { run.map(|run| run.read()) } else { None },
        run,
    };
    let number = number(qp);
    with(|fabric| fabric.post_send(number, queued))
}

/// Makes a channel's descriptor readable.
fn ring(mut far: &UnixStream) {
    match far.write_all(&[0]) {
        // It is readable for ever.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        rung => rung.expect("room for a byte, and both ends are there"),
    }
}

/// Makes it readable for ever.
fn hang_up(far: &UnixStream) {
    far.shutdown(Shutdown::Write).expect("both ends are there");
}
