//! Two contexts of this process, one of which maps the other's memory.

use std::{sync::Arc, time::Instant};

use hg_na::{
    Address, Begun, Completion, Context, Descriptor, Done, Error, Memory, Message, Op, OpenOptions,
    Peer, Plugin as _, Region, Returned, Rights, SharedBytes,
};
use nix::libc;
use watchdog::in_time;

use super::{Buffer, Frozen, alloc};
use crate::{context::SmContext, descriptor::RegionClaim, domain::Shared, maps::MAPS};

/// One endpoint with its domain.
struct Side {
    shared: Arc<Shared>,
    context: SmContext,
    done: Vec<Completion>,
}

impl Side {
    fn open() -> Self {
        let url = Address::new("sm://").unwrap();
        let shared = Shared::open(&url, &OpenOptions::listening()).unwrap();
        let context = SmContext::open(&shared, 0, None).unwrap();
        Self { shared, context, done: Vec::new() }
    }

    fn round(&mut self) {
        self.context.waiter.ask(|_| true).unwrap();
        self.context.progress(Instant::now(), &mut self.done).unwrap();
    }

    fn register(&self, memory: impl Into<Memory>, rights: Rights) -> Region {
        let region =
            crate::region::state::SmRegion::register(&self.shared.regions, memory.into(), rights);
        Region::new(region.unwrap())
    }
}

/// An initiator, an owner, and the initiator's handle of the owner.
struct Pair {
    initiator: Side,
    owner: Side,
    to: Peer,
}

impl Pair {
    /// Asks for a transfer by the short cut.
    fn at_once(&mut self, op: &Op) -> bool {
        let transit = op.transit().expect("sides of equal length");
        self.initiator.context.begin(&transit).finish()
    }

    fn connected() -> Self {
        let (mut initiator, owner) = (Side::open(), Side::open());
        let to = initiator.context.lookup(owner.context.address()).unwrap();
        let mut pair = Self { initiator, owner, to };
        let message = Message::copied(b"hello");
        pair.initiator.context.post(1, Op::SendUnexpected { to, message }).unwrap();
        pair.until(|pair| {
            pair.owner.done.drain(..).any(|it| matches!(it, Completion::Unexpected { .. }))
        });
        pair.initiator.done.clear();
        pair
    }

    fn until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            in_time!(start, "it never happened");
            self.initiator.round();
            self.owner.round();
        }
    }

    /// Posts and waits.
    fn finish(&mut self, op: Op) -> Done {
        self.initiator.context.post(7, op).unwrap();
        let mut found = None;
        self.until(|pair| {
            found = pair.initiator.done.drain(..).find_map(|it| match it {
                Completion::Done(done) if done.token == 7 => Some(done),
                _ => None,
            });
            found.is_some()
        });
        found.unwrap()
    }

    fn transfer(
        &mut self,
        put: bool,
        local: &Region,
        far: &Descriptor,
        len: u64,
    ) -> Result<(), Error> {
        let (local, remote) = (local.slice(0, len).unwrap(), far.slice(0, len).unwrap());
        let op = if put {
            Op::Put { to: self.to, local, remote }
        } else {
            Op::Get { from: self.to, local, remote }
        };
        self.finish(op).result.map_err(|failure| failure.error)
    }

    fn view(&mut self, far: &Descriptor, offset: u64, len: u64) -> Result<SharedBytes, Error> {
        let op = Op::View { from: self.to, remote: far.slice(offset, len).unwrap() };
        let done = self.finish(op);
        match (done.result, done.returned) {
            (Ok(()), Returned::View(bytes)) => Ok(bytes),
            (Err(failure), Returned::Nothing) => Err(failure.error),
            other => panic!("{other:?}"),
        }
    }

    /// Transfers until the memory is mapped.
    fn map(&mut self, local: &Region, far: &Descriptor) {
        self.until(|pair| {
            pair.transfer(false, local, far, 1).unwrap();
            pair.mapped() > 0
        });
    }

    fn mapped(&mut self) -> usize {
        self.initiator.context.peers.find(self.to).unwrap().maps.mapped_count()
    }
}

