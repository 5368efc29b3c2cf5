//! Every range of one side into every range of the other, however both are cut.

use hg::bulk::{Bulk, Descriptor, Rights};

use super::{
    Scene, forward, holds, listening, move_range, mover, open, patterned, patterned_segments,
    zeroed_segments,
};
use crate::{
    common::{Random, Watchdog},
    transports::bulk_urls,
};

impl Scene {
    /// Has the other process pull a range of memory, and push one into other memory, and checks both.
    fn check(&self, lens: &[u64], (remote, local, len): (u64, u64, u64), local_lens: &[u64]) {
        let run = |is_pull, what: Descriptor| {
            let arguments = (is_pull, what, (remote, local, len), local_lens.to_vec());
            self.engine.call(move_range, &self.peer, arguments).wait().unwrap()
        };
        let source = self.engine.expose(patterned_segments(lens), Rights::READ).unwrap();
        assert_eq!(run(true, source.descriptor()), "Ok", "pull {len} at {remote} to {local}");
        let target = self.engine.expose(zeroed_segments(lens), Rights::WRITE).unwrap();
        assert_eq!(run(false, target.descriptor()), "Ok", "push {len} at {local} to {remote}");
        let bytes = target.into_vec().unwrap();
        assert!(holds(&bytes, local, remote, len), "push {len} at {local} to {remote}");
        assert_eq!(source.into_vec().unwrap().len() as u64, lens.iter().sum::<u64>());
    }
}

#[test]
fn null_descriptors_and_zero_sizes_are_over_at_once() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        scene.check(&[], (0, 0, 0), &[]);
        scene.check(&[0], (0, 0, 0), &[0, 0]);
        scene.check(&[100], (100, 3, 0), &[50]);
        scene.check(&[0, 8, 0, 8, 0], (4, 1, 8), &[0, 3, 0, 0, 20]);
        // Nobody is asked: not even whether the owner lives.
        let nobody = scene.engine.lookup(scene.engine.address()).unwrap();
        let null = scene.engine.expose(Vec::<u8>::new(), Rights::all()).unwrap();
        scene.engine.pull(&nobody, null.descriptor(), &null).wait().unwrap();
        assert!(null.descriptor().is_empty());
    }
}

#[test]
fn full_unaligned_and_shifted_ranges_move() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        for len in [1_u64, 8, 1000, 4096, 65_536, 1_000_003, (9 << 20) + 1] {
            let quarter = (len / 4).max(1);
            let eighth = (len / 8).max(1);
            for range in [(0, 0, len), (len / 2 - len / 2 % 2, 0, quarter), (1 % len, 5, eighth)] {
                if range.0 + range.2 <= len {
                    scene.check(&[len], range, &[len + 8]);
                }
            }
        }
    }
}

#[test]
fn two_segments_move_whole_second_only_and_straddling() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        for local in [&[16][..], &[8, 8], &[3, 13], &[1; 16]] {
            scene.check(&[8, 8], (0, 0, 16), local);
            scene.check(&[8, 8], (8, 8, 8), local);
            scene.check(&[8, 8], (8, 0, 8), local);
            scene.check(&[8, 8], (5, 2, 7), local);
        }
    }
}

#[test]
fn sixteen_1024_and_more_segments_than_one_operation_takes_move() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        // As many as one operation takes are one region.
        for (count, regions) in [(1024, 1_u32), (1025, 2)] {
            let bulk = scene.engine.expose(zeroed_segments(&vec![37; count]), Rights::all());
            assert_eq!(bulk.unwrap().descriptor().as_bytes()[4..8], regions.to_le_bytes());
        }
        for count in [16, 1024, 3000] {
            let lens = vec![37; count];
            let all: u64 = lens.iter().sum();
            let (fewer, more) = (vec![all / 2 + 1; 2], vec![29; count * 37 / 29 + 1]);
            scene.check(&lens, (0, 0, all), &lens);
            scene.check(&lens, (0, 0, all), &fewer);
            scene.check(&lens, (11, 5, all - 20), &more);
        }
    }
}

