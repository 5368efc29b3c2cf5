//! Bytes that are not what the root has summed up: nobody gets them, and whoever offered them is named.

use std::sync::Arc;

use hg::bulk::{Bulk, Rights};
use hg_multicast::{Blocks, Destination, Incoming, schedule::Choice};
use watchdog::Watchdog;

use crate::members::{Members, URLS, bytes, close, options, take};

const SIZE: usize = 300_000;

/// Where the member that is offered wrong bytes wants an object.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Allocated,
    Own,
    Seen,
    Written,
}

/// Which nobody may write what is wrong to.
struct Unwritten;

impl Blocks for Unwritten {
    fn read_at(&mut self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        panic!("it passes nothing on")
    }

    fn write_at(&mut self, offset: u64, _: &[u8]) -> std::io::Result<()> {
        assert!(offset > 0, "the first block was wrong");
        Ok(())
    }
}

/// The first block is offered, with its checksum, before the receiver is asked where the object goes; there it is changed.
fn spoil(memory: &Bulk) {
    let mut first = [0];
    memory.read(7, &mut first).unwrap();
    memory.write(7, &[!first[0]]).unwrap();
}

/// Of three in a row; the memory of one of them is changed under a block that it has offered to the next one.
fn fails_by(url: &str, spoiled: usize, place: Place) {
    let what = format!("{url} {spoiled} {place:?}");
    let members = Members::open(url, 3);
    let memory: Vec<_> = (members.processes.iter())
        .map(|it| Arc::new(it.engine().expose(vec![0; SIZE], Rights::READ).unwrap()))
        .collect();
    memory[0].write(0, &bytes(1, SIZE)).unwrap();
    let groups = members.group_with(&options(Choice::Chain, 64 << 10), |own| {
        let memory = memory.clone();
        move |_: Incoming<'_>| {
            let own_memory = Destination::Registered(Arc::clone(&memory[own]));
            if own != spoiled + 1 {
                return Ok(own_memory);
            }
            spoil(&memory[spoiled]);
            Ok(match place {
                Place::Allocated => Destination::Allocate,
                Place::Own => own_memory,
                Place::Seen => Destination::Mapped,
                Place::Written => Destination::Blocks(Box::new(Unwritten)),
            })
        }
    });
    let sending = groups[0].send(Arc::clone(&memory[0]), b"").unwrap();
    let failure = sending.wait().expect_err("it is not everywhere");
    assert_eq!(failure.member as usize, spoiled, "{what}: {failure}");
    assert_eq!(failure.address, members.addresses[spoiled], "{what}");
    assert_eq!(failure.why, "block 0 of object 0 came with a wrong checksum", "{what}");
    for (own, group) in groups.into_iter().enumerate() {
        // Who has it whole and right is given it all the same.
        let received = group.receive().wait();
        if own == 1 && spoiled == 1 && matches!(received, Ok(Some(_))) {
            assert_eq!(group.receive().wait().unwrap_err(), failure, "{what}");
        } else {
            assert_eq!(received.unwrap_err(), failure, "{what} {own}");
        }
        assert_eq!(group.close().wait().unwrap_err(), failure, "{what} {own}");
    }
}

#[test]
fn who_gets_a_block_with_a_wrong_checksum_gets_no_object_and_all_learn_whose_it_was() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        for spoiled in [0, 1] {
            for place in [Place::Allocated, Place::Own, Place::Seen, Place::Written] {
                fails_by(url, spoiled, place);
            }
        }
    }
}

/// A disk that gives back something else than was written to it.
struct Decaying(Vec<u8>);

impl Blocks for Decaying {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.0[start..start + into.len()]);
        into[7] = !into[7];
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn what_a_disk_has_changed_before_it_is_passed_on_is_found_by_the_sum_of_the_root() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 3);
        let groups = members.group_with(&options(Choice::Chain, 64 << 10), |own| {
            move |_: Incoming<'_>| {
                Ok(match own {
                    1 => Destination::Blocks(Box::new(Decaying(vec![0; SIZE]))),
                    _ => Destination::Allocate,
                })
            }
        });
        let failure = groups[0].send(bytes(1, SIZE), b"").unwrap().wait().unwrap_err();
        assert_eq!(failure.member, 1, "{url}: {failure}");
        assert!(failure.why.ends_with("came with a wrong checksum"), "{url}: {failure}");
        assert_eq!(groups[2].receive().wait().unwrap_err(), failure, "{url}");
    }
}

/// The same bytes without checksums are what shows that it was those that were wrong.
#[test]
fn without_checksums_what_was_changed_meanwhile_comes_as_it_is() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let members = Members::open(url, 2);
        let memory = members.processes[0].engine().expose(bytes(1, SIZE), Rights::READ);
        let memory = Arc::new(memory.unwrap());
        let mut unsummed = options(Choice::Chain, 64 << 10);
        unsummed.checksum = false;
        let groups = members.group_with(&unsummed, |_| {
            let memory = Arc::clone(&memory);
            move |_: Incoming<'_>| {
                spoil(&memory);
                Ok(Destination::Allocate)
            }
        });
        let sending = groups[0].send(Arc::clone(&memory), b"").unwrap();
        let received = take(&groups[1]).data.into_vec().unwrap().unwrap();
        let mut expected = bytes(1, SIZE);
        expected[7] = !expected[7];
        assert!(received == expected, "{url}");
        sending.wait().unwrap();
        close(groups);
    }
}
