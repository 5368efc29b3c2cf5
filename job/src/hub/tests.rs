//! A running hub with real sockets: ranks, strangers, and what they say.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{Config, Door, OnBroken, Running, state::Hub};
use crate::{
    error::Error,
    frame::{
        Broken, Down, FRAME_HEAD, HELLO_MAX, Hello, Letter, Post, UP_MAX, Up, VALUE_MAX, What,
        split,
    },
    link::{Endings, Holder, Link},
    notice::Notice,
    stream::Stream,
};

const LONG: Duration = Duration::from_secs(60);

/// A hub for so many ranks at a port.
fn hub(size: u32, within: Duration) -> (Running, u16) {
    hub_that_tells(size, within, Notice::new(None, within))
}

fn hub_that_tells(size: u32, within: Duration, notice: Notice) -> (Running, u16) {
    hub_of(size, within, notice, Box::new(|_| {}))
}

fn hub_of(size: u32, within: Duration, notice: Notice, on_broken: OnBroken) -> (Running, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let running = Running::start(Config {
        hub: Hub::star(size, b"right".to_vec()),
        above: None,
        deadline: Instant::now() + within,
        notice,
        door: Some(Door { listener, published: None }),
        seats: Vec::new(),
        on_broken,
    });
    (running.unwrap(), port)
}

fn hello(token: &[u8], rank: u32, size: u32) -> Hello {
    Hello { token: token.to_vec(), rank, size, host: format!("host {}", rank / 2) }
}

fn link(port: u16, hello: Hello) -> Link {
    let stream = Stream::Tcp(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let endings = Endings { abort: false, hub_gone: false };
    Link::open(stream, hello, LONG, Holder::Rank(0), endings, None).unwrap()
}

fn joined(port: u16, rank: u32, size: u32) -> Link {
    let link = link(port, hello(b"right", rank, size));
    let nodes = link.join(Instant::now() + LONG).unwrap();
    assert_eq!(nodes, (0..size).map(|rank| rank / 2).collect::<Vec<_>>());
    link
}

#[test]
fn who_has_not_joined_yet_is_told_before_the_bound() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let tell: fn(&str) = |words| TOLD.lock().unwrap().push(words.to_owned());
    let (hub, port) = hub_that_tells(3, LONG, Notice::new(Some(tell), Duration::ZERO));
    let first = thread::spawn(move || joined(port, 1, 3));
    while TOLD.lock().unwrap().is_empty() {}
    let rest = [0, 2].map(|rank| thread::spawn(move || joined(port, rank, 3)));
    let links = (first.join().unwrap(), rest.map(|rank| rank.join().unwrap()));
    drop((links, hub));
    let told = TOLD.lock().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with(" of 3 did not join yet: still waiting"), "{told:?}");
}

/// All ranks, each in a thread of its own.
fn ranks(port: u16, size: u32, work: impl Fn(Link, u32) + Sync) {
    thread::scope(|scope| {
        for rank in 0..size {
            let work = &work;
            scope.spawn(move || work(joined(port, rank, size), rank));
        }
    });
}

/// Sends bytes and reads until the hub hangs up.
fn thrown_out(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The hub may have had enough before it has read all.
    let _ = stream.write_all(bytes);
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(rest.is_empty());
}

#[test]
fn garbage_costs_its_sender_the_connection_and_nobody_else_anything() {
    let (hub, port) = hub(3, LONG);
    let early = thread::spawn(move || joined(port, 1, 3));
    thrown_out(port, b"GET / HTTP/1.1\r\nHost: rank0\r\n\r\n");
    thrown_out(port, &[0xff; 100]);
    thrown_out(port, &[0; 100]);
    thrown_out(port, &Up::Bye.encode());
    let claims_rank =
        Up::Gather { channel: "c".into(), number: 0, what: What::Gather, values: vec![vec![1]] };
    thrown_out(port, &claims_rank.encode());
    let mut long = hello(b"right", 0, 3);
    long.host = "x".repeat(HELLO_MAX);
    thrown_out(port, &Up::Hello(long).encode());
    // One that says nothing stays connected meanwhile.
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let others = [0, 2].map(|rank| thread::spawn(move || joined(port, rank, 3)));
    let [zero, two] = others.map(|other| other.join().unwrap());
    for link in [zero, early.join().unwrap(), two] {
        link.leave().unwrap();
    }
    assert!(hub.wait(LONG));
}

#[test]
fn a_crowd_of_strangers_makes_way_for_a_rank() {
    let (hub, port) = hub(2, LONG);
    let crowd = || -> Vec<TcpStream> {
        (0..150).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect()
    };
    let _before = crowd();
    let zero = thread::spawn(move || joined(port, 0, 2));
    let _between = crowd();
    let one = joined(port, 1, 2);
    for link in [zero.join().unwrap(), one] {
        link.leave().unwrap();
    }
    assert!(hub.wait(LONG));
}

