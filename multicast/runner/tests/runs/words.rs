//! What `multicast-cp` says when something is not as it should be, and what can be done about it.

use std::{fs, process::Command};

use crate::{
    CP,
    common::{Outcome, run},
    copies::send,
    receiver::{Folder, Receiver, names},
};

/// Whether this, and nothing else, is a line on standard error.
fn says(said: &Outcome, line: &str) {
    assert!(said.err.lines().any(|it| it == format!("multicast-cp: {line}")), "{}", said.all());
}

#[test]
fn a_receiver_starts_in_a_folder_that_is_there_with_a_key_that_is_there() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", b"abc"));
    let receive = |folder: &str, key: &str| run(CP, &["--receive", folder, "--key-file", key], &[]);
    let (absent, here) = (test.text("absent"), test.text(""));
    says(&receive(&absent, &key), &format!("{absent}: is not there: make it first"));
    says(&receive(&file, &key), &format!("{file}: is a file, not a folder"));
    let make = format!("`openssl rand -hex 32 > {absent}; chmod 600 {absent}` makes one");
    let why = "of which sender and receivers have copies";
    says(&receive(&here, &absent), &format!("--key-file: {absent}: is not there: {make}, {why}"));
}

#[test]
fn a_second_receiver_of_a_folder_is_refused_when_it_starts() {
    let test = Folder::new();
    let (key, folder) = (test.key("key"), test.folder("a"));
    let mut first = Receiver::start(&folder, &["--key-file", &key]);
    let text = folder.to_str().unwrap();
    let second = run(CP, &["--receive", text, "--key-file", &key], &[]);
    says(&second, &format!("{text}: another receiver has this folder"));
    assert_eq!(second.code, Some(1));
    first.kill();
    assert!(!Receiver::start(&folder, &["--key-file", &key]).address.is_empty());
}

#[test]
fn who_is_not_there_and_who_has_another_key_is_said_without_words_of_the_library() {
    let test = Folder::new();
    let (key, other, file) = (test.key("key"), test.key("other"), test.file("file", b"abc"));
    let folder = test.folder("a");
    let mut receiver = Receiver::start(&folder, &["--key-file", &key]);
    let address = receiver.address.clone();
    let said = send(&["--key-file", &other, &file, &address]);
    let why = "it refused the connection (the keys of the two ends differ)";
    says(&said, &format!("{address}: {why}"));
    receiver.kill();
    let said = send(&["--key-file", &key, &file, &address]);
    let (begin, end) = (
        format!("{address}: no receiver is there ("),
        "): start `multicast-cp --receive FOLDER` there\n",
    );
    assert!(said.err.contains(&begin) && said.err.ends_with(end), "{}", said.all());
}

#[test]
fn a_target_that_is_a_file_is_said_to_be_one_with_all_of_its_path() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", b"abc"));
    let folder = test.folder("a");
    fs::write(folder.join("x"), "").unwrap();
    let receiver = Receiver::start(&folder, &["--key-file", &key]);
    let address = &receiver.address;
    for below in ["x", "x/y"] {
        let said = send(&["--key-file", &key, &file, &format!("{address}/{below}")]);
        says(&said, &format!("{address}: {}: is a file, not a folder", folder.join("x").display()));
    }
    assert_eq!(names(&folder), ["x"]);
    let start = format!("sh {}", test.file("here", b"shift; exec \"$@\""));
    let started = |target: &str| {
        send(&["--start", &start, "--program", CP, &file, &format!("host:{target}")])
    };
    says(&started(&file), &format!("{file}: is a file, not a folder"));
    let deep = test.text("no/no");
    says(&started(&deep), &format!("{deep}: the folder above it is not there: make that first"));
}

#[test]
fn what_cannot_be_copied_and_what_looks_like_an_option_is_said_with_what_to_do() {
    let test = Folder::new();
    let tree = test.folder("tree");
    Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap();
    let said = send(&["-r", "--open", tree.to_str().unwrap(), "tcp://127.0.0.1:1"]);
    let pipe = tree.join("pipe");
    let why = "is neither a file nor a folder nor a link, and cannot be copied: leave it out, or remove it";
    says(&said, &format!("{}: {why}", pipe.display()));
    test.file("-dash", b"abc");
    let mut command = Command::new(CP);
    let said = command.args(["-dash", "host:/x"]).current_dir(&test.0).output().unwrap();
    let err = String::from_utf8(said.stderr).unwrap();
    assert!(err.ends_with("; the file is written ./-dash\n") && err.lines().count() == 1, "{err}");
    assert_eq!(said.status.code(), Some(2));
}
