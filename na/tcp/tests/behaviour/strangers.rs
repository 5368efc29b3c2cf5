//! Whoever connects and is no peer.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use hg_na::{Error, GoneReason, Message, Op, QUIET, Rights};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use watchdog::in_time;

use crate::{
    child::Process,
    end::{End, LOOPBACK, Server, arrived, ended, gone},
    raw::{
        CLOSE, CREDIT, END, EXPECTED, GET, GET_DATA, OPEN, PUT, PUT_DATA, UNEXPECTED, connect,
        dribble, frame, frame_of, greeted, greeted_by, greeting, header, hello, read_exact,
        read_greeting, read_to_the_end, read_while, welcome,
    },
    silence::connected,
};

/// A server and a peer of its, which must not notice anything.
fn pair(settings: &[(&str, &str)]) -> (Server, End, hg_na::Peer) {
    let server = Server::start(LOOPBACK, settings);
    let mut friend = End::open(LOOPBACK, &[]);
    let peer = friend.lookup(&server.address);
    assert_eq!(friend.call(peer, 0, b"before").unwrap(), b"before");
    (server, friend, peer)
}

#[test]
fn a_wrong_greeting_costs_its_sender_the_connection() {
    let (server, mut friend, peer) = pair(&[]);
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.to_be_bytes()[0]
    })
    .take(100_000)
    .collect();
    let mut giant = greeting(1, &[]);
    giant[8..].fill(0xff);
    let bad = [
        random,
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        giant,
        greeting(1, &[0; 17]),
        greeting(9, &[]),
        welcome(),
        hello(3),
    ];
    for (tag, bytes) in (1..).zip(&bad) {
        let mut stranger = connect(&server.address);
        // The other end may have closed before it has all.
        let _ = stranger.write_all(bytes);
        read_to_the_end(&mut stranger);
        assert_eq!(friend.call(peer, tag, b"still here").unwrap(), b"still here");
    }
}

#[test]
fn a_greeting_of_another_version_or_context_is_refused_in_a_sentence() {
    let (server, _friend, _) = pair(&[]);
    let mut other = hello(0);
    other[6] = 1;
    for (bytes, wanted) in [(other, "another version"), (hello(3), "no context 3")] {
        let mut stranger = connect(&server.address);
        stranger.write_all(&bytes).unwrap();
        let (kind, sentence) = read_greeting(&mut stranger);
        let sentence = String::from_utf8(sentence).unwrap();
        assert!(kind == 3 && sentence.contains(wanted), "{kind} {sentence}");
        assert!(read_to_the_end(&mut stranger).is_empty());
    }
}

#[test]
fn a_frame_that_breaks_the_protocol_costs_its_sender_the_connection() {
    let (server, mut friend, peer) = pair(&[]);
    let bad = [
        header(u32::MAX, UNEXPECTED, 0),
        header(0, 0, 0),
        header(0, 200, 0),
        header(8, CREDIT, 0),
        frame(CREDIT, 1, &[]),
        frame(CREDIT, u64::MAX, &[]),
        frame(PUT_DATA, 5, &[1; 100]),
        frame(GET_DATA, 5, &[1; 5000]),
        frame(END, 5, &[0; 12]),
        [&[0; 4][..], &[1, 7], &[0; 10]].concat(),
    ];
    for (tag, bytes) in (1..).zip(&bad) {
        let mut stranger = greeted(&server.address);
        let _ = stranger.write_all(bytes);
        read_to_the_end(&mut stranger);
        assert_eq!(friend.call(peer, tag, b"still here").unwrap(), b"still here");
    }
}

#[test]
fn a_transfer_whose_owner_ends_it_before_its_last_byte_ends_with_that_peer() {
    let mut end = End::open(LOOPBACK, &[]);
    let mut raw = greeted_by(&mut end);
    raw.write_all(&frame(UNEXPECTED, 0, b"a peer")).unwrap();
    let (from, _) = end.until(arrived);
    let region = end.domain.register(vec![0; 64].into(), Rights::all()).unwrap();
    // What it is to be owner of is anything of the right length.
    let remote = region.descriptor().slice(0, 64).unwrap();
    let local = region.slice(0, 64).unwrap();
    let id = end.post(1, Op::Get { from, local, remote });
    raw.write_all(&frame(END, id.serial, &[0; 12])).unwrap();
    assert!(matches!(end.until(ended(1)), Err(Error::PeerGone(GoneReason::Misbehaved(_)))));
    end.until(gone);
    assert!(region.unregister().is_ok(), "nobody uses it any more");
}