fn filled(len: usize, byte: u8) -> Buffer {
    let mut buffer = alloc(len).unwrap();
    buffer.fill(byte);
    buffer
}

#[test]
fn transfers_go_through_a_mapping_from_the_second_use_on() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(100_000, 3), Rights::all());
    let near = pair.initiator.register(vec![0; 100_000], Rights::empty());
    let descriptor = far.descriptor();
    pair.map(&near, &descriptor);
    pair.transfer(false, &near, &descriptor, 100_000).unwrap();
    let mut seen = vec![0; 100_000];
    near.read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|byte| *byte == 3));
    near.write(0, &[9; 5000]).unwrap();
    pair.transfer(true, &near, &descriptor, 5000).unwrap();
    far.read(0, &mut seen).unwrap();
    assert!(seen[..5000].iter().all(|byte| *byte == 9) && seen[5000] == 3);
}

#[test]
fn a_short_transfer_through_a_mapping_is_over_as_soon_as_it_is_begun() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 3), Rights::READ);
    let near = pair.initiator.register(vec![0; 4096], Rights::empty());
    pair.map(&near, &far.descriptor());
    let (local, remote) = (near.slice(0, 4096).unwrap(), far.descriptor().slice(0, 4096).unwrap());
    let get = Op::Get { from: pair.to, local, remote };
    let begun = pair.initiator.context.begin(&get.transit().unwrap());
    assert!(matches!(begun, Begun::Over));
    let mut seen = [0; 4096];
    near.read(0, &mut seen).unwrap();
    assert_eq!(seen, [3; 4096]);
}

#[test]
fn bytes_are_fetched_by_the_kernel_or_out_of_a_mapping_and_never_of_memory_that_is_gone() {
    let mut pair = Pair::connected();
    let heap = pair.owner.register(vec![5; 20_000], Rights::READ);
    let far = pair.owner.register(filled(100_000, 3), Rights::READ);
    let (heap_at, far_at) = (heap.descriptor().clone(), far.descriptor().clone());
    let fetch = |pair: &mut Pair, from: &Descriptor, offset, into: &mut [u8]| {
        let is_over = pair.initiator.context.fetch(pair.to, from, offset, into, true).finish();
        // A round, so that nothing is refused because it had none.
        pair.initiator.round();
        is_over
    };
    let (mut short, mut long) = ([0; 16 * 1024], [0; 64 * 1024]);
    assert!(fetch(&mut pair, &heap_at, 3, &mut short) && short == [5; 16 * 1024]);
    assert!(fetch(&mut pair, &heap_at, 3, &mut []) && !fetch(&mut pair, &heap_at, 0, &mut long));
    // What can be mapped is got by the kernel until it is.
    assert!(fetch(&mut pair, &far_at, 0, &mut short) && short == [3; 16 * 1024]);
    let near = pair.initiator.register(vec![0; 8], Rights::empty());
    pair.map(&near, &far_at);
    assert!(fetch(&mut pair, &far_at, 100_000 - 65_536, &mut long) && long == [3; 65_536]);
    assert!(!fetch(&mut pair, &far_at, 100_001 - 65_536, &mut long));
    drop((heap, far));
    assert!(!fetch(&mut pair, &heap_at, 3, &mut short));
    assert!(!fetch(&mut pair, &far_at, 0, &mut short));
}

#[test]
fn memory_without_the_right_to_write_is_mapped_for_reading_and_written_by_nobody() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 3), Rights::READ);
    let near = pair.initiator.register(vec![0; 4096], Rights::empty());
    let descriptor = far.descriptor();
    pair.map(&near, &descriptor);
    let refused = pair.transfer(true, &near, &descriptor, 8);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    // Registered for writing after all: reads go through the mapping, writes by the kernel.
    let buffer = Buffer::try_from(far.unregister().unwrap()).unwrap();
    let far = pair.owner.register(buffer, Rights::all());
    let descriptor = far.descriptor();
    pair.until(|pair| pair.mapped() == 0);
    pair.map(&near, &descriptor);
    pair.transfer(true, &near, &descriptor, 1).unwrap();
}

