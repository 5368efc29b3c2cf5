//! Figures over HTTP: whoever asks gets them, whatever others do there.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use watchdog::Watchdog;

use crate::common::{Daemon, echo, engine, listening};

fn serving() -> (Daemon, SocketAddr) {
    let daemon = Daemon::with("one", 0, "metrics = \"127.0.0.1:0\"\n");
    let at = daemon.status()["metrics"].as_str().expect("it says where").parse().unwrap();
    (daemon, at)
}

/// What is answered until the end of the connection.
fn ask(at: SocketAddr, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(words).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn prometheus_gets_figures_and_others_get_a_refusal() {
    let _watchdog = Watchdog::start();
    let (daemon, at) = serving();
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    let answer = ask(at, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4") && head.contains("Connection: close"));
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert!(body.contains("\nhg_visor_applications 2\n"), "{body}");
    assert!(body.contains("# TYPE hg_visor_frames_passed counter\n"), "{body}");
    for (words, status) in [
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("GET /status HTTP/1.1\r\n\r\n", "404"),
        ("rubbish\r\n\r\n", "400"),
        (&*format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000)), "431"),
    ] {
        let answer = ask(at, words.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[test]
fn those_who_say_nothing_half_or_too_much_keep_the_figures_from_nobody() {
    let _watchdog = Watchdog::start();
    let (daemon, at) = serving();
    let before = daemon.descriptors();
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    let mut crowd = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(at).unwrap();
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /metr").unwrap(),
            // It never reads the answer.
            _ => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap(),
        }
        crowd.push(stream);
        assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
    }
    let answer = ask(at, b"GET /metrics HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    // Those who came first had to go.
    let mut first = String::new();
    assert_eq!(crowd[0].read_to_string(&mut first).unwrap_or(0), 0);
    assert!(daemon.descriptors() < before + 100, "{} descriptors", daemon.descriptors());
    drop((origin, target));
    // The others go when their time is over, although they stay where they are.
    watchdog::until("nobody's descriptor is left", || daemon.descriptors() <= before);
    drop(crowd);
}

#[test]
fn a_port_that_is_taken_is_said_when_the_daemon_starts() {
    let _watchdog = Watchdog::start();
    let (_daemon, at) = serving();
    let mut config = hg_visor::Config::over("tcp://127.0.0.1:0");
    config.name = format!("visor-{}-second", std::process::id());
    config.metrics = Some(at);
    let refused = hg_visor::Daemon::open(config.clone()).unwrap_err().to_string();
    assert!(refused.contains("metrics") && refused.contains(&at.to_string()), "{refused}");
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    drop(hg_visor::Daemon::open(config.clone()).unwrap());
    drop(hg_visor::Daemon::open(config).expect("what was dropped has let go of everything"));
}