#[test]
fn a_refused_put_is_passed_over_wherever_it_would_have_gone() {
    let (server, mut friend, peer) = pair(&[]);
    let mut raw = greeted(&server.address);
    let access = [&[0; 40][..], &u64::MAX.to_le_bytes(), &100_u64.to_le_bytes()].concat();
    raw.write_all(&frame(PUT, 1, &access)).unwrap();
    raw.write_all(&frame(PUT_DATA, 1, &[1; 100])).unwrap();
    let verdict = read_exact(&mut raw, 16 + 12);
    assert_eq!((verdict[4], verdict[16]), (END, 1), "stale");
    raw.write_all(&frame(UNEXPECTED, 0, &[3; 9])).unwrap();
    let answer = read_exact(&mut raw, 16 + 1);
    assert_eq!((answer[4], answer[16]), (EXPECTED, 3), "the connection goes on");
    assert_eq!(friend.call(peer, 1, b"still here").unwrap(), b"still here");
}

#[test]
fn who_does_not_come_to_the_point_is_cut_off_in_time() {
    let (server, mut friend, peer) = pair(&[("connect-timeout-ms", "300")]);
    let mut silent = connect(&server.address);
    let mut half = connect(&server.address);
    half.write_all(&hello(0)[..12]).unwrap();
    let mut slow = connect(&server.address);
    dribble(&mut slow, &hello(0)[..11]);
    let mut slower = connect(&server.address);
    let mut long = greeting(1, &[b'a'; 1024]);
    long.truncate(1000);
    dribble(&mut slower, &long);
    assert!(read_to_the_end(&mut silent).is_empty());
    assert!(read_to_the_end(&mut half).is_empty());
    assert_eq!(friend.call(peer, 1, b"still here").unwrap(), b"still here");
}

#[test]
fn a_thousand_strangers_at_once_keep_nobody_out_and_cost_little_memory() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    // Other tests of this process need some, too.
    let strangers_max = usize::try_from(hard.saturating_sub(500)).unwrap().min(1000);
    let process = Process::start(LOOPBACK, None);
    let mut friend = End::open(LOOPBACK, &[]);
    let peer = friend.lookup(&process.address);
    friend.call(peer, 0, b"before").unwrap();
    let before = process.resident();
    let mut most = greeting(1, &[b'a'; 1024]);
    most.truncate(1033);
    let strangers: Vec<TcpStream> = (0..strangers_max)
        .map(|_| {
            let mut stranger = connect(&process.address);
            stranger.write_all(&most).unwrap();
            stranger
        })
        .collect();
    assert_eq!(friend.call(peer, 1, b"still here").unwrap(), b"still here");
    let mut late = End::open(LOOPBACK, &[]);
    let from_late = late.lookup(&process.address);
    assert_eq!(late.call(from_late, 1, b"and another").unwrap(), b"and another");
    let grown = process.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{strangers_max} strangers cost {grown} bytes");
    drop(strangers);
}

