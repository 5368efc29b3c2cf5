//! Regions of this process: local copies, unregistering with and without a peer that pins, transfers.

use std::sync::{
    atomic::{AtomicU64, Ordering},
    mpsc,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

use super::*;
use crate::{
    descriptor::RegionClaim,
    layout::PINS,
    region::{
        boards::tests::this_process,
        cma::{Call, Direction, Near},
        pins,
        table::PeerTable,
    },
    rendezvous::process::ProcessWatch,
    rendezvous::{
        name::{Name, Target},
        socket::{Listener, Received, Sent, Socket},
    },
    segment::Rings,
};

/// One range to or from these runs of the peer's.
fn transfer(
    direction: Direction,
    peer: &ProcessWatch,
    local: &SmRegion,
    offset: u64,
    remote: &[Run],
) -> Result<(), Error> {
    let len = crate::region::plan::total(remote);
    let near = match direction {
        Direction::Get => Near::Into(local, offset),
        Direction::Put => Near::From(local, offset),
    };
    let mut call = Call::new(near, len as u64, |far| {
        far.extend(remote);
        Ok(())
    })?;
    call.transfer(peer)
}

/// No region yet, and the segment of a peer.
fn regions() -> (Arc<Regions>, Arc<Rings>) {
    let rings = Arc::new(Rings::create().unwrap().0);
    let regions = Regions::new(OwnedTable::create([1; 16]).unwrap());
    let own = Rings::create().unwrap().0;
    regions.boards.add(own, Arc::clone(&rings), this_process()).unwrap();
    (regions, rings)
}

/// The peer is in the middle of a transfer.
fn pin(rings: &Rings, region: &SmRegion) {
    let claim = RegionClaim::decode(region.descriptor().opaque()).unwrap();
    rings.pins.0[0].store(pins::pin_word(claim.index, claim.generation), Ordering::Relaxed);
}

fn unpin(rings: &Rings) {
    rings.pins.0[0].store(0, Ordering::Relaxed);
}

fn register(regions: &Arc<Regions>, memory: Memory) -> Arc<SmRegion> {
    let rights = if memory.writable() { Rights::all() } else { Rights::READ };
    SmRegion::register(regions, memory, rights).unwrap()
}

fn contents(region: &SmRegion) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len()).unwrap()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
#[expect(unsafe_code, reason = "memory that nobody may touch")]
fn memory_of_a_device_is_refused_by_name() {
    let (regions, _) = regions();
    let segments = vec![hg_na::Segment { address: 8, len: 8 }];
    // SAFETY:
    // - there is no such device: nothing reaches it.
    let memory = unsafe { Memory::on_device(hg_na::Device::Cuda(0), segments, true, Arc::new(())) };
    let refused = SmRegion::register(&regions, memory, Rights::READ).map(drop);
    assert!(matches!(refused, Err(Error::Unsupported(why)) if why.contains("device")));
}

#[test]
fn reads_and_writes_cross_the_borders_of_segments() {
    let (regions, _) = regions();
    let region = register(&regions, Memory::from(vec![vec![1; 3], vec![], vec![2; 3]]));
    region.write(2, &[7, 8]).unwrap();
    assert_eq!(contents(&region), [1, 1, 7, 8, 2, 2]);
    assert!(matches!(region.write(5, &[0; 2]), Err(Error::OutOfRange { .. })));
    assert!(matches!(region.read(7, &mut []), Err(Error::OutOfRange { .. })));
    assert_eq!(region.unregister().unwrap().into_vecs().unwrap()[2], [8, 2, 2]);
}

#[test]
fn shared_bytes_are_read_only() {
    let (regions, _) = regions();
    let bytes: Arc<[u8]> = Arc::from([1, 2, 3].as_slice());
    let refused = SmRegion::register(&regions, Memory::from(Arc::clone(&bytes)), Rights::all());
    assert!(matches!(refused, Err(Error::Denied { .. })));
    let region = register(&regions, Memory::from(bytes));
    assert!(matches!(region.write(0, &[1]), Err(Error::Denied { .. })));
    assert!(matches!(region.runs(0, 1, true, &mut Vec::new()), Err(Error::Denied { .. })));
}

