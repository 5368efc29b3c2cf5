//! Sockets that speak the protocol by hand, or something else.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use socket2::{SockFilter, SockRef};
use watchdog::{LIMIT, in_time};

use crate::end::End;

pub(crate) const UNEXPECTED: u8 = 1;
pub(crate) const EXPECTED: u8 = 2;
pub(crate) const CREDIT: u8 = 4;
pub(crate) const PUT: u8 = 6;
pub(crate) const GET: u8 = 7;
pub(crate) const PUT_DATA: u8 = 8;
pub(crate) const GET_DATA: u8 = 9;
pub(crate) const END: u8 = 10;
pub(crate) const OPEN: u8 = 12;
pub(crate) const CLOSE: u8 = 13;

/// The numeric part of an address.
pub(crate) fn place(address: &str) -> &str {
    address.strip_prefix("tcp://").unwrap()
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(place(address)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

pub(crate) fn greeting(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_le_bytes();
    [b"HG-TCP", &[4, kind][..], &len, body].concat()
}

pub(crate) fn hello(context: u8) -> Vec<u8> {
    greeting(1, &[&[7; 16][..], &[8; 16], &[context, 0]].concat())
}

pub(crate) fn welcome() -> Vec<u8> {
    greeting(2, &[9; 16])
}

pub(crate) fn frame(kind: u8, word: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap();
    header(len, kind, word).into_iter().chain(body.iter().copied()).collect()
}

/// A header alone; of the link of the end that dialled.
pub(crate) fn header(len: u32, kind: u8, word: u64) -> Vec<u8> {
    [&len.to_le_bytes()[..], &[kind, 0, 0, 0], &word.to_le_bytes()].concat()
}

/// A frame of a link of the end that accepted.
pub(crate) fn frame_of(epoch: u16, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = frame(kind, 0, body);
    frame[5] = 1;
    frame[6..8].copy_from_slice(&epoch.to_le_bytes());
    frame
}

pub(crate) fn read_exact(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// The kind and the body of the other end's next greeting.
pub(crate) fn read_greeting(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let prefix = read_exact(stream, 10);
    assert_eq!(&prefix[..7], b"HG-TCP\x04");
    let len = u16::from_le_bytes([prefix[8], prefix[9]]);
    (prefix[7], read_exact(stream, usize::from(len)))
}

/// A raw connection that has been welcomed.
pub(crate) fn greeted(address: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(&hello(0)).unwrap();
    assert_eq!(read_greeting(&mut stream).0, 2);
    stream
}

/// A raw connection to a context that makes progress in this thread.
pub(crate) fn greeted_by(target: &mut End) -> TcpStream {
    greeted_with(target, &hello(0))
}

/// The same, with a Hello of its own.
pub(crate) fn greeted_with(target: &mut End, hello: &[u8]) -> TcpStream {
    let mut raw = connect(&target.text());
    raw.write_all(hello).unwrap();
    let reader = std::thread::spawn(move || {
        assert_eq!(read_greeting(&mut raw).0, 2);
        raw
    });
    while !reader.is_finished() {
        target.round();
    }
    reader.join().unwrap()
}

/// Reads so many bytes that the other end, of this thread, sends meanwhile.
pub(crate) fn read_while(raw: &mut TcpStream, len: usize, end: &mut End) -> Vec<u8> {
    let start = Instant::now();
    let (mut bytes, mut at) = (vec![0; len], 0);
    raw.set_nonblocking(true).unwrap();
    while at < len {
        in_time!(start, "{at} of {len} bytes came");
        end.round();
        match raw.read(&mut bytes[at..]) {
            Ok(0) => panic!("it has hung up: {:?}", end.seen),
            Ok(len) => at += len,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    raw.set_nonblocking(false).unwrap();
    bytes
}

/// Reads until the other end has closed the connection.
pub(crate) fn read_to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(len) => all.extend(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("the connection is not closed: {error}"),
        }
    }
}

/// Writes a byte at a time until the other end has had enough.
pub(crate) fn dribble(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut next = bytes.iter().cycle();
    for _ in 0..3000 {
        if stream.write_all(&[*next.next().unwrap()]).is_err() {
            return;
        }
        match stream.read(&mut [0; 64]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
    panic!("the other end has taken all of it");
}

/// From now on nothing reaches this socket, and nobody is told: as if its host were cut off.
pub(crate) fn cut_off(stream: &TcpStream) {
    const RETURN: u16 = 0x06;
    SockRef::from(stream).attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]).unwrap();
}