#[test]
fn without_a_descriptor_a_new_peer_is_refused_in_words_and_the_old_ones_go_on() {
    let process = Process::start(LOOPBACK, Some(40));
    let try_one = || {
        let mut end = End::open(LOOPBACK, &[]);
        let peer = end.lookup(&process.address);
        let outcome = end.call(peer, 1, b"hello");
        (end, peer, outcome)
    };
    let (mut served, mut refused) = (Vec::new(), 0);
    while refused < 3 {
        let (end, peer, outcome) = try_one();
        match outcome {
            Ok(_) => served.push((end, peer)),
            Err(Error::PeerGone(GoneReason::Refused(words))) => {
                assert!(words.contains("RLIMIT_NOFILE is 40"), "{words}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(served.len() < 40, "so many fit into 40 descriptors");
    }
    assert!(served.len() >= 5, "{} fit into 40 descriptors", served.len());
    for (end, peer) in &mut served {
        assert_eq!(end.call(*peer, 2, b"still here").unwrap(), b"still here");
    }
    // Some go; then there is room for new ones.
    served.truncate(served.len() - 3);
    let start = std::time::Instant::now();
    while try_one().2.is_err() {
        in_time!(start, "there is no room for a new one");
    }
}

#[test]
fn nothing_has_left_before_a_connection_stands() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = End::open(LOOPBACK, &[]);
    let peer = end.lookup(&format!("tcp://{}", listener.local_addr().unwrap()));
    assert!(!end.context.was_connected(peer));
    end.send(1, peer, b"a request");
    let reader = std::thread::spawn(move || {
        let (mut raw, _) = listener.accept().unwrap();
        let (kind, _hello) = read_greeting(&mut raw);
        (raw, kind)
    });
    while !reader.is_finished() {
        end.round();
    }
    let (mut raw, kind) = reader.join().unwrap();
    assert_eq!(kind, 1);
    assert!(!end.context.was_connected(peer), "it was accepted, and not welcomed");
    raw.write_all(&welcome()).unwrap();
    end.until(ended(1)).unwrap();
    assert!(end.context.was_connected(peer));
    drop(raw);
    end.until(gone);
}

/// Reads frames until the answer to a request comes.
fn read_to_the_answer(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let header = read_exact(stream, 16);
        let len = u32::from_le_bytes(header[..4].try_into().unwrap());
        let body = read_exact(stream, usize::try_from(len).unwrap());
        if header[4] == EXPECTED {
            return body;
        }
    }
}

#[test]
fn a_million_answers_that_nobody_waits_for_cost_no_memory() {
    const ANSWERS: u64 = 1_000_000;
    const BATCH: u64 = 1000;
    let process = Process::start(LOOPBACK, None);
    let mut raw = greeted(&process.address);
    let mut reader = raw.try_clone().unwrap();
    let reads = std::thread::spawn(move || read_to_the_answer(&mut reader));
    let long = vec![1; 256 << 10];
    let mut before = 0;
    for batch in 0..ANSWERS / BATCH {
        let tags = batch * BATCH..(batch + 1) * BATCH;
        let frames: Vec<_> = tags.flat_map(|tag| frame(EXPECTED, tag, &[0; 8])).collect();
        raw.write_all(&frames).unwrap();
        raw.write_all(&frame(EXPECTED, 0, &long)).unwrap();
        if batch == 10 {
            before = process.resident();
        }
    }
    raw.write_all(&frame(UNEXPECTED, 0, &[3; 9])).unwrap();
    assert_eq!(reads.join().unwrap(), [3], "the connection goes on");
    let grown = process.resident().saturating_sub(before);
    assert!(grown < 4 << 20, "{ANSWERS} answers cost {grown} bytes");
}

/// Writes what the socket takes, and no more; says how much that was.
fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    match stream.write(bytes) {
        Ok(len) => len,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
            0
        }
    }
}

/// Asks until it is not heard any more, and reads nothing: how many bytes were taken.
fn ask_in_vain(target: &mut End, raw: &mut TcpStream, ask: &[u8]) -> usize {
    /// More than the sockets of both directions hold.
    const ENOUGH: usize = 128 << 20;
    raw.set_nonblocking(true).unwrap();
    let asks = ask.repeat(1000);
    let (mut written, mut idle) = (0, 0);
    while idle < 1000 {
        let len = write_some(raw, &asks[written % asks.len()..]);
        (written, idle) = (written + len, if len > 0 { 0 } else { idle + 1 });
        assert!(written < ENOUGH, "it takes whatever comes");
        target.round();
    }
    assert!(target.context.may_sleep(), "nothing is to be done until there is space");
    written
}

#[test]
fn the_end_of_one_that_is_not_heard_is_noticed() {
    let mut target = End::open(LOOPBACK, &[]);
    let mut raw = greeted_by(&mut target);
    ask_in_vain(&mut target, &mut raw, &frame(GET, 1, &[0; 56]));
    drop(raw);
    assert_eq!(target.until(gone).1, hg_na::GoneReason::Exited);
}