#[test]
fn a_region_in_use_is_busy_and_freed_later() {
    let (regions, _) = regions();
    let region = register(&regions, Memory::from(vec![0; 8]));
    let in_use = Arc::clone(&region);
    assert!(matches!(region.unregister(), Err(Error::RegionBusy)));
    drop(in_use);
    let next = register(&regions, Memory::from(vec![0; 8]));
    let claim = RegionClaim::decode(next.descriptor().opaque()).unwrap();
    assert_eq!((claim.index, claim.generation), (0, 3), "the slot was free again");
}

#[test]
fn memory_that_a_peer_will_not_unpin_is_copied_and_kept_until_it_does() {
    for memory in [
        Memory::from(vec![5; 64]),
        Memory::from(vec![vec![5; 32], vec![5; 32]]),
        Memory::from(Arc::<[u8]>::from(vec![5; 64])),
    ] {
        let (regions, rings) = regions();
        let region = register(&regions, memory);
        let address = region.memory().segments()[0].address;
        pin(&rings, &region);
        let returned = region.unregister().unwrap();
        assert_eq!(returned.len(), 64);
        assert_eq!(returned.segments()[0].address != address, returned.writable());
        assert_eq!(regions.retired.lock().unwrap()[0].1.segments()[0].address, address);
        unpin(&rings);
        regions.sweep();
        assert!(regions.retired.lock().unwrap().is_empty());
    }
}

#[test]
fn a_copy_is_a_vector_or_a_list_as_the_original_was() {
    let copy_of = |memory| {
        let (regions, rings) = regions();
        let region = register(&regions, memory);
        pin(&rings, &region);
        region.unregister().unwrap()
    };
    assert_eq!(copy_of(Memory::from(vec![5; 64])).into_vec().unwrap(), [5; 64]);
    for list in [vec![vec![5_u8; 64]], vec![vec![5; 32], vec![6; 32]], vec![]] {
        assert_eq!(copy_of(Memory::from(list.clone())).into_vecs().unwrap(), list);
        let alias = Memory::alias(&Arc::new(Memory::from(list.clone())));
        assert_eq!(copy_of(alias).into_vecs().unwrap(), list);
    }
}

/// What an application's `Drop` may need, and whoever makes progress has.
static LOCK: Mutex<()> = Mutex::new(());

struct Asks(mpsc::Sender<()>);

impl Drop for Asks {
    fn drop(&mut self) {
        drop(LOCK.lock().unwrap());
        self.0.send(()).unwrap();
    }
}

