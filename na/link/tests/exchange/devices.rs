//! Memory of devices: it is moved over lent memory alone, however short, and where that fails it is refused by name.

use std::{rc::Rc, sync::Arc};

use hg_na::{
    Completion, Device, Done, Error, GoneReason, Memory, Op, OpId, Region, RegionState, Returned,
    Rights, Segment,
};
use hg_na_link::{Framed, Header, Kind};
use hg_na_parts::regions::{Regions, ServedRegion};

use crate::end::{End, Fabric, Rng};

const WIRE: usize = 1;

/// A region of so many bytes, which is a device's or not.
#[expect(unsafe_code, reason = "memory that nobody may touch")]
fn region(regions: &Arc<Regions>, is_on_device: bool, len: usize) -> Arc<ServedRegion> {
    if !is_on_device {
        return ServedRegion::register(regions, Memory::from(vec![0; len]), Rights::all()).unwrap();
    }
    let segments = vec![Segment { address: 1 << 40, len }];
    // SAFETY:
    // - there is no such device: nothing reaches it.
    let memory = unsafe { Memory::on_device(Device::LevelZero(1), segments, true, Arc::new(())) };
    ServedRegion::register_anywhere(regions, memory, Rights::all()).unwrap()
}

/// Hands frames over; none of them carries bytes of a transfer.
fn deliver(from: &mut End, to: &mut End) {
    let Some(frame) = from.card.out.get_mut(&WIRE).and_then(|frames| frames.pop_front()) else {
        return;
    };
    let (_, header, _) = Header::decode(&frame).unwrap();
    let carries = [Kind::Get, Kind::Put, Kind::GetData, Kind::PutData];
    assert!(!carries.contains(&header.kind), "bytes of a device in a message: {header:?}");
    to.take(WIRE, &frame).unwrap();
}

/// One transfer between two ends, and how it ended.
fn transfer(seed: u64, is_put: bool, on_device: [bool; 2], len: usize) -> Result<(), Error> {
    let fabric: Fabric = Rc::default();
    let (mut own, mut other, _, _far) = posted(seed, is_put, on_device, len, &fabric);
    let result =
        goes_on(&mut own, &mut other).unwrap_or_else(|| panic!("seed {seed}: it does not end"));
    assert!(fabric.borrow().is_empty(), "what was lent is taken back");
    result
}

/// Two ends, and a transfer that the first one has posted.
fn posted(
    seed: u64,
    is_put: bool,
    on_device: [bool; 2],
    len: usize,
    fabric: &Fabric,
) -> (End, End, OpId, Arc<ServedRegion>) {
    let (mut own, mut other) = (End::new(seed, fabric), End::new(seed + 1000, fabric));
    let to = own.links.look_up(0, || Framed::new(WIRE));
    own.peers.insert(WIRE, to);
    let from = other.links.accept(Framed::new(WIRE));
    other.peers.insert(WIRE, from);
    let near = region(&own.regions, on_device[0], len);
    let far = region(&other.regions, on_device[1], len);
    let near = Region::new(near as Arc<dyn RegionState>);
    let local = near.slice(0, len as u64).unwrap();
    let remote = far.descriptor().slice(0, len as u64).unwrap();
    let op =
        if is_put { Op::Put { to, local, remote } } else { Op::Get { from: to, local, remote } };
    let id = own.links.post(1, op, |_| 0).map_err(|rejected| rejected.error).unwrap();
    (own, other, id, far)
}

/// Both ends go on until the first one's transfer ends.
fn goes_on(own: &mut End, other: &mut End) -> Option<Result<(), Error>> {
    for _ in 0..10_000 {
        for end in [&mut *own, &mut *other] {
            end.send(WIRE);
            end.moved();
            end.land(0);
        }
        deliver(own, other);
        deliver(other, own);
        let ended = own.done.drain(..).find_map(|it| match it {
            Completion::Done(Done { token: 1, result, returned: Returned::Slice(_), .. }) => {
                Some(result.map_err(|failure| failure.error))
            }
            _ => None,
        });
        if ended.is_some() {
            return ended;
        }
    }
    None
}

#[test]
fn what_is_lent_stays_lent_while_the_carrier_takes_nothing_and_goes_back_once() {
    for seed in 0..120 {
        let fabric: Fabric = Rc::default();
        let mut rng = Rng(seed);
        let (mut own, mut other, id, _far) =
            posted(seed, rng.one_in(2), [true, true], 500, &fabric);
        own.card.is_stalled = true;
        (0..100).for_each(|_| assert!(own.send(WIRE) || !own.done.is_empty()));
        if !own.done.is_empty() {
            // The carrier lends nothing.
            assert_eq!(own.card.lends, 0);
            continue;
        }
        assert_eq!((own.card.lends, fabric.borrow().len()), (1, 1), "seed {seed}");
        match seed % 3 {
            0 => {
                own.card.is_stalled = false;
                assert!(goes_on(&mut own, &mut other).is_some());
            }
            1 => own.cancel(id),
            _ => own.end(WIRE, &GoneReason::Exited),
        }
        assert!(fabric.borrow().is_empty(), "seed {seed}: what was lent is taken back");
    }
}

#[test]
fn memory_of_a_device_travels_over_lent_memory_alone_or_is_refused_by_name() {
    let (mut moved, mut refused, mut short) = (0, 0, 0);
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let on_device = *rng.pick(&[[true, false], [false, true], [true, true]]).unwrap();
        // Some would go in frames by their length.
        let len = 1 + rng.below(600);
        match transfer(seed, rng.one_in(2), on_device, len) {
            Ok(()) => {
                moved += 1;
                // Memory of the processor is not lent for so few.
                short += usize::from(len < 150);
            }
            // The carrier lends and moves nothing at times.
            Err(Error::Unsupported(why)) => {
                assert!(why.contains("memory of a device"), "{why}");
                refused += 1;
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(
        moved > 50 && refused > 10 && short > 5,
        "{moved} moved, {short} short, {refused} refused"
    );
}