#[test]
fn who_asks_and_never_reads_is_not_heard_until_it_reads() {
    for kind in [GET, PUT] {
        let mut target = End::open(LOOPBACK, &[]);
        let mut raw = greeted_by(&mut target);
        let ask = frame(kind, 1, &[0; 56]);
        let mut written = ask_in_vain(&mut target, &mut raw, &ask);
        // Others are served meanwhile.
        let mut friend = End::open(LOOPBACK, &[]);
        let peer = friend.lookup(&target.text());
        friend.send(1, peer, b"hello");
        let start = std::time::Instant::now();
        while target.take(arrived).is_none() {
            friend.round();
            target.round();
            in_time!(start);
        }
        // Now it reads: everything that it asked for is answered, once.
        let whole = written.next_multiple_of(ask.len());
        let (mut verdicts, mut bytes) = (0, vec![0; 1 << 16]);
        while verdicts < whole / ask.len() * (16 + 12) {
            written += write_some(&mut raw, &ask[ask.len() - (whole - written)..]);
            target.round();
            verdicts += raw.read(&mut bytes).unwrap_or(0);
            in_time!(start, "{verdicts} bytes of verdicts on {written}");
        }
        raw.write_all(&frame(UNEXPECTED, 0, b"the end")).unwrap();
        while target.take(arrived).is_none() {
            target.round();
            in_time!(start);
        }
        assert!(target.context.may_sleep() && raw.read(&mut bytes).is_err(), "nothing more");
    }
}

#[test]
fn strangers_who_hold_every_descriptor_make_room_for_a_peer() {
    let process = Process::start(LOOPBACK, Some(48));
    let mut friend = End::open(LOOPBACK, &[]);
    let peer = friend.lookup(&process.address);
    friend.call(peer, 0, b"before").unwrap();
    let strangers: Vec<TcpStream> = (0..100).map(|_| connect(&process.address)).collect();
    assert_eq!(friend.call(peer, 1, b"still here").unwrap(), b"still here");
    let mut late = End::open(LOOPBACK, &[]);
    let from_late = late.lookup(&process.address);
    assert_eq!(late.call(from_late, 1, b"and another").unwrap(), b"and another");
    drop(strangers);
    assert_eq!(friend.call(peer, 2, b"still here").unwrap(), b"still here");
}

#[test]
fn strangers_do_not_count_as_peers_and_one_peer_too_many_is_told_so() {
    let (server, mut friend, peer) = pair(&[("max-peers", "1")]);
    let _strangers: Vec<TcpStream> = (0..5).map(|_| connect(&server.address)).collect();
    let mut second = connect(&server.address);
    second.write_all(&hello(0)).unwrap();
    let (kind, sentence) = read_greeting(&mut second);
    let sentence = String::from_utf8(sentence).unwrap();
    assert!(kind == 3 && sentence.contains("peers"), "{sentence}");
    assert_eq!(friend.call(peer, 1, b"still here").unwrap(), b"still here");
}

#[test]
fn links_that_are_closed_while_their_messages_wait_count_as_peers() {
    const MAX: u16 = 4;
    const CYCLES: u16 = 1000;
    let (mut end, _, mut raw) = connected(&[("max-peers", &MAX.to_string())]);
    end.context.set_admission(false);
    for epoch in 0..CYCLES {
        for (kind, body) in [(OPEN, &b""[..]), (UNEXPECTED, b"it waits"), (CLOSE, b"")] {
            raw.write_all(&frame_of(epoch, kind, body)).unwrap();
        }
        end.round();
    }
    // It is heard to the end, and knows which links were refused.
    let refused: Vec<u16> = (0..CYCLES - MAX)
        .map(|_| {
            let close = read_while(&mut raw, 16, &mut end);
            assert_eq!(close[4..6], [CLOSE, 1]);
            u16::from_le_bytes([close[6], close[7]])
        })
        .collect();
    assert!(refused.iter().copied().eq(MAX..CYCLES));
    end.context.set_admission(true);
    for _ in 0..MAX {
        assert_eq!(end.until(arrived).1, b"it waits");
        end.until(gone);
    }
    assert_eq!(end.take(arrived), None);
    // There is room again, and its own link was none of this.
    raw.write_all(&frame_of(CYCLES, OPEN, b"")).unwrap();
    raw.write_all(&frame_of(CYCLES, UNEXPECTED, b"heard")).unwrap();
    raw.write_all(&frame(UNEXPECTED, 0, b"own")).unwrap();
    assert_eq!(end.until(arrived).1, b"heard");
    assert_eq!(end.until(arrived).1, b"own");
}

