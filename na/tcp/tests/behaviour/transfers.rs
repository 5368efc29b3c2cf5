//! Puts and gets: what the contract's tests do not reach.

use std::{
    io::{Read as _, Write as _},
    time::Instant,
};

use hg_na::{Memory, Op, Peer, Region, Rights};
use watchdog::in_time;

use crate::{
    end::{End, LOOPBACK, Server, arrived, ended},
    raw::{PUT, PUT_DATA, UNEXPECTED, connect, frame, hello, read_while},
    silence::connected,
};

fn region(end: &End, memory: Memory) -> Region {
    end.domain.register(memory, Rights::all()).unwrap()
}

fn pieces(fill: u8, count: usize, len: usize) -> Memory {
    Memory::from(vec![vec![fill; len]; count])
}

fn transfer(end: &mut End, peer: Peer, near: &Region, far: &Region, is_put: bool) {
    let local = near.slice(0, near.len()).unwrap();
    let remote = far.descriptor().slice(0, near.len()).unwrap();
    let op = if is_put {
        Op::Put { to: peer, local, remote }
    } else {
        Op::Get { from: peer, local, remote }
    };
    end.post(1, op);
    end.until(ended(1)).unwrap();
}

#[test]
fn pieces_are_short_where_they_are_asked_to_be_whichever_context_accepted_the_connection() {
    const LEN: usize = 1 << 20;
    for context in [0, 1] {
        let mut active = End::open(LOOPBACK, &[("unsent-kib", "64")]);
        let mut other = (context > 0).then(|| active.beside(context));
        let mut raw = connect(&active.text());
        raw.write_all(&[hello(context), frame(UNEXPECTED, 0, b"a peer")].concat()).unwrap();
        let start = Instant::now();
        let from = loop {
            in_time!(start);
            active.round();
            let end = other.as_mut().unwrap_or(&mut active);
            end.round();
            if let Some((from, _)) = end.take(arrived) {
                break from;
            }
        };
        let end = other.as_mut().unwrap_or(&mut active);
        let near = region(end, vec![1; LEN].into());
        let local = near.slice(0, LEN as u64).unwrap();
        // Its owner is anybody.
        let remote = near.descriptor().slice(0, LEN as u64).unwrap();
        end.post(1, Op::Put { to: from, local, remote });
        let welcome = read_while(&mut raw, 10 + 16, end);
        assert_eq!(welcome[7], 2);
        let put = read_while(&mut raw, 16 + 56, end);
        assert_eq!(put[4], PUT);
        let data = read_while(&mut raw, 16, end);
        assert_eq!((&data[..4], data[4]), (&(16_u32 << 10).to_le_bytes()[..], PUT_DATA));
    }
}

#[test]
fn sleepers_move_as_many_segments_as_there_may_be() {
    for len in [8, 64, 100] {
        let owner = End::open(LOOPBACK, &[]);
        let far = region(&owner, pieces(3, 1024, len));
        let server = Server::of(owner);
        let mut end = End::open(LOOPBACK, &[]);
        let near = region(&end, pieces(4, 1024, len));
        let peer = end.lookup(&server.address);
        for _ in 0..50 {
            transfer(&mut end, peer, &near, &far, true);
            transfer(&mut end, peer, &near, &far, false);
        }
        drop(server.stop());
        assert_eq!(near.unregister().unwrap().into_vecs().unwrap(), vec![vec![4; len]; 1024]);
    }
}

#[test]
fn a_put_that_was_cancelled_writes_nothing_but_what_was_put() {
    const LEN: usize = 256 << 10;
    const PUTS: usize = 40;
    let (mut owner, mut end) = (End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[]));
    let far = region(&owner, Memory::from(vec![0x22; PUTS * LEN]));
    let peer = end.lookup(&owner.text());
    end.send(1, peer, b"connect");
    let start = Instant::now();
    while owner.take(arrived).is_none() {
        end.round();
        owner.round();
        in_time!(start);
    }
    let near = region(&end, Memory::from(vec![0x11; LEN]));
    let puts: Vec<_> = (0..PUTS as u64)
        .map(|number| {
            let local = near.slice(0, LEN as u64).unwrap();
            let remote = far.descriptor().slice(number * LEN as u64, LEN as u64).unwrap();
            end.post(100 + number, Op::Put { to: peer, local, remote })
        })
        .collect();
    // Until the sockets are full: the owner does nothing.
    (0..200).for_each(|_| end.round());
    for id in puts {
        end.context.cancel(id);
    }
    end.round();
    for number in 0..PUTS as u64 {
        assert!(end.take(ended(100 + number)).unwrap().is_err());
    }
    drop(near.unregister().unwrap());
    end.send(2, peer, b"the end");
    while owner.take(arrived).is_none() {
        end.round();
        owner.round();
        in_time!(start);
    }
    let bytes = far.unregister().unwrap().into_vec().unwrap();
    assert!(bytes.iter().all(|byte| matches!(byte, 0x11 | 0x22)), "something else was written");
    assert_eq!(bytes[0], 0x11, "the sockets were full before the cancellation");
}

/// Bytes that stand before a message in the stream, which is posted when the peer has taken nothing of a put of 8 MiB for long.
fn bytes_before_a_message(settings: &[(&str, &str)]) -> usize {
    const LEN: u64 = 8 << 20;
    let (mut end, peer, mut raw) = connected(settings);
    let near = region(&end, Memory::from(vec![0; 8 << 20]));
    let local = near.slice(0, LEN).unwrap();
    let remote = near.descriptor().slice(0, LEN).unwrap();
    end.post(2, Op::Put { to: peer, local, remote });
    // Until the socket is full: the peer reads nothing.
    (0..2000).for_each(|_| end.round());
    let said = b"the bishop moves at dawn";
    end.send(3, peer, said);
    raw.set_nonblocking(true).unwrap();
    let (mut stream, mut buffer, start) = (Vec::new(), vec![0; 64 << 10], Instant::now());
    loop {
        end.round();
        let seen = stream.len().saturating_sub(said.len());
        let len = raw.read(&mut buffer).unwrap_or(0);
        stream.extend_from_slice(&buffer[..len]);
        if let Some(at) = stream[seen..].windows(said.len()).position(|bytes| bytes == said) {
            return seen + at;
        }
        in_time!(start, "{} bytes came, and no message", stream.len());
    }
}

#[test]
fn a_message_passes_bulk_data_that_the_kernel_was_not_given_yet() {
    let waited = bytes_before_a_message(&[("unsent-kib", "64")]);
    assert!(waited < 256 << 10, "it stood behind {waited} bytes of a put");
}
