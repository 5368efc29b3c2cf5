//! The client against a server of the tests' own, good and bad, in both dialects.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::{
    Client, connect,
    wire::{self, Fields},
};
use crate::{
    Error, Via,
    detect::{Place, Server},
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// What the ranks of a good server share.
struct Space {
    values: Mutex<HashMap<String, String>>,
    barrier: Barrier,
}

impl Space {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { values: Mutex::default(), barrier: Barrier::new(size) })
    }

    fn value(&self, key: &str) -> Option<String> {
        if key == "PMI_process_mapping" {
            return Some("(vector,(0,1,9))".into());
        }
        self.values.lock().unwrap().get(key).cloned()
    }

    fn put(&self, fields: &Fields) {
        let (key, value) = (fields.text("key").unwrap(), fields.text("value").unwrap());
        self.values.lock().unwrap().insert(key.into(), value.into());
    }
}

/// A good server's side of one rank; returns the commands that it saw.
fn serve(stream: UnixStream, place: Place, space: &Space) -> Vec<String> {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    let mut output = stream;
    let mut seen = Vec::new();
    let mut second = false;
    loop {
        let fields = if second {
            let mut head = [0; 6];
            if input.read_exact(&mut head).is_err() {
                return seen;
            }
            let mut body = vec![0; wire::packet_length(&head).unwrap()];
            input.read_exact(&mut body).unwrap();
            Fields::of_packet(&String::from_utf8(body).unwrap())
        } else {
            let mut line = String::new();
            if input.read_line(&mut line).unwrap_or(0) == 0 {
                return seen;
            }
            assert!(line.len() < 1024, "Slurm takes no longer line");
            Fields::of_line(&line)
        };
        let command = fields.text("cmd").unwrap().to_owned();
        seen.push(command.clone());
        let answer = if second {
            answer_second(&command, &fields, place, space)
        } else {
            second = fields.text("pmi_version") == Some("2");
            answer_first(&command, &fields, space)
        };
        output.write_all(answer.as_bytes()).unwrap();
    }
}

fn answer_first(command: &str, fields: &Fields, space: &Space) -> String {
    match command {
        "init" => {
            let version = fields.text("pmi_version").unwrap();
            wire::line("response_to_init", &[("rc", "0"), ("pmi_version", version)])
        }
        "get_my_kvsname" => wire::line("my_kvsname", &[("kvsname", "kvs_1")]),
        "put" => {
            space.put(fields);
            wire::line("put_result", &[("rc", "0")])
        }
        "get" => match space.value(fields.text("key").unwrap()) {
            Some(value) => wire::line("get_result", &[("rc", "0"), ("value", &value)]),
            None => wire::line("get_result", &[("rc", "-1"), ("value", "unknown")]),
        },
        "barrier_in" => {
            space.barrier.wait();
            wire::line("barrier_out", &[])
        }
        "finalize" => wire::line("finalize_ack", &[]),
        other => panic!("{other}"),
    }
}

fn answer_second(command: &str, fields: &Fields, place: Place, space: &Space) -> String {
    let (rank, size) = (place.rank.to_string(), place.size.to_string());
    let reply = |more: &[(&str, &str)]| {
        let mut all = more.to_vec();
        all.push(("rc", "0"));
        wire::packet(&format!("{command}-response"), &all)
    };
    match command {
        "fullinit" => reply(&[("rank", &rank), ("size", &size)]),
        "job-getid" => reply(&[("jobid", "kvs;1")]),
        "info-getjobattr" => reply(&[("found", "TRUE"), ("value", "(vector,(0,1,9))")]),
        "kvs-put" => {
            space.put(fields);
            reply(&[])
        }
        "kvs-get" => {
            assert_eq!(fields.text("jobid"), Some("kvs;1"));
            match space.value(fields.text("key").unwrap()) {
                Some(value) => reply(&[("flag", "TRUE"), ("value", &value)]),
                None => reply(&[("flag", "FALSE")]),
            }
        }
        "kvs-fence" => {
            space.barrier.wait();
            reply(&[])
        }
        "finalize" => reply(&[]),
        other => panic!("{other}"),
    }
}

fn client(
    stream: &UnixStream,
    place: Place,
    dialect: Via,
    within: Duration,
) -> Result<Client, Error> {
    let server = Server::Fd { fd: stream.as_raw_fd(), place };
    Client::connect(&server, dialect, Instant::now() + within, within)
}