#[test]
fn no_more_than_max_peers_wait_for_a_context_that_makes_no_progress() {
    const MAX: usize = 4;
    let mut active = End::open(LOOPBACK, &[("max-peers", &MAX.to_string())]);
    let mut busy = active.beside(1);
    let mut waiting: Vec<TcpStream> = std::iter::repeat_with(|| {
        let mut stranger = connect(&active.text());
        stranger.write_all(&hello(1)).unwrap();
        stranger.set_nonblocking(true).unwrap();
        stranger
    })
    .take(10 * MAX)
    .collect();
    let start = std::time::Instant::now();
    while waiting.len() > MAX {
        in_time!(start, "{} wait", waiting.len());
        active.round();
        let refused: Vec<_> = waiting.extract_if(.., |raw| raw.peek(&mut [0]).is_ok()).collect();
        for mut raw in refused {
            raw.set_nonblocking(false).unwrap();
            let (kind, sentence) = read_greeting(&mut raw);
            let sentence = String::from_utf8(sentence).unwrap();
            assert!(kind == 3 && sentence.contains("max-peers"), "{sentence}");
            assert!(read_to_the_end(&mut raw).is_empty());
        }
    }
    // It makes progress again: who has waited is heard, and their places are others' once they have gone.
    drop(waiting);
    for _ in 0..MAX {
        busy.until(gone);
    }
    let mut late = End::open(LOOPBACK, &[]);
    for number in 0..2 * MAX {
        let peer = late.lookup(&busy.text());
        late.send(QUIET, peer, b"hello");
        while busy.take(arrived).is_none() {
            in_time!(start, "{number} were served");
            [&mut late, &mut active, &mut busy].into_iter().for_each(End::round);
        }
        late = End::open(LOOPBACK, &[]);
        busy.until(gone);
    }
}

#[test]
fn peers_that_never_pause_do_not_starve_another() {
    let mut target = End::open(LOOPBACK, &[]);
    let flood: Vec<u8> = frame(UNEXPECTED, 0, &[1; 8000]).repeat(200);
    let mut raws = Vec::new();
    for _ in 0..8 {
        raws.push(greeted_by(&mut target));
    }
    for (number, raw) in (0..8).zip(&mut raws) {
        raw.write_all(&frame(UNEXPECTED, 0, &[number])).unwrap();
        raw.set_nonblocking(true).unwrap();
        // As much as the sockets hold.
        let mut rest = &flood[..];
        while let Ok(written) = raw.write(rest) {
            rest = &rest[written..];
            if rest.is_empty() {
                break;
            }
        }
    }
    let (mut first_words, mut others) = (0, 0);
    while first_words < 8 {
        target.round();
        while let Some((_, bytes)) = target.take(arrived) {
            if bytes.len() == 1 { first_words += 1 } else { others += 1 }
        }
        // Two reads of each, at most, come before the first word of the last.
        assert!(others <= 8 * 2 * (256 << 10) / 8000, "{first_words} of 8 were heard");
    }
}

#[test]
fn whose_requests_take_most_memory_while_they_wait_is_sent_away_and_nobody_else() {
    const LEN: usize = 60_000;
    let mut target = End::open(LOOPBACK, &[("max-held-mib", "1")]);
    target.context.set_admission(false);
    let mut friend = End::open(LOOPBACK, &[]);
    let peer = friend.lookup(&target.text());
    friend.send(3, peer, b"of a friend");
    // As much as its credits allow, and more than all together may take.
    let mut greedy = greeted_by(&mut target);
    let much = frame(UNEXPECTED, 0, &[7; LEN]).repeat(25);
    let writer = std::thread::spawn(move || {
        // It is cut off at some byte.
        let _ = greedy.write_all(&much);
        read_to_the_end(&mut greedy)
    });
    let start = std::time::Instant::now();
    let mut has_left = false;
    while !(writer.is_finished() && has_left) {
        target.round();
        friend.round();
        has_left |= friend.take(ended(3)).is_some();
        in_time!(start);
    }
    let (_, why) = target.take(gone).unwrap();
    assert!(matches!(&why, GoneReason::Exhausted(why) if why.contains("memory")), "{why}");
    assert_eq!(target.take(arrived), None, "nobody is admitted");
    target.context.set_admission(true);
    let (from, bytes) = target.until(arrived);
    assert_eq!(bytes, b"of a friend");
    target.post(1, Op::SendExpected { to: from, tag: 9, message: Message::copied(b"yes") });
    friend.post(2, Op::RecvExpected { from: peer, tag: 9 });
    while friend.take(ended(2)).is_none() {
        target.round();
        friend.round();
        in_time!(start);
    }
}
