//! `hydrargyrum ping` as a process, against engines of this one.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Command, Output, Stdio},
};

fn ping(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrargyrum"));
    command.arg("ping").args(arguments).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("hg starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn an_engine_answers_over_every_transport() {
    for (url, way) in [
        ("sm://", "sm"),
        ("tcp://127.0.0.1", "sm"),
        ("ofi+shm://", "ofi+shm"),
        ("ofi+tcp://127.0.0.1", "sm"),
    ] {
        let engine = hg::listen(url).unwrap();
        let (status, printed, said) = ping(&[engine.address().as_str()]);
        assert_eq!((status, said.as_str()), (Some(0), ""), "{url}");
        let start = format!("{} answers by {way}: first after ", engine.address());
        assert!(printed.starts_with(&start) && printed.lines().count() == 1, "{url}: {printed}");
    }
}

#[test]
fn a_part_of_an_address_is_reached_that_way() {
    let engine = hg::listen("tcp://127.0.0.1").unwrap();
    let network = engine.address().part("tcp").unwrap();
    let (status, printed, said) = ping(&[network.as_str()]);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    assert!(printed.starts_with(&format!("{network} answers by tcp: ")), "{printed}");
}

#[test]
fn whoever_does_not_answer_is_told_with_the_reason() {
    let nobody = format!("sm://nobody-{}/0", std::process::id());
    let (status, printed, said) = ping(&[&nobody]);
    assert_eq!((status, printed.as_str()), (Some(1), ""), "{said}");
    assert!(said.starts_with(&format!("hydrargyrum: {nobody} does not answer: ")), "{said}");
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn something_else_that_listens_there_is_told_apart_from_nobody() {
    for scheme in ["tcp", "ofi+tcp"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Whoever comes is answered in another language, until nobody asks any more.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                let _ = stream.read(&mut [0; 1024]);
            }
        });
        let address = format!("{scheme}://127.0.0.1:{port}");
        let (status, printed, said) = ping(&[&address]);
        assert_eq!((status, printed.as_str()), (Some(1), ""), "{said}");
        let start = format!("hydrargyrum: {address}: something else listens there: ");
        assert!(said.starts_with(&start) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn an_address_without_a_port_is_answered_with_what_one_looks_like() {
    let (status, _, said) = ping(&["tcp://127.0.0.1"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("names no port: ") && said.contains("uid://NODE#sm://"), "{said}");
}

#[test]
fn an_engine_with_a_key_answers_those_who_have_it() {
    let file = std::env::temp_dir().join(format!("hg-ping-{}", std::process::id()));
    std::fs::write(&file, "5".repeat(64)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).unwrap();
    let path = file.to_str().unwrap();
    let builder = hg::builder().listen(true).setting("key-file", path).setting("routing", "off");
    let engine = builder.open("tcp://127.0.0.1").unwrap();
    let setting = format!("key-file={path}");
    let with_key = ping(&["--setting", &setting, engine.address().as_str()]);
    let without = ping(&["--timeout-ms", "60000", engine.address().as_str()]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!((with_key.0, with_key.2.as_str()), (Some(0), ""));
    assert_eq!(without.0, Some(1), "{without:?}");
}

#[test]
fn a_wrong_command_line_is_one_sentence() {
    for arguments in [
        &["nowhere"][..],
        &["quic://a:1"],
        &["tcp://127.0.0.1"],
        &["uid://"],
        &["sm://a/0", "--setting", "colour"],
        &["sm://a/0", "--setting", "colour=red"],
        &["sm://a/0", "--timeout-ms", "0"],
        &["sm://a/0", "--timeout-ms", "soon"],
        &[],
    ] {
        let (status, printed, said) = ping(arguments);
        assert_eq!((status, printed.as_str()), (Some(2), ""), "{arguments:?}: {said}");
        assert!(
            said.starts_with("hydrargyrum: ") && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    }
}
