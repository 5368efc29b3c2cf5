//! Groups over real engines, each member one of its own in this process, over shared memory and over sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on")]

mod checksums;
mod members;
mod nodes;
mod refused;

use std::{
    sync::{Arc, Mutex},
    thread,
};

use hg::{Address, bulk::Rights};
use hg_multicast::{
    Blocks, Data, Destination, Error, Group, GroupId, Multicast, Object, Options, schedule::Choice,
};
use watchdog::Watchdog;

use members::{Members, URLS, bytes, close, options, take};

const ALL: [Choice; 6] = [
    Choice::Auto,
    Choice::Sequential,
    Choice::Chain,
    Choice::Tree,
    Choice::Pipeline,
    Choice::Hybrid,
];

#[test]
fn objects_of_all_sizes_reach_all_by_every_schedule_in_order() {
    let _watchdog = Watchdog::start();
    let sizes = [0, 1, 4096, 10_240, 10_241, 300_000, 64 << 10, 1_000_001];
    for url in URLS {
        for count in [2, 3, 5, 8] {
            let members = Members::open(url, count);
            for schedule in ALL {
                let groups = members.group(&options(schedule, 64 << 10));
                let sendings: Vec<_> = (0..)
                    .zip(sizes)
                    .map(|(seed, size)| {
                        groups[0].send(bytes(seed, size), &[u8::try_from(seed).unwrap()]).unwrap()
                    })
                    .collect();
                for group in &groups[1..] {
                    for (seed, size) in (0..).zip(sizes) {
                        let received = take(group);
                        let what = format!("{url} {count} {schedule:?} {size}");
                        assert_eq!(received.metadata, [u8::try_from(seed).unwrap()], "{what}");
                        assert!(
                            received.data.into_vec().unwrap() == Some(bytes(seed, size)),
                            "{what}"
                        );
                    }
                }
                sendings.into_iter().for_each(|it| it.wait().unwrap());
                close(groups);
            }
        }
    }
}