fn ranks_meet(dialect: Via, commands: &[&str]) {
    let space = Space::new(3);
    let mut threads = Vec::new();
    for rank in 0..3 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let place = Place { rank, size: 3 };
        let space = Arc::clone(&space);
        let server = thread::spawn(move || serve(theirs, place, &space));
        threads.push((
            server,
            thread::spawn(move || {
                let mut client = client(&ours, place, dialect, LONG).unwrap();
                assert_eq!(client.place(), place);
                let met = client.meet((rank == 0).then_some("hg1/a;b=c"), Some(0)).unwrap();
                client.finalize().unwrap();
                // MPI in this process has the same socket.
                let deadlines = (ours.read_timeout().unwrap(), ours.write_timeout().unwrap());
                assert_eq!(deadlines, (None, None));
                met
            }),
        ));
    }
    for (server, rank) in threads {
        assert_eq!(rank.join().unwrap().as_deref(), Some("hg1/a;b=c"));
        let seen = server.join().unwrap();
        let seen: Vec<&str> =
            seen.iter().map(String::as_str).filter(|one| !one.ends_with("put")).collect();
        assert_eq!(seen, commands);
    }
}

#[test]
fn ranks_meet_over_the_first_dialect() {
    ranks_meet(Via::Pmi1, &["init", "get_my_kvsname", "get", "barrier_in", "get", "finalize"]);
}

#[test]
fn ranks_meet_over_the_second_dialect() {
    ranks_meet(
        Via::Pmi2,
        &["init", "fullinit", "job-getid", "info-getjobattr", "kvs-fence", "kvs-get", "finalize"],
    );
}

/// What the client says to a server that answers with these bytes, whatever it is asked, and then hangs up.
fn said_to(dialect: Via, answers: &[u8]) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(answers).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    let place = Place { rank: 0, size: 2 };
    let result =
        client(&ours, place, dialect, LONG).and_then(|mut client| client.meet(Some("a"), Some(0)));
    result.unwrap_err().to_string()
}

#[test]
fn garbage_on_the_socket_gives_one_clear_sentence() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "PMI-1: the server closed the connection instead of answering `init`"),
        (
            b"hello\n",
            "PMI-1: the server answers `hello` to `init`, where cmd=response_to_init was due",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "PMI-1: the server answers `HTTP/1.1 400 Bad Request` to `init`, where cmd=response_to_init was due",
        ),
        (
            b"\xff\x00\n",
            "PMI-1: the server answers `\\u{fffd}\\u{0}` to `init`, where cmd=response_to_init was due",
        ),
        (
            b"cmd=response_to_init rc=-1 pmi_version=9\n",
            "PMI-1: the server speaks version 9, not 1: try HG_JOB_VIA=pmi1 or pmi2",
        ),
        (
            b"cmd=response_to_init rc=0 pmi_version=1\ncmd=my_kvsname\n",
            "PMI-1: the server gives no name of the job",
        ),
        (
            b"cmd=response_to_init rc=0 pmi_version=1\ncmd=my_kvsname kvsname=a\n\
              cmd=put_result rc=1 msg=full\n",
            "PMI-1: the server refuses a value",
        ),
        (
            b"cmd=response_to_init rc=0 pmi_version=1\ncmd=my_kvs",
            "PMI-1: the server closed the connection instead of answering `get_my_kvsname`",
        ),
    ];
    for (answers, sentence) in cases {
        assert_eq!(said_to(Via::Pmi1, answers), sentence);
    }
    let endless = vec![b'x'; wire::MESSAGE_MAX + 8192];
    assert_eq!(said_to(Via::Pmi1, &endless), "PMI-1: the server's answer has no end");
}

#[test]
fn garbage_in_the_second_dialect_gives_one_clear_sentence() {
    let hello = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n".to_vec();
    let with = |more: &[u8]| said_to(Via::Pmi2, &[&hello[..], more].concat());
    assert_eq!(with(b"garbage"), "PMI-2: the server's answer has no length");
    assert_eq!(with(b"999999"), "PMI-2: the server's answer has no length");
    let wrong = wire::packet("fullinit-response", &[("rank", "1"), ("size", "2"), ("rc", "0")]);
    assert_eq!(
        with(wrong.as_bytes()),
        "PMI-2: the server's idea of rank and size differs from 0 and 2"
    );
    let other = wire::packet("job-getid-response", &[]);
    let said = with(other.as_bytes());
    assert!(said.ends_with("to `fullinit`, where cmd=fullinit-response was due"), "{said}");
}

