//! Messages from every rank to every rank.

use std::collections::BTreeMap;

use hg_shuffle::{Group as _, Options, Shutdown};

use crate::common::{keeping, run};

/// Every rank sends `count` messages to every rank, by a sender handle or without; each has to arrive once, in order. The options are those
/// of a rank's node.
pub(crate) fn all_to_all_by(
    by_sender: bool,
    map: &str,
    options: &(impl Fn(u32) -> Options + Sync),
    count: u32,
    length: &(impl Fn(u32) -> usize + Sync),
) {
    let received = run(map, |group| {
        let (me, map) = (group.rank(), group.map());
        let (shuffle, delivered) = keeping(&group, options(map.node_of(me)));
        let size = map.size();
        let mut sender = by_sender.then(|| shuffle.sender());
        for number in 0..count {
            for to in 0..size {
                let to = (me + to) % size;
                let mut bytes = vec![filling(me, to); length(number)];
                bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(place, byte)| *place = byte);
                match &mut sender {
                    Some(sender) => sender.enqueue(to, number, &bytes).unwrap(),
                    None => shuffle.enqueue(to, number, &bytes).unwrap(),
                }
            }
        }
        drop(sender);
        shuffle.flush_all().unwrap();
        let received = std::mem::take(&mut *delivered.lock().unwrap());
        assert_eq!(shuffle.statistics().delivered, u64::from(count * size));
        assert_eq!(shuffle.shutdown(Shutdown::Drain).unwrap(), 0);
        (me, size, received)
    });
    for (me, size, received) in received {
        assert_eq!(received.len(), (count * size) as usize, "{map}, rank {me}");
        let mut next = BTreeMap::new();
        for (source, kind, bytes) in received {
            let expected = next.entry(source).or_insert(0);
            assert_eq!(kind, *expected, "{map}: from {source} to {me}, in order and once");
            assert_eq!(bytes.len(), length(kind), "{map}: from {source} to {me}, number {kind}");
            let filling = filling(source, me);
            assert!(bytes.iter().skip(4).all(|byte| *byte == filling), "{map}: {source} to {me}");
            *expected += 1;
        }
    }
}

/// What fills messages of one rank to one other.
fn filling(from: u32, to: u32) -> u8 {
    u8::try_from((from * 31 + to * 7) % 256).unwrap()
}