#[test]
fn files_are_read_and_written_by_blocks() {
    let _watchdog = Watchdog::start();
    let folder = std::env::temp_dir().join(format!("multicast-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let expected = bytes(3, 3_000_001);
    std::fs::write(folder.join("source"), &expected).unwrap();
    for (url, block_size) in [("sm://", 100_000), ("tcp://127.0.0.1", 64_000), ("sm://", 8192)] {
        let members = Members::open(url, 5);
        for schedule in [Choice::Auto, Choice::Pipeline, Choice::Chain] {
            let target = |own| folder.join(format!("target-{own}"));
            let groups = members.group_with(&options(schedule, block_size), |own| {
                let file = std::fs::File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(target(own))
                    .unwrap();
                move |_: hg_multicast::Incoming<'_>| {
                    Ok(Destination::Blocks(Box::new(file.try_clone().unwrap())))
                }
            });
            let source = std::fs::File::open(folder.join("source")).unwrap();
            let sending = groups[0].send(Object::file(source).unwrap(), b"").unwrap();
            for group in &groups[1..] {
                let received = take(group);
                assert!(matches!(received.data, Data::Blocks(_)) && received.size == 3_000_001);
            }
            sending.wait().unwrap();
            close(groups);
            for own in 1..5 {
                assert!(
                    std::fs::read(target(own)).unwrap() == expected,
                    "{url} {schedule:?} {own}"
                );
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn registered_memory_is_sent_and_filled_again_and_again() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 4);
        let register = |it: &Multicast, bytes| {
            Arc::new(it.engine().expose(bytes, hg::bulk::Rights::READ).unwrap())
        };
        let source = register(&members.processes[0], bytes(1, 500_000));
        let memory: Vec<_> =
            members.processes.iter().map(|it| register(it, vec![0; 500_000])).collect();
        let groups = members.group_with(&options(Choice::Pipeline, 32 << 10), |own| {
            let memory = Arc::clone(&memory[own]);
            move |_: hg_multicast::Incoming<'_>| Ok(Destination::Registered(Arc::clone(&memory)))
        });
        for _ in 0..5 {
            groups[0].send(Arc::clone(&source), b"").unwrap().wait().unwrap();
            for group in &groups[1..] {
                let Data::Registered(memory) = take(group).data else {
                    panic!("it was registered")
                };
                assert!(memory.to_vec().unwrap() == bytes(1, 500_000));
            }
        }
        close(groups);
    }
}

/// The last block of it is so short that it rides in its offer.
const FROZEN: usize = 15 * (64 << 10) + 100;

#[test]
fn frozen_memory_is_seen_where_it_lies_and_copied_where_that_cannot_be() {
    let _watchdog = Watchdog::start();
    for (url, schedule) in
        [("sm://", Choice::Auto), ("sm://", Choice::Chain), (URLS[1], Choice::Auto)]
    {
        let members = Members::open(url, 4);
        let groups = members.group_with(&options(schedule, 64 << 10), |_| {
            |_: hg_multicast::Incoming<'_>| Ok(Destination::Mapped)
        });
        let mut buffer = hg::bulk::alloc(FROZEN).unwrap();
        buffer.copy_from_slice(&bytes(1, FROZEN));
        let frozen = groups[0].send(buffer.freeze().unwrap(), b"").unwrap();
        let others = [bytes(2, 300_000), bytes(3, 5)].map(|it| groups[0].send(it, b"").unwrap());
        for group in &groups[1..] {
            let received = take(group);
            let is_frozen = |data: &Data| matches!(data, Data::Frozen(_));
            assert_eq!(is_frozen(&received.data), url == "sm://", "{url}");
            assert!(received.data.into_vec().unwrap() == Some(bytes(1, FROZEN)));
            for (seed, size) in [(2, 300_000), (3, 5)] {
                let received = take(group);
                assert_eq!(is_frozen(&received.data), url == "sm://" && size > 10_240);
                assert!(received.data.into_vec().unwrap() == Some(bytes(seed, size)));
            }
        }
        [frozen].into_iter().chain(others).for_each(|it| it.wait().unwrap());
        close(groups);
    }
}

#[test]
fn a_refusal_ends_the_group_by_name_and_is_told_to_all() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 5);
        let groups = members.group_with(&options(Choice::Pipeline, 32 << 10), |own| {
            move |incoming: hg_multicast::Incoming<'_>| {
                if own == 3 {
                    Err(format!("no room for {} bytes", incoming.size))
                } else {
                    Ok(Destination::Allocate)
                }
            }
        });
        let sending = groups[0].send(bytes(0, 400_000), b"").unwrap();
        assert_eq!(sending.wait().unwrap_err().member, 3);
        for group in groups {
            // What has come whole is given all the same.
            let failure = loop {
                match group.receive().wait() {
                    Ok(received) => assert!(received.is_some()),
                    Err(failure) => break failure,
                }
            };
            assert_eq!(failure.member, 3);
            assert!(failure.to_string().contains("no room for 400000 bytes"), "{failure}");
            assert_eq!(group.close().wait(), Err(failure));
        }
    }
}

/// Blocks that nobody can read nor write.
struct Broken;

impl Blocks for Broken {
    fn read_at(&mut self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        panic!("cannot be read")
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> std::io::Result<()> {
        panic!("cannot be written")
    }
}

#[test]
fn who_panics_over_a_block_ends_the_group_by_name() {
    let _watchdog = Watchdog::start();
    let members = Members::open("sm://", 2);
    let mut patient = Options::default();
    patient.join_within = std::time::Duration::MAX;
    for at_root in [true, false] {
        let groups = members.group_with(&patient, |_| {
            |_: hg_multicast::Incoming<'_>| Ok(Destination::Blocks(Box::new(Broken)))
        });
        let object = if at_root {
            Object::Blocks { from: Box::new(Broken), size: 100_000 }
        } else {
            bytes(0, 100_000).into()
        };
        let failure = groups[0].send(object, b"").unwrap().wait().unwrap_err();
        assert_eq!(failure.member, u32::from(!at_root));
        assert!(failure.why.contains("it has panicked"), "{failure}");
        assert_eq!(groups[1].receive().wait().unwrap_err(), failure);
    }
}

#[test]
fn who_leaves_without_closing_ends_the_group_for_all() {
    let _watchdog = Watchdog::start();
    for (url, leaver) in URLS.iter().flat_map(|url| [0, 2].map(|leaver| (url, leaver))) {
        let members = Members::open(url, 4);
        let mut groups = members.group(&Options::default());
        groups[0].joined().wait().unwrap();
        drop(groups.remove(leaver));
        for group in groups {
            let failure = group.receive().wait().unwrap_err();
            assert!(failure.member as usize == leaver && failure.why.contains("left"), "{failure}");
            assert!(group.close().wait().is_err());
        }
    }
}

#[test]
fn a_process_that_ends_its_multicast_is_named() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 4);
        let groups = members.group(&Options::default());
        groups[0].joined().wait().unwrap();
        members.processes[1].close();
        for (own, group) in groups.into_iter().enumerate().filter(|it| it.0 != 1) {
            let failure = group.receive().wait().unwrap_err();
            assert_eq!(failure.member, 1, "{own}: {failure}");
            assert!(group.close().wait().is_err());
        }
    }
}

