//! Memory of devices: it is moved over lent memory alone, however short, and where that fails it is refused by name.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc};

use hg_na::{
    Completion, Device, Done, Error, Memory, Op, Region, RegionState, Returned, Rights, Segment,
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
    let fabric: Fabric = Rc::new(RefCell::new(BTreeMap::new()));
    let (mut own, mut other) = (End::new(seed, &fabric), End::new(seed + 1000, &fabric));
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
    own.links.post(1, op, |_| 0).map_err(|rejected| rejected.error).unwrap();
    for _ in 0..10_000 {
        for end in [&mut own, &mut other] {
            end.send(WIRE);
            end.moved();
            end.land(0);
        }
        deliver(&mut own, &mut other);
        deliver(&mut other, &mut own);
        let ended = own.done.drain(..).find_map(|it| match it {
            Completion::Done(Done { token: 1, result, returned: Returned::Slice(_), .. }) => {
                Some(result)
            }
            _ => None,
        });
        if let Some(result) = ended {
            assert!(fabric.borrow().is_empty(), "what was lent is taken back");
            return result.map_err(|failure| failure.error);
        }
    }
    panic!("seed {seed}: it does not end");
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