#[test]
fn a_view_of_frozen_memory_gives_a_slice_and_one_of_other_memory_does_not() {
    let mut pair = Pair::connected();
    let frozen = filled(10_000, 5).freeze().unwrap();
    let kept = frozen.clone();
    let far = pair.owner.register(frozen, Rights::READ);
    let view = pair.view(&far.descriptor(), 100, 50).unwrap();
    assert_eq!(view.as_slice(), Some(&[5; 50][..]));
    // Frozen memory goes back itself, and stays the same.
    let back = Frozen::try_from(far.unregister().unwrap()).unwrap();
    assert_eq!(back.as_ptr(), kept.as_ptr());
    assert_eq!(view.as_slice(), Some(&[5; 50][..]));

    let far = pair.owner.register(filled(10_000, 6), Rights::READ);
    let view = pair.view(&far.descriptor(), 9_999, 1).unwrap();
    assert_eq!((view.as_slice(), view.to_vec().unwrap()), (None, vec![6]));
    far.write(9_999, &[7]).unwrap();
    assert_eq!(view.to_vec().unwrap(), [7]);
}

#[test]
fn memory_that_is_not_shared_cannot_be_viewed() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(vec![0; 8], Rights::all());
    let refused = pair.view(&far.descriptor(), 0, 8);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    let far = pair.owner.register(alloc(8).unwrap(), Rights::WRITE);
    let refused = pair.view(&far.descriptor(), 0, 8);
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    let descriptor = far.descriptor();
    far.unregister().unwrap();
    let refused = pair.view(&descriptor, 0, 8);
    assert!(matches!(refused, Err(Error::StaleDescriptor)), "{refused:?}");
}

#[test]
fn an_owner_whose_memory_is_viewed_gets_a_copy() {
    let mut pair = Pair::connected();
    for rights in [Rights::READ, Rights::all()] {
        let far = pair.owner.register(filled(4096, 6), rights);
        let view = pair.view(&far.descriptor(), 0, 4096).unwrap();
        let other = view.clone();
        drop(view);
        let mut buffer = Buffer::try_from(far.unregister().unwrap()).unwrap();
        assert_eq!(&*buffer, [6; 4096]);
        buffer.fill(1);
        assert_eq!(other.to_vec().unwrap(), [6; 4096], "what it writes now is not seen");
    }
}

#[test]
fn memory_that_a_peer_was_given_comes_back_as_a_copy_and_any_other_itself() {
    let mut pair = Pair::connected();
    for rights in [Rights::READ, Rights::all()] {
        let memory = Memory::from(filled(4096, 6));
        let address = memory.segments()[0].address;
        let far = pair.owner.register(memory, rights);
        let memory = far.unregister().unwrap();
        assert_eq!(memory.segments()[0].address, address, "nobody has it mapped");
        let far = pair.owner.register(memory, rights);
        drop(pair.view(&far.descriptor(), 0, 4096).unwrap());
        let memory = far.unregister().unwrap();
        assert_ne!(memory.segments()[0].address, address, "it was mapped by a peer");
        assert_eq!(&*Buffer::try_from(memory).unwrap(), [6; 4096]);
        pair.until(|pair| pair.mapped() == 0); // The peer was told.
    }
}

#[test]
fn a_region_that_is_dropped_is_unmapped_by_its_peers() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 6), Rights::all());
    drop(pair.view(&far.descriptor(), 0, 4096).unwrap());
    drop(far);
    pair.until(|pair| pair.mapped() == 0);
}