#[test]
fn who_asks_for_something_after_the_end_of_its_multicast_is_answered() {
    let _watchdog = Watchdog::start();
    for _ in 0..20 {
        let members = Members::open("sm://", 2);
        let mut groups = members.group(&Options::default());
        let more = members.group(&Options::default());
        let process = &members.processes[0];
        thread::scope(|scope| {
            scope.spawn(|| process.close());
            // Before, while, or after it ends.
            let sent = groups[0].send(vec![0; 100_000], b"").map(|sending| sending.wait());
            assert!(matches!(sent, Ok(Ok(())) | Ok(Err(_)) | Err(Error::Failed(_))), "{sent:?}");
        });
        let root = groups.remove(0);
        assert_eq!(root.joined().wait().unwrap_err().member, 0);
        assert!(matches!(root.send(vec![1], b""), Err(Error::Failed(_))));
        assert_eq!(root.close().wait().unwrap_err().why, "this process has ended its multicast");
        let reformed = more.into_iter().next().unwrap().reform().wait();
        assert!(matches!(reformed, Err(Error::Closed)), "{reformed:?}");
        let id = GroupId::random().unwrap();
        let joined = process
            .group(id, &members.addresses, 0, Options::default(), |_| Ok(Destination::Allocate));
        assert!(matches!(joined, Err(Error::Closed | Error::Engine(_))), "{joined:?}");
    }
}

#[test]
fn whoever_does_not_join_is_named() {
    let _watchdog = Watchdog::start();
    let members = Members::open("sm://", 3);
    let mut options = Options::default();
    options.join_within = std::time::Duration::from_millis(100);
    let id = GroupId::random().unwrap();
    let join = |own: u32| {
        let process = &members.processes[own as usize];
        process
            .group(id, &members.addresses, own, options.clone(), |_| Ok(Destination::Allocate))
            .unwrap()
    };
    let (root, other) = (join(0), join(2));
    for group in [root, other] {
        let failure = group.joined().wait().unwrap_err();
        assert!(failure.member == 1 && failure.why.contains("joined in time"), "{failure}");
    }
}

#[test]
fn overlapping_groups_with_several_roots_do_not_disturb_one_another() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 5);
        let groups: Vec<(usize, Vec<Group>)> = (0..20)
            .map(|number| {
                let rotated = members.rotated(number % 5);
                (number, rotated.group(&options(Choice::Pipeline, 16 << 10)))
            })
            .collect();
        for (number, group) in &groups {
            for _ in 0..3 {
                drop(group[0].send(bytes(*number, 200_000), b"").unwrap());
            }
        }
        for (number, group) in groups {
            for member in &group[1..] {
                for _ in 0..3 {
                    assert!(take(member).data.into_vec().unwrap() == Some(bytes(number, 200_000)));
                }
            }
            close(group);
        }
    }
}

#[test]
fn a_group_that_sends_little_does_not_wait_for_one_that_sends_much_over_the_same_links() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 3);
        let place = |own: usize| {
            let memory = members.processes[own].engine().expose(vec![7; 4 << 20], Rights::READ);
            Arc::new(memory.unwrap())
        };
        let much = members.group_with(&options(Choice::Chain, 64 << 10), |own| {
            let place = place(own);
            move |_: hg_multicast::Incoming<'_>| Ok(Destination::Registered(Arc::clone(&place)))
        });
        let little = members.group(&options(Choice::Chain, 64 << 10));
        little[0].joined().wait().unwrap();
        let object = place(0);
        let send = |_| much[0].send(Arc::clone(&object), b"").unwrap();
        let mut sendings: Vec<_> = (0..40).map(send).collect();
        sendings.remove(0).wait().unwrap();
        little[0].send(bytes(1, 100_000), b"").unwrap().wait().unwrap();
        let mut last = sendings.pop().unwrap();
        assert!(last.try_take().is_none(), "{url}: it has waited for all of the others");
        last.wait().unwrap();
        sendings.into_iter().for_each(|it| it.wait().unwrap());
        close(much);
        close(little);
    }
}