#[test]
fn a_wrong_token_or_size_is_refused_with_a_sentence() {
    let (_hub, port) = hub(2, LONG);
    let refused = |hello| match link(port, hello).join(Instant::now() + LONG) {
        Err(Error::Environment(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(hello(b"wrong", 1, 2)), "rank 1: this is another job: the tokens differ");
    assert_eq!(refused(hello(b"right", 1, 5)), "rank 1: rank 1 was told 5 ranks, rank 0 2");
    assert_eq!(refused(hello(b"right", 2, 2)), "rank 2: there is no rank 2 among 2");
}

#[test]
fn who_does_not_come_is_named_to_those_who_did() {
    let (_hub, port) = hub(4, Duration::from_millis(300));
    let said = [0, 3].map(|rank| {
        thread::spawn(move || {
            let link = link(port, hello(b"right", rank, 4));
            link.join(Instant::now() + LONG).unwrap_err().to_string()
        })
    });
    for said in said {
        let said = said.join().unwrap();
        // Slow threads may not have come themselves: then the later is told, too.
        assert!(said.contains("1 and 2") || said.contains("1-3") || said.contains("0-2"), "{said}");
    }
}

#[test]
fn channels_of_several_threads_do_not_disturb_one_another() {
    let (hub, port) = hub(3, LONG);
    ranks(port, 3, |link, rank| {
        thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let link = &link;
                scope.spawn(move || {
                    for round in 0..50_u32 {
                        let value = format!("{name} {round} {rank}");
                        let values =
                            link.collect(name, What::Gather, Some(value.as_bytes()), LONG).unwrap();
                        let expected = |rank| format!("{name} {round} {rank}").into_bytes();
                        assert_eq!(values, (0..3).map(expected).collect::<Vec<_>>());
                    }
                });
            }
        });
        link.leave().unwrap();
    });
    assert!(hub.wait(LONG));
}

#[test]
fn values_up_to_the_limit_arrive() {
    let (hub, port) = hub(2, LONG);
    ranks(port, 2, |link, rank| {
        let byte = u8::try_from(rank).unwrap();
        let values = link.collect("", What::Gather, Some(&vec![byte; VALUE_MAX]), LONG).unwrap();
        assert!(values[0] == vec![0; VALUE_MAX] && values[1] == vec![1; VALUE_MAX]);
        link.leave().unwrap();
    });
    assert!(hub.wait(LONG));
}

#[test]
fn a_rank_that_is_cut_off_is_named_to_those_who_wait_and_to_those_who_come_later() {
    let (_hub, port) = hub(3, LONG);
    ranks(port, 3, |link, rank| {
        if rank == 1 {
            return drop(link);
        }
        let failed = link.collect("", What::Barrier, None, LONG).unwrap_err().to_string();
        assert_eq!(failed, "rank 1 ended without leaving the job");
        let again = link.collect("", What::Barrier, None, LONG).unwrap_err().to_string();
        assert_eq!(again, failed);
        assert_eq!(link.check().unwrap_err().to_string(), failed);
    });
}

#[test]
fn a_call_that_others_do_not_make_is_given_up_and_names_them() {
    let (_hub, port) = hub(3, LONG);
    // Nobody goes before all have seen what they should.
    let done = std::sync::Barrier::new(3);
    ranks(port, 3, |link, rank| {
        if rank == 1 {
            let short = Duration::from_millis(20);
            let said = link.collect("", What::Barrier, None, short).unwrap_err().to_string();
            assert_eq!(said, "barrier number 1 did not end within 20ms: waiting for ranks 0 and 2");
        }
        done.wait();
    });
}

#[test]
fn who_gives_up_joining_names_those_that_did_not_come() {
    // The hub would wait for longer.
    let (_hub, port) = hub(3, LONG);
    let first = link(port, hello(b"right", 0, 3));
    let second = link(port, hello(b"right", 1, 3));
    for link in [&first, &second] {
        let said = link.join(Instant::now() + Duration::from_millis(50)).unwrap_err().to_string();
        // A slow thread's word may not be there yet.
        assert!(said.contains(" of 3 did not join within "), "{said}");
        assert!(said.contains('2'), "{said}");
    }
}

#[test]
fn the_runner_hears_of_an_abort_that_comes_after_another_end() {
    let (tell, told) = mpsc::channel();
    let on_broken = Box::new(move |broken: &Broken| tell.send(broken.clone()).unwrap());
    let (_hub, port) = hub_of(3, LONG, Notice::new(None, LONG), on_broken);
    let rest = [0, 2].map(|rank| thread::spawn(move || joined(port, rank, 3)));
    drop(joined(port, 1, 3));
    assert_eq!(told.recv().unwrap(), Broken::Lost { rank: 1 });
    let [zero, two] = rest.map(|rank| rank.join().unwrap());
    two.abort(3, "enough");
    let abort = Broken::Aborted { by: 2, code: 3, why: "enough".into() };
    assert_eq!(told.recv().unwrap(), abort);
    drop(zero);
}