#[test]
#[expect(unsafe_code, reason = "a second mapping, of which nobody tells the owner")]
fn a_peer_that_has_memory_mapped_twice_writes_nothing_that_its_owner_was_given_back() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 6), Rights::all());
    let near = pair.initiator.register(vec![9; 4096], Rights::empty());
    pair.map(&near, &far.descriptor());
    let claim = RegionClaim::decode(far.descriptor().opaque()).unwrap();
    let connection = pair.initiator.context.peers.find(pair.to).unwrap();
    let address = connection.maps.find(&claim).unwrap().memory.segments()[0].address;
    let mapped: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY:
    // - a length of 0: the same pages once more, at an address of the kernel's choice.
    let twice = unsafe { libc::mremap(mapped, 0, 4096, libc::MREMAP_MAYMOVE) };
    assert_ne!(twice, libc::MAP_FAILED);
    let mut buffer = Buffer::try_from(far.unregister().unwrap()).unwrap();
    buffer[1] = 8;
    // SAFETY:
    // - mapped above, for writing, and never unmapped; no reference into it is made here.
    unsafe { twice.cast::<[u8; 2]>().write([9, 9]) };
    assert_eq!(buffer[..2], [6, 8]);
}

#[test]
fn a_push_through_a_kept_mapping_after_unregistering_changes_nothing_that_the_owner_sees() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 6), Rights::all());
    let near = pair.initiator.register(vec![9; 4096], Rights::empty());
    let descriptor = far.descriptor();
    pair.map(&near, &descriptor);
    let claim = RegionClaim::decode(descriptor.opaque()).unwrap();
    let connection = pair.initiator.context.peers.find(pair.to).unwrap();
    let kept = Arc::clone(connection.maps.find(&claim).unwrap());
    let mut buffer = Buffer::try_from(far.unregister().unwrap()).unwrap();
    hg_na_memory::copy_in(&kept.memory, 0, &[9; 4096]).unwrap();
    assert_eq!(&*buffer, [6; 4096]);
    buffer.fill(2);
    let mut seen = [0; 4096];
    hg_na_memory::copy_out(&kept.memory, 0, &mut seen).unwrap();
    assert_eq!(seen, [9; 4096]);
    let stale = pair.transfer(true, &near, &descriptor, 8);
    assert!(matches!(stale, Err(Error::StaleDescriptor)), "{stale:?}");
}

#[test]
fn a_descriptor_with_a_wrong_token_spoils_nothing_for_the_right_one() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 6), Rights::READ);
    let near = pair.initiator.register(vec![9; 4096], Rights::empty());
    // The generation, then the token.
    for place in [20, 20, 20, 39, 39, 39] {
        let mut forged = far.descriptor().opaque().to_vec();
        forged[place] ^= 2;
        let forged = Descriptor::new(4096, Rights::READ, &forged);
        let refused = pair.transfer(false, &near, &forged, 8);
        assert!(matches!(refused, Err(Error::StaleDescriptor)), "{refused:?}");
        assert!(matches!(pair.view(&forged, 0, 8), Err(Error::StaleDescriptor)));
    }
    assert_eq!(pair.view(&far.descriptor(), 0, 4096).unwrap().to_vec().unwrap(), [6; 4096]);
    pair.map(&near, &far.descriptor());
}

#[test]
fn a_view_outlives_connection_context_and_owner() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(4096, 6), Rights::READ);
    let view = pair.view(&far.descriptor(), 0, 4096).unwrap();
    let Pair { initiator, mut owner, .. } = pair;
    drop(initiator);
    let start = Instant::now();
    while !owner.done.drain(..).any(|it| matches!(it, Completion::Gone { .. })) {
        in_time!(start);
        owner.round();
    }
    let mut buffer = Buffer::try_from(far.unregister().unwrap()).unwrap();
    buffer.fill(1);
    drop((owner, buffer));
    assert_eq!(view.to_vec().unwrap(), [6; 4096]);
}