/// What each root has given when the first of the two is through.
#[test]
fn groups_that_send_as_much_over_the_same_links_share_them() {
    let _watchdog = Watchdog::start();
    let (objects, size) = (24, 1 << 20);
    // Both of one root, or each of its own.
    for (url, turn) in URLS.iter().flat_map(|url| [0, 1].map(|turn| (url, turn))) {
        let members = Members::open(url, 3);
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let form = |turn| {
            let members = members.rotated(turn);
            members.group_with(&options(Choice::Chain, 64 << 10), |own| {
                let memory = members.processes[own].engine().expose(vec![7; size], Rights::READ);
                let (place, gate) = (Arc::new(memory.unwrap()), Arc::clone(&gate));
                move |_: hg_multicast::Incoming<'_>| {
                    drop(gate.lock().unwrap()); // Nothing goes before all is there to be sent.
                    Ok(Destination::Registered(Arc::clone(&place)))
                }
            })
        };
        let both = [form(0), form(turn)];
        let sendings = both.each_ref().map(|it| {
            (0..objects).map(|_| it[0].send(vec![7; size], b"").unwrap()).collect::<Vec<_>>()
        });
        drop(held);
        let roots = both.each_ref().map(|it| &it[0]);
        let given = thread::scope(|scope| {
            let through = sendings.into_iter().zip([roots[1], roots[0]]).map(|(all, other)| {
                scope.spawn(move || {
                    all.into_iter().for_each(|it| it.wait().unwrap());
                    other.progress().bytes
                })
            });
            let through: Vec<_> = through.collect();
            through.into_iter().map(|it| it.join().unwrap()).min().unwrap()
        });
        let all = objects * size as u64;
        assert!(
            given >= all / 4,
            "{url} {turn}: {given} of {all} bytes when the other one has its own"
        );
        both.into_iter().for_each(close);
    }
}

#[test]
fn who_does_not_receive_holds_up_its_group_only() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 3);
        let mut narrow = options(Choice::Pipeline, 32 << 10);
        narrow.untaken_bytes_max = 250_000;
        let (held_up, free) = (members.group(&narrow), members.group(&narrow));
        let sendings: Vec<_> =
            (0..10).map(|it| held_up[0].send(bytes(it, 100_000), b"").unwrap()).collect();
        for round in 0..20 {
            drop(free[0].send(bytes(round, 100_000), b"").unwrap());
            for member in &free[1..] {
                assert!(take(member).data.into_vec().unwrap() == Some(bytes(round, 100_000)));
            }
        }
        // At most so many are here, whatever the root has sent.
        assert!(held_up[1].progress().objects <= 3);
        let readers: Vec<_> = held_up[1..].iter().collect();
        thread::scope(|scope| {
            for reader in readers {
                scope.spawn(|| {
                    (0..10).for_each(|it| {
                        assert!(take(reader).data.into_vec().unwrap() == Some(bytes(it, 100_000)));
                    })
                });
            }
        });
        sendings.into_iter().for_each(|it| it.wait().unwrap());
        close(held_up);
        close(free);
    }
}