#[test]
fn random_cuts_on_both_sides_move_every_byte_to_its_place() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        let mut random = Random::new(7);
        for _ in 0..60 {
            let mut cut = || -> Vec<u64> {
                let count = random.below(20) + 1;
                (0..count).map(|_| random.below(5000)).collect()
            };
            let (far, near) = (cut(), cut());
            let (far_len, near_len) = (far.iter().sum::<u64>(), near.iter().sum::<u64>());
            let (remote, local) = (random.below(far_len + 1), random.below(near_len + 1));
            let len = random.below((far_len - remote).min(near_len - local) + 1);
            scene.check(&far, (remote, local, len), &near);
        }
    }
}

#[test]
fn a_bound_descriptor_is_used_by_a_third_process() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let scene = Scene::new(url);
        let (_third, address) = mover(url);
        let forwarded = |is_pull, bulk: &Bulk, range: (u64, u64, u64)| {
            let lens = vec![1000, 100_000];
            let arguments = (address.clone(), is_pull, bulk.bound_descriptor(), range, lens);
            scene.engine.call(forward, &scene.peer, arguments).wait()
        };
        let source = scene.engine.expose(patterned(100_000), Rights::READ).unwrap();
        assert_eq!(forwarded(true, &source, (777, 33, 90_001)).unwrap(), "Ok");
        let target = scene.engine.expose(vec![0; 100_000], Rights::WRITE).unwrap();
        assert_eq!(forwarded(false, &target, (777, 33, 90_001)).unwrap(), "Ok");
        assert!(holds(&target.into_vec().unwrap(), 33, 777, 90_001));
        let unbound = source.descriptor();
        assert!(scene.engine.owner_of(&unbound).is_err());
    }
}

#[test]
fn each_context_exposes_and_moves_and_a_bound_descriptor_names_it() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let owner = open(hg::builder().listen(true).contexts(3), url);
        let user = open(hg::builder().contexts(2), url);
        for owning in (0..3).map(|index| owner.context(index).unwrap()) {
            let bulk = owning.expose(patterned(50_000), Rights::READ).unwrap();
            let descriptor = bulk.bound_descriptor();
            assert_eq!(descriptor.owner(), Some(owning.address()));
            for using in (0..2).map(|index| user.context(index).unwrap()) {
                let peer = using.owner_of(&descriptor).unwrap();
                assert_eq!(using.fetch(&peer, &descriptor).wait().unwrap(), patterned(50_000));
            }
        }
    }
}

#[test]
fn bulk_to_oneself_moves() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let engine = listening(url);
        let me = engine.lookup(engine.address()).unwrap();
        let source = engine.expose(patterned(300_000), Rights::READ).unwrap();
        let target = engine.expose(vec![0; 300_000], Rights::WRITE).unwrap();
        let part = source.descriptor().range(1..200_000).unwrap();
        engine.pull(&me, part, target.range(100_001..).unwrap()).wait().unwrap();
        assert!(holds(&target.to_vec().unwrap(), 1, 100_001, 199_999));
        engine.push(&me, &source, target.descriptor()).wait().unwrap();
        assert_eq!(target.into_vec().unwrap(), patterned(300_000));
    }
}

#[test]
fn many_transfers_share_memory_and_all_arrive() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (owner, user) = (listening(url), open(hg::builder(), url));
        let peer = user.lookup(owner.address()).unwrap();
        let source = owner.expose(patterned(1 << 20), Rights::READ).unwrap();
        let descriptor = source.descriptor();
        let target = user.expose(vec![0; 1 << 20], Rights::empty()).unwrap();
        // More than the transport takes at a time: some wait for room.
        let transfers: Vec<_> = (0..4096)
            .map(|at| {
                let range = at * 256..(at + 1) * 256;
                let far = descriptor.range(range.clone()).unwrap();
                user.pull(&peer, far, target.range(range).unwrap())
            })
            .collect();
        for transfer in transfers {
            transfer.wait().unwrap();
        }
        assert_eq!(user.transfers_under_way(), 0);
        assert_eq!(target.into_vec().unwrap(), patterned(1 << 20));
    }
}