/// Whoever holds the hub ends last.
#[test]
fn a_process_parts_from_its_hub_when_the_others_have_heard() {
    let (hub, port) = hub(3, LONG);
    let (handle, heard) = (hub.handle(), AtomicBool::new(false));
    let (seen, sees) = mpsc::channel();
    let (over, is_over) = mpsc::channel::<()>();
    let heard = &heard;
    thread::scope(|scope| {
        // The bytes before the word are more than a socket holds, and it reads them late.
        scope.spawn(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&Up::Hello(hello(b"right", 2, 3)).encode()).unwrap();
            let mut waits = true;
            loop {
                let mut head = [0; FRAME_HEAD];
                stream.read_exact(&mut head).unwrap();
                let length = u32::from_le_bytes(head) as usize;
                if waits && length >= VALUE_MAX {
                    seen.send(()).unwrap();
                    is_over.recv().unwrap();
                    waits = false;
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                if let Ok(Down::Broken(Broken::Aborted { by: 1, .. })) = Down::decode(&body) {
                    break;
                }
            }
            heard.store(true, Ordering::Release);
        });
        let gives = scope.spawn(move || {
            let value = vec![7; VALUE_MAX];
            joined(port, 0, 3).exchange("x", &[2], &value, LONG).unwrap_err()
        });
        let aborts = joined(port, 1, 3);
        sees.recv().unwrap();
        aborts.abort(3, "enough");
        gives.join().unwrap();
        drop(aborts);
        over.send(()).unwrap();
        handle.part();
        assert!(heard.load(Ordering::Acquire), "it was told, and had not heard");
    });
}

#[test]
fn an_abort_is_heard_while_a_stopped_rank_takes_nothing_in() {
    let (_hub, port) = hub(3, LONG);
    let (seen, sees) = mpsc::channel();
    let (over, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // It joins, sees that something long comes, and reads no more.
        scope.spawn(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&Up::Hello(hello(b"right", 2, 3)).encode()).unwrap();
            let mut length = 0;
            while length < VALUE_MAX {
                let mut head = [0; FRAME_HEAD];
                stream.read_exact(&mut head).unwrap();
                length = u32::from_le_bytes(head) as usize;
                if length < VALUE_MAX {
                    stream.read_exact(&mut vec![0; length]).unwrap();
                }
            }
            seen.send(()).unwrap();
            // Until everybody has ended.
            assert!(is_over.recv().is_err());
        });
        let gives = scope.spawn(move || {
            let value = vec![7; VALUE_MAX];
            joined(port, 0, 3).exchange("x", &[2], &value, LONG).unwrap_err()
        });
        let aborts = joined(port, 1, 3);
        sees.recv().unwrap();
        aborts.abort(3, "enough");
        assert_eq!(
            gives.join().unwrap().to_string(),
            "rank 1 aborted the job with status 3: enough"
        );
        drop(over);
    });
}

#[test]
fn the_longest_value_for_ranks_that_are_named_one_by_one_is_taken() {
    // Distances that grow: no run is longer than two.
    let distances = (0..200).map(|it| it % 7 * 2 + it);
    let peers: Vec<u32> = distances
        .scan(0, |rank, distance| {
            *rank += 1 + distance;
            Some(*rank)
        })
        .collect();
    let size = peers.last().unwrap() + 1;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        let gives = scope.spawn(|| {
            link(port, hello(b"right", 0, size)).exchange("x", &peers, &vec![7; VALUE_MAX], LONG)
        });
        let mut stream = listener.accept().unwrap().0;
        let mut meant = 0;
        while meant < peers.len() {
            let Up::Post(post) = next_up(&mut stream) else { continue };
            let [letter] = &post.letters[..] else { panic!("one value") };
            assert!(letter.value.len() == VALUE_MAX && letter.value.iter().all(|byte| *byte == 7));
            meant += letter.to.iter().map(|run| run.count as usize).sum::<usize>();
            stream.write_all(&Down::Taken.encode()).unwrap();
        }
        let of = |from| Letter { from, to: crate::tree::Run::of(&[0]), value: [1].into() };
        let letters = peers.iter().copied().map(of).collect();
        let post = Post { channel: "x".into(), number: 0, letters };
        stream.write_all(&Down::Post(post).encode()).unwrap();
        let came = gives.join().unwrap().unwrap();
        assert!(came.keys().copied().eq(peers.iter().copied()));
    });
}

/// The next frame of a rank, as a hub takes it.
fn next_up(stream: &mut TcpStream) -> Up {
    let mut frame = vec![0; FRAME_HEAD];
    stream.read_exact(&mut frame).unwrap();
    assert!(split(&frame, UP_MAX).is_ok(), "it is too long");
    let len = u32::from_le_bytes(frame[..].try_into().unwrap()) as usize;
    frame.resize(FRAME_HEAD + len, 0);
    stream.read_exact(&mut frame[FRAME_HEAD..]).unwrap();
    Up::decode(&frame[FRAME_HEAD..]).unwrap()
}