#[test]
fn only_so_many_regions_are_mapped_at_a_time_and_the_oldest_give_way() {
    let mut pair = Pair::connected();
    let regions: Vec<_> =
        (0..MAPS + 9).map(|_| pair.owner.register(filled(64, 1), Rights::READ)).collect();
    for region in &regions {
        drop(pair.view(&region.descriptor(), 0, 64).unwrap());
    }
    assert_eq!(pair.mapped(), MAPS);
    let views: Vec<_> =
        regions.iter().map(|it| pair.view(&it.descriptor(), 0, 64).unwrap()).collect();
    assert_eq!(pair.mapped(), MAPS, "beside what the views hold");
    assert!(views.iter().all(|view| view.to_vec().unwrap() == [1; 64]));
}

#[test]
fn a_view_that_waits_is_cancelled_and_ends_with_its_peer() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(64, 1), Rights::READ);
    let remote = far.descriptor().slice(0, 64).unwrap();
    let id =
        pair.initiator.context.post(3, Op::View { from: pair.to, remote: remote.clone() }).unwrap();
    pair.initiator.context.post(4, Op::View { from: pair.to, remote }).unwrap();
    pair.initiator.context.cancel(id);
    pair.initiator.context.forget(pair.to);
    pair.initiator.round();
    let ends: Vec<_> = pair
        .initiator
        .done
        .iter()
        .filter_map(|it| match it {
            Completion::Done(done) => Some((done.token, done.result.is_err())),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(3, true), (4, true)]);
}

#[test]
fn a_thousand_regions_leave_no_mapping() {
    let mut pair = Pair::connected();
    let near = pair.initiator.register(vec![9; 4096], Rights::empty());
    for _ in 0..1000 {
        let far = pair.owner.register(filled(4096, 6), Rights::READ);
        drop(pair.view(&far.descriptor(), 0, 4096).unwrap());
        pair.transfer(false, &near, &far.descriptor(), 4096).unwrap();
    }
    pair.until(|pair| pair.mapped() == 0);
}

#[test]
fn the_plugin_says_that_it_has_views() {
    let url = "sm://".parse().unwrap();
    let domain = crate::SmPlugin.open(&url, &OpenOptions::listening()).unwrap();
    assert!(domain.caps().views);
}

#[test]
fn a_short_transfer_of_ordinary_memory_is_moved_at_once_or_left_as_it_was() {
    let mut pair = Pair::connected();
    let local = pair.initiator.register(vec![1; 4096], Rights::empty());
    let theirs = pair.owner.register(vec![2; 4096], Rights::READ | Rights::WRITE);
    let (far, to) = (theirs.descriptor(), pair.to);
    let slices = |far: &Descriptor, offset, len| {
        (local.slice(offset, len).unwrap(), far.slice(offset, len).unwrap())
    };
    let (near, remote) = slices(&far, 1000, 50);
    assert!(pair.at_once(&Op::Get { from: to, local: near, remote }));
    let (near, remote) = slices(&far, 0, 1025);
    assert!(pair.at_once(&Op::Put { to, local: near, remote }));
    let mut seen = vec![0; 4096];
    theirs.read(0, &mut seen).unwrap();
    let put = [vec![1; 1000], vec![2; 3096]].concat();
    assert_eq!(seen, put);
    local.read(0, &mut seen).unwrap();
    assert_eq!(seen, [vec![1; 1000], vec![2; 50], vec![1; 3046]].concat());
    // Neither are those that posting refuses, nor those that it would end with an error.
    let read_only = pair.owner.register(vec![3; 4096], Rights::READ);
    let (near, remote) = slices(&read_only.descriptor(), 0, 8);
    assert!(!pair.at_once(&Op::Put { to, local: near, remote }));
    let longer = Descriptor::new(8192, Rights::READ, far.opaque());
    let (near, remote) = (local.slice(0, 8).unwrap(), longer.slice(4090, 8).unwrap());
    assert!(!pair.at_once(&Op::Get { from: to, local: near, remote }));
    theirs.unregister().unwrap();
    let (near, remote) = slices(&far, 0, 8);
    let stale = Op::Get { from: to, local: near, remote };
    assert!(!pair.at_once(&stale));
    assert_eq!(
        pair.transfer(false, &local, &far, 8).unwrap_err().to_string(),
        Error::StaleDescriptor.to_string()
    );
    drop((stale, pair.initiator.done.drain(..)));
    local.read(0, &mut seen).unwrap();
    assert_eq!(seen, [vec![1; 1000], vec![2; 50], vec![1; 3046]].concat());
}