#[test]
fn survivors_go_on_and_only_missing_blocks_come() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 5);
        let mut wanted = options(Choice::Chain, 16 << 10);
        wanted.trace = true;
        // The last of the chain refuses when others have most of it: its place is asked for late.
        let groups = members.group_with(&wanted, |own| {
            move |_: hg_multicast::Incoming<'_>| {
                if own == 4 {
                    Err("its disk is full".to_owned())
                } else {
                    Ok(Destination::Allocate)
                }
            }
        });
        let sending = groups[0].send(bytes(0, 2_000_000), b"").unwrap();
        assert_eq!(sending.wait().unwrap_err().member, 4);
        let mut reforming = Vec::new();
        for (own, group) in groups.into_iter().enumerate() {
            while group.failure().is_none() {
                thread::yield_now();
            }
            if own != 4 {
                reforming.push(group.reform());
            }
        }
        let mut groups: Vec<_> = reforming.into_iter().map(|it| it.wait().unwrap()).collect();
        assert_eq!(groups.iter().map(Group::own).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let resent = groups[0].resent();
        assert!(groups[0].resent().is_empty() && groups[1].resent().is_empty());
        let more = groups[0].send(bytes(1, 100_000), b"").unwrap();
        for group in &groups[1..] {
            for (seed, size) in [(0, 2_000_000), (1, 100_000)] {
                assert!(take(group).data.into_vec().unwrap() == Some(bytes(seed, size)));
            }
            // Each block came once, in this group or the one before.
            assert_eq!(group.progress().blocks, 123 + 7);
        }
        assert_eq!(resent.iter().map(|it| it.0).collect::<Vec<_>>(), [0]);
        resent.into_iter().for_each(|it| it.1.wait().unwrap());
        more.wait().unwrap();
        close(groups);
    }
}

/// Between two groups, while the one before it in the chain goes on, which has spoken with it.
#[test]
fn a_receiver_that_comes_again_at_its_old_address_is_met_again_by_those_that_knew_it() {
    let _watchdog = Watchdog::start();
    let mut members = Members::open(URLS[1], 3);
    for round in 0..3 {
        let groups = members.group(&options(Choice::Chain, 16 << 10));
        let sending = groups[0].send(bytes(round, 100_000), b"").unwrap();
        for group in &groups[1..] {
            assert!(take(group).data.into_vec().unwrap() == Some(bytes(round, 100_000)));
        }
        sending.wait().unwrap();
        close(groups);
        members.open_last_again();
    }
}

/// Its root asks there in that group's name who it is, and is not heard.
#[test]
fn a_group_that_nobody_else_has_begun_keeps_up_no_other_one_of_the_same_members() {
    let _watchdog = Watchdog::start();
    let members = Members::open(URLS[0], 2);
    let own = |(own, id)| {
        let allocate = |_: hg_multicast::Incoming<'_>| Ok(Destination::Allocate);
        let process = &members.processes[own as usize];
        process.group(id, &members.addresses, own, Options::default(), allocate).unwrap()
    };
    let [alone, both] = [(); 2].map(|()| GroupId::random().unwrap());
    let _alone = own((0, alone));
    let groups = [own((0, both)), own((1, both))];
    let sending = groups[0].send(bytes(1, 100_000), b"").unwrap();
    assert!(take(&groups[1]).data.into_vec().unwrap() == Some(bytes(1, 100_000)));
    sending.wait().unwrap();
    close(groups.into());
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let _watchdog = Watchdog::start();
    let members = Members::open("sm://", 2);
    let process = &members.processes[0];
    let group = |members: &[Address], own, options: Options| {
        process
            .group(GroupId::random().unwrap(), members, own, options, |_| Ok(Destination::Allocate))
    };
    let all = &members.addresses;
    assert!(matches!(group(&all[..1], 0, Options::default()), Err(Error::Members(_))));
    assert!(matches!(group(all, 2, Options::default()), Err(Error::Members(_))));
    let twice = [all[0].clone(), all[0].clone()];
    assert!(matches!(group(&twice, 0, Options::default()), Err(Error::Members(_))));
    let mut many = Options::default();
    many.in_flight = 9;
    assert!(matches!(group(all, 0, many), Err(Error::Members(_))));
    let said = group(all, 0, options(Choice::Auto, 0)).unwrap_err().to_string();
    assert_eq!(said, "a block has one byte or more");
    let said = group(all, 1, Options::default()).unwrap_err().to_string();
    assert_eq!(said, "this process is member 0 by its address, and not 1");
    let groups = members.group(&options(Choice::Auto, 1));
    assert!(matches!(groups[1].send(vec![1], b""), Err(Error::NotRoot(1))));
    let zeros = || Box::new(std::fs::File::open("/dev/zero").unwrap());
    for size in [(1 << 24) + 1, u64::MAX] {
        let refused = groups[0].send(Object::Blocks { from: zeros(), size }, b"");
        assert!(matches!(refused, Err(Error::TooLarge { block_size: 1, .. })), "{refused:?}");
    }
    assert!(matches!(groups[0].send(vec![1], &[0; 4097]), Err(Error::MetadataTooLong { .. })));
    close(groups);
}