#[test]
#[expect(unsafe_code, reason = "memory with a keeper of its own")]
fn what_kept_retired_memory_alive_is_not_dropped_by_whoever_sweeps() {
    let (regions, rings) = regions();
    let (sender, dropped) = mpsc::channel();
    let bytes = vec![5_u8; 64].leak();
    let segment =
        hg_na::Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
    // SAFETY:
    // - the bytes live for ever, and nobody else has them.
    let memory = unsafe { Memory::from_raw_parts(vec![segment], true, Arc::new(Asks(sender))) };
    let region = register(&regions, memory);
    pin(&rings, &region);
    drop(region);
    unpin(&rings);
    let locked = LOCK.lock().unwrap();
    regions.sweep();
    drop(locked);
    dropped.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_peer_that_lies_about_its_pins_keeps_nobody_and_as_many_regions_as_it_has_pins() {
    let (regions, rings) = regions();
    let start = Instant::now();
    for _ in 0..100_000 {
        let region = register(&regions, Memory::from(vec![5; 64]));
        pin(&rings, &region);
        assert_eq!(region.unregister().unwrap().into_vec().unwrap(), [5; 64]);
        watchdog::in_time!(start, "each of them waits for the liar");
        regions.sweep();
        assert_eq!(regions.retired.lock().unwrap().len(), 1, "as many as it has pins");
    }
}

#[test]
fn dropping_a_pinned_region_waits_for_nobody() {
    let (regions, rings) = regions();
    let region = register(&regions, Memory::from(vec![5; 64]));
    pin(&rings, &region);
    drop(region);
    assert_eq!(regions.retired.lock().unwrap().len(), 1);
    unpin(&rings);
    register(&regions, Memory::from(vec![5; 64]));
    assert!(regions.retired.lock().unwrap().is_empty(), "swept by the next registration");
}

/// Everything that a transfer needs, with this process as its own peer.
struct Loopback {
    regions: Arc<Regions>,
    table: PeerTable,
    watch: ProcessWatch,
    _sockets: [Arc<Socket>; 2],
    pins: [AtomicU64; PINS],
}

impl Loopback {
    fn new() -> Self {
        let (regions, _) = regions();
        let fd = regions.table.fd().unwrap().try_clone_to_owned().unwrap();
        let sockets: [_; 2] = Socket::pair().unwrap().into();
        let sockets = sockets.map(Arc::new);
        Self {
            table: PeerTable::open([1; 16], &fd).unwrap(),
            watch: ProcessWatch::of(&sockets[0]).unwrap(),
            _sockets: sockets,
            pins: Default::default(),
            regions,
        }
    }

    fn transfer(
        &self,
        direction: Direction,
        local: (&SmRegion, u64),
        remote: (&SmRegion, u64),
        len: u64,
    ) -> Result<(), Error> {
        let descriptor = remote.0.descriptor();
        let claim = RegionClaim::decode(descriptor.opaque()).unwrap();
        let mut runs = Vec::new();
        let _pin =
            self.table.resolve(&claim, Rights::READ, (remote.1, len), &self.pins, &mut runs)?;
        transfer(direction, &self.watch, local.0, local.1, &runs)
    }
}

const CHILD: &str = "HG_TEST_REGION_OWNER";
const LEN: usize = 100_000;

/// The owner's process: registers memory, sends table and descriptor, and waits for the parent's end.
fn own_region(name: &str) {
    let (regions, _) = regions();
    let region = register(&regions, Memory::from(vec![vec![3; LEN / 4], vec![4; LEN * 3 / 4]]));
    let url = hg_na::Address::new(name).unwrap();
    let Target { name, context } = Target::parse(&url).unwrap();
    let socket = Socket::connect(&name, context).unwrap();
    let opaque = region.descriptor().opaque().to_vec();
    assert_eq!(socket.send(&opaque, &[regions.table.fd().unwrap()]).unwrap(), Sent::Done);
    wait_for(socket.fd());
}

fn wait_for(fd: std::os::fd::BorrowedFd<'_>) {
    let mut question = [PollFd::new(fd, PollFlags::POLLIN)];
    let told = poll(&mut question, PollTimeout::from(60_000_u16)).unwrap();
    assert_eq!(told, 1, "the other process answers within a minute");
}

#[test]
fn another_processs_memory_is_read_and_written_until_that_process_is_killed() {
    const SELF: &str = "region::state::tests::another_processs_memory_is_read_and_written_until_that_process_is_killed";
    if let Ok(name) = std::env::var(CHILD) {
        return own_region(&name);
    }
    let name = Name::generate().unwrap();
    let mut listener = Listener::bind(&name, 0).unwrap();
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let mut owner =
        program.args(["--exact", SELF]).env(CHILD, name.address(0).as_str()).spawn().unwrap();
    wait_for(listener.fd());
    let socket = listener.accept().unwrap().unwrap();
    wait_for(socket.fd());
    let mut opaque = [0; 64];
    let Received::Message { len, fds } = socket.recv(&mut opaque).unwrap() else {
        panic!("the owner sends its table")
    };
    let claim = RegionClaim::decode(&opaque[..len]).unwrap();
    let table = PeerTable::open(claim.domain, &fds.unwrap().remove(0)).unwrap();
    let socket = Arc::new(socket);
    let watch = ProcessWatch::of(&socket).unwrap();
    assert_eq!(watch.pid(), i32::try_from(owner.id()).ok());

    let (regions, _) = regions();
    let local = register(&regions, Memory::from(vec![9; LEN]));
    let (pins, mut runs) = ([AtomicU64::new(0)], Vec::new());
    let _pin = table.resolve(&claim, Rights::all(), (0, LEN as u64), &pins, &mut runs).unwrap();
    assert!(watch.space().is_none(), "no transfer has shown that it may be opened");
    transfer(Direction::Get, &watch, &local, 0, &runs).unwrap();
    assert!(watch.space().is_some(), "short gets read from the address space");
    assert_eq!(contents(&local), [vec![3; LEN / 4], vec![4; LEN * 3 / 4]].concat());
    local.write(LEN as u64 / 4, &[8; 5]).unwrap();
    transfer(Direction::Put, &watch, &local, 0, &runs).unwrap();
    local.write(0, &[0; LEN]).unwrap();
    transfer(Direction::Get, &watch, &local, 0, &runs).unwrap();
    assert_eq!(contents(&local)[LEN / 4 - 1..][..7], [3, 8, 8, 8, 8, 8, 4]);

    let short = [Run { address: runs[1].address + 3, len: 4 }];
    transfer(Direction::Get, &watch, &local, 1, &short).unwrap();
    assert_eq!(contents(&local)[..7], [3, 8, 8, 4, 4, 3, 3]);

    owner.kill().unwrap();
    wait_for(watch.fd().unwrap());
    for runs in [&runs[..], &short] {
        let gone = transfer(Direction::Get, &watch, &local, 0, runs);
        assert!(matches!(gone, Err(Error::PeerGone(_))), "{gone:?}");
    }
    owner.wait().unwrap();
}

#[test]
fn memory_that_is_not_mapped_at_the_peer_is_a_named_error() {
    let loopback = Loopback::new();
    let local = register(&loopback.regions, Memory::from(vec![0; 4096]));
    let remote = register(&loopback.regions, Memory::from(vec![1; 8]));
    let nowhere = [Run { address: 4096, len: 4096 }];
    for _ in 0..2 {
        let failed = transfer(Direction::Get, &loopback.watch, &local, 0, &nowhere).unwrap_err();
        assert!(failed.to_string().contains("process_vm_readv"), "{failed}");
        // The second time with the peer's address space at hand.
        loopback.transfer(Direction::Get, (&local, 0), (&remote, 0), 8).unwrap();
        assert!(loopback.watch.space().is_some());
    }
}

#[test]
fn a_get_does_not_land_in_read_only_memory() {
    let loopback = Loopback::new();
    let local = register(&loopback.regions, Memory::from(Arc::<[u8]>::from(vec![0; 8])));
    let remote = register(&loopback.regions, Memory::from(vec![1; 8]));
    let refused = loopback.transfer(Direction::Get, (&local, 0), (&remote, 0), 8);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn transfers_between_differently_cut_memory_move_what_a_copy_would(
        local_lens in proptest::collection::vec(0_usize..200, 1..20),
        remote_lens in proptest::collection::vec(0_usize..200, 1..20),
        places in any::<(u16, u16, u16)>(), get: bool,
    ) {
        let loopback = Loopback::new();
        let pieces = |lens: &[usize], seed: u8| -> Vec<Vec<u8>> {
            let mut next = seed;
            let mut byte = || { next = next.wrapping_mul(31).wrapping_add(7); next };
            lens.iter().map(|&len| (0..len).map(|_| byte()).collect()).collect()
        };
        let local = register(&loopback.regions, Memory::from(pieces(&local_lens, 1)));
        let remote = register(&loopback.regions, Memory::from(pieces(&remote_lens, 100)));
        let at = u64::from(places.0) % (local.len() + 1);
        let from = u64::from(places.1) % (remote.len() + 1);
        let len = u64::from(places.2) % ((local.len() - at).min(remote.len() - from) + 1);

        let (mut ours, mut theirs) = (contents(&local), contents(&remote));
        let range = |start: u64| usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
        let direction = if get { Direction::Get } else { Direction::Put };
        if get {
            ours[range(at)].copy_from_slice(&theirs[range(from)]);
        } else {
            theirs[range(from)].copy_from_slice(&ours[range(at)]);
        }
        loopback.transfer(direction, (&local, at), (&remote, from), len).unwrap();
        prop_assert_eq!(contents(&local), ours);
        prop_assert_eq!(contents(&remote), theirs);
    }
}