#[test]
fn movers_through_one_mapping_run_side_by_side_after_their_connection_is_closed() {
    let mut pair = Pair::connected();
    let far = pair.owner.register(filled(200_000, 3), Rights::all());
    let near = pair.initiator.register(vec![0; 200_000], Rights::empty());
    pair.map(&near, &far.descriptor());
    let op = |is_put: bool| {
        let local = near.slice(0, 100_000).unwrap();
        let remote = far.descriptor().slice(0, 100_000).unwrap();
        if is_put {
            Op::Put { to: pair.to, local, remote }
        } else {
            Op::Get { from: pair.to, local, remote }
        }
    };
    let (put, get) = (op(true), op(false));
    near.write(0, &[0]).unwrap(); // What mapping it has left.
    let Pair { mut initiator, owner, to } = pair;
    let mut begin = |op| match initiator.context.begin(&Op::transit(op).unwrap()) {
        Begun::Ready(mover) => mover,
        other => panic!("{other:?}"),
    };
    let (put, get) = (begin(&put), begin(&get));
    initiator.context.forget(to);
    initiator.round();
    std::thread::scope(|scope| {
        scope.spawn(|| put.run().unwrap());
        scope.spawn(|| get.run().unwrap());
    });
    let (mut mine, mut theirs) = ([0; 100_000], [0; 100_000]);
    near.read(0, &mut mine).unwrap();
    far.read(0, &mut theirs).unwrap();
    // Whichever was first, whole.
    assert!(mine == theirs && (mine == [0; 100_000] || mine == [3; 100_000]));
    drop(owner);
}

/// What a peer does not take, for it has stopped, is no burden of others.
#[test]
fn what_waits_for_a_stopped_peer_keeps_nothing_from_a_healthy_one() {
    let mut pair = Pair::connected();
    let mut stopped = Side::open();
    let far = [&stopped, &pair.owner].map(|side| side.register(filled(64, 3), Rights::READ));
    let near = pair.initiator.register(vec![0; 64], Rights::empty());
    let to = pair.initiator.context.lookup(stopped.context.address()).unwrap();
    let get = |from, far: &Region| {
        let remote = far.descriptor().slice(0, 64).unwrap();
        Op::Get { from, local: near.slice(0, 64).unwrap(), remote }
    };
    let view =
        |from, far: &Region| Op::View { from, remote: far.descriptor().slice(0, 64).unwrap() };
    let mut accepted = 0;
    for make in [&get as &dyn Fn(Peer, &Region) -> Op, &view] {
        let refused = loop {
            match pair.initiator.context.post(1, make(to, &far[0])) {
                Ok(_) => accepted += 1,
                Err(rejected) => break rejected.error,
            }
        };
        assert!(matches!(refused, Error::Again), "{refused:?}");
        assert!(pair.finish(make(pair.to, &far[1])).result.is_ok());
    }
    assert!(
        accepted > 0 && !pair.initiator.done.iter().any(|it| matches!(it, Completion::Room { .. }))
    );
    // It goes on: everything completes, and room is told of.
    let mut rooms = 0;
    pair.until(|pair| {
        stopped.round();
        for completion in pair.initiator.done.drain(..) {
            match completion {
                Completion::Done(done) => accepted -= usize::from(done.result.is_ok()),
                Completion::Room { peer } => rooms += usize::from(peer == to),
                other => panic!("{other:?}"),
            }
        }
        accepted == 0
    });
    assert!(rooms > 0);
}