#[test]
fn a_server_that_says_nothing_is_given_up_after_the_bound() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let place = Place { rank: 0, size: 2 };
    let said = client(&ours, place, Via::Pmi1, Duration::from_millis(30)).unwrap_err().to_string();
    assert_eq!(said, "PMI-1: the server did not answer `init` within 30ms");
}

#[test]
fn a_barrier_that_does_not_end_names_who_of_this_node_is_missing() {
    let space = Space::new(3);
    let mut threads = Vec::new();
    for rank in [0, 2] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let place = Place { rank, size: 3 };
        let space = Arc::clone(&space);
        // Its thread stays in the barrier until this process ends.
        thread::spawn(move || serve(theirs, place, &space));
        threads.push(thread::spawn(move || {
            let mut client = client(&ours, place, Via::Pmi1, Duration::from_secs(2)).unwrap();
            let failed = client.meet((rank == 0).then_some("a"), Some(0)).unwrap_err().to_string();
            (failed, client)
        }));
    }
    for rank in threads {
        let (said, _client) = rank.join().unwrap();
        assert_eq!(said, "rank 1 of 3 did not join within 2s");
    }
}

#[test]
fn what_is_no_socket_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let server = Server::Fd { fd: file.as_raw_fd(), place: Place { rank: 0, size: 1 } };
    let said =
        Client::connect(&server, Via::Pmi1, Instant::now() + LONG, LONG).unwrap_err().to_string();
    assert!(said.starts_with("PMI-1: sending `init` to the server failed: "), "{said}");
    let server = Server::Fd { fd: 987_654, place: Place { rank: 0, size: 1 } };
    let said =
        Client::connect(&server, Via::Pmi1, Instant::now() + LONG, LONG).unwrap_err().to_string();
    assert!(said.starts_with("PMI_FD 987654: "), "{said}");
}

#[test]
fn over_a_port_the_server_tells_rank_and_size() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut input = BufReader::new(stream.try_clone().unwrap());
        let mut output = stream;
        let mut line = String::new();
        input.read_line(&mut line).unwrap();
        assert_eq!(line, "cmd=initack pmiid=5\n");
        output
            .write_all(b"cmd=initack rc=0\ncmd=set size=7\ncmd=set rank=5\ncmd=set debug=0\n")
            .unwrap();
        line.clear();
        input.read_line(&mut line).unwrap();
        output
            .write_all(b"cmd=response_to_init pmi_version=1 rc=0\ncmd=my_kvsname kvsname=k\n")
            .unwrap();
        line.clear();
        input.read_line(&mut line).unwrap();
        line
    });
    let server = Server::Port { address, id: 5 };
    let client = Client::connect(&server, Via::Pmi1, Instant::now() + LONG, LONG).unwrap();
    assert_eq!(client.place(), Place { rank: 5, size: 7 });
    assert_eq!(serving.join().unwrap(), "cmd=get_my_kvsname\n");
}

/// A listener that takes no connection: its address, and what keeps it so.
fn full() -> (SocketAddr, impl Sized) {
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap().as_socket().unwrap();
    // Until its queue is full.
    let mut queue = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&at, SHORT) {
        queue.push(stream);
    }
    (at, (listener, queue))
}

#[test]
fn a_server_that_takes_no_connection_is_given_up_at_the_deadline() {
    let _watchdog = watchdog::Watchdog::start();
    let (at, _full) = full();
    let server = Server::Port { address: at.to_string(), id: 0 };
    let said = Client::connect(&server, Via::Pmi1, Instant::now() + SHORT, SHORT).unwrap_err();
    assert_eq!(said.to_string(), format!("PMI_PORT {at}: connection timed out"));
}

#[test]
fn an_address_that_takes_no_connection_leaves_time_for_the_next_one() {
    let _watchdog = watchdog::Watchdog::start();
    let (at, _full) = full();
    let good = TcpListener::bind("127.0.0.1:0").unwrap();
    let deadline = Instant::now() + LONG / 4;
    let stream = connect(&[at, good.local_addr().unwrap()], deadline).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), good.local_addr().unwrap());
    // Of the bound something is left.
    assert!(Instant::now() < deadline);
}
