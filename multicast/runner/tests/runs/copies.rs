//! Copies that go well, and those that are refused.

use std::{fs, os::unix::fs::symlink, process::Command};

use crate::{
    CP,
    common::{Outcome, run},
    receiver::{Folder, Receiver, bytes, names},
};

/// A sender, to the end.
pub(crate) fn send(words: &[&str]) -> Outcome {
    run(CP, &[&["--url", "tcp://127.0.0.1"], words].concat(), &[])
}

#[test]
fn a_tree_reaches_receivers_that_were_started_by_hand_and_twice_sends_nothing_again() {
    let test = Folder::new();
    let key = test.key("key");
    fs::create_dir_all(test.0.join("tree/deep")).unwrap();
    let big = bytes(3_000_000, 1);
    test.file("tree/deep/big", &big);
    (0..100)
        .for_each(|it| drop(test.file(&format!("tree/small-{it}"), &bytes(it * 100, it as u64))));
    symlink("deep/big", test.0.join("tree/link")).unwrap();
    let folders = ["a", "b", "c"].map(|name| test.folder(name));
    let receivers = folders.each_ref().map(|folder| Receiver::start(folder, &["--key-file", &key]));
    let targets = receivers.each_ref().map(|it| format!("{}/some/where", it.address));
    let tree = test.text("tree");
    let words = [
        "--key-file",
        &key,
        "--json",
        "-r",
        "--block-size",
        "65536",
        &tree,
        &targets[0],
        &targets[1],
        &targets[2],
    ];
    let first = send(&words);
    assert_eq!(first.code, Some(0), "{}", first.all());
    for folder in &folders {
        assert_eq!(names(folder), ["some"]);
        let tree = folder.join("some/where/tree");
        assert_eq!(fs::read(tree.join("deep/big")).unwrap(), big);
        assert_eq!(fs::read(tree.join("small-99")).unwrap(), bytes(9900, 99));
        assert_eq!(fs::read_link(tree.join("link")).unwrap().to_str(), Some("deep/big"));
        assert_eq!(names(&tree).len(), 102);
    }
    let second = send(&words);
    let total = second.lines().pop().unwrap();
    assert_eq!(
        (second.code, &total["sent_bytes"], &total["failed"]),
        (Some(0), &0.into(), &0.into()),
        "{}",
        second.all()
    );
}

#[test]
fn receivers_that_it_starts_end_with_it() {
    let test = Folder::new();
    let file = test.file("file", &bytes(200_000, 2));
    let (first, second) = (test.text("first"), test.text("second"));
    // What ssh does with its words, without a host.
    let start = format!("sh {}", test.file("here", b"shift; exec \"$@\""));
    let words = [
        "--start",
        &start,
        "--program",
        CP,
        &file,
        &format!("host:{first}"),
        &format!("host:{second}"),
    ];
    let said = send(&words);
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert!(said.out.contains("2 of 2 hosts have 1 file of"), "{}", said.out);
    for folder in [first, second] {
        assert_eq!(fs::read(format!("{folder}/file")).unwrap(), bytes(200_000, 2));
    }
}

#[test]
fn receivers_that_it_has_started_are_all_told_to_end_before_it_waits_for_any() {
    let test = Folder::new();
    let file = test.file("file", b"abc");
    // The first one ends when the second one has.
    let script = b"host=$1; shift; \"$@\"; [ $host = first ] && read _ <$0.pipe || echo >$0.pipe";
    let here = test.file("here", script);
    Command::new("mkfifo").arg(format!("{here}.pipe")).status().unwrap();
    let targets = ["first", "second"].map(|name| format!("{name}:{}", test.text(name)));
    let start = format!("sh {here}");
    let said = send(&["--start", &start, "--program", CP, &file, &targets[0], &targets[1]]);
    assert_eq!(said.code, Some(0), "{}", said.all());
}

#[test]
fn what_has_started_a_receiver_and_goes_on_when_that_has_ended_is_not_waited_for_without_end() {
    let test = Folder::new();
    let file = test.file("file", b"abc");
    let here = test.file("here", b"shift; \"$@\"; exec sleep 1000000");
    let (start, folder) = (format!("sh {here}"), test.text("folder"));
    let said = send(&["--start", &start, "--program", CP, &file, &format!("host:{folder}")]);
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert_eq!(fs::read(format!("{folder}/file")).unwrap(), b"abc");
}

#[test]
fn a_file_that_is_longer_than_its_length_says_is_refused_before_anything_is_copied() {
    let test = Folder::new();
    let receiver = Receiver::start(&test.folder("to"), &["--open"]);
    let said = send(&["--open", "/proc/version", &receiver.address]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    let why = "/proc/version: has bytes, although its length is said to be 0";
    assert!(said.err.contains(why), "{}", said.all());
    assert!(!test.0.join("to/version").exists());
}

#[test]
fn a_receiver_that_dies_behind_what_has_started_it_is_named_and_not_waited_for() {
    let test = Folder::new();
    let file = test.file("file", &bytes(100_000, 3));
    // As ssh does whose host has lost its power: it goes on when the receiver is dead.
    let script = b"shift; exec 3<&0; mkfifo $0.pipe; \"$@\" <&3 >$0.pipe & read address <$0.pipe
        kill -9 $!; wait $!; echo $address; exec sleep 1000000";
    let start = format!("sh {}", test.file("here", script));
    let target = format!("host:{}", test.text("folder"));
    let said = send(&["--start", &start, "--program", CP, &file, &target]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    assert!(said.err.contains("multicast-cp: host: "), "{}", said.err);
}

#[test]
fn a_host_that_is_not_there_is_named_and_the_others_get_everything() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", &bytes(100_000, 3)));
    let folder = test.folder("a");
    let receiver = Receiver::start(&folder, &["--key-file", &key]);
    let said = send(&[
        "--key-file",
        &key,
        "--json",
        &file,
        "--start",
        "false",
        "nobody:/x",
        &receiver.address,
    ]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    assert!(said.err.contains("multicast-cp: nobody: no receiver has started"), "{}", said.err);
    assert!(said.lines()[1]["error"].is_null() && folder.join("file").is_file());
}

#[test]
fn a_host_that_is_stopped_is_named_and_left_out_where_that_is_wanted() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", &bytes(100_000, 7)));
    let folders = ["a", "b"].map(|name| test.folder(name));
    let receivers = folders.each_ref().map(|folder| Receiver::start(folder, &["--key-file", &key]));
    let [first, second] = receivers.each_ref().map(|it| it.address.as_str());
    receivers[0].signal("-STOP");
    let said = send(&["--key-file", &key, "--give-up", "1", &file, first, second]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    for line in [
        format!("multicast-cp: {first} gives no sign of life"),
        format!("multicast-cp: {first}: has given no sign of life for too long"),
    ] {
        assert!(said.err.contains(&line), "{}", said.err);
    }
    assert!(!said.err.contains(second), "{}", said.err);
    assert_eq!(fs::read(folders[1].join("file")).unwrap(), bytes(100_000, 7));
    receivers[0].signal("-CONT");
    let said = send(&["--key-file", &key, &file, first, second]);
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert_eq!(fs::read(folders[0].join("file")).unwrap(), bytes(100_000, 7));
}

#[test]
fn what_is_in_the_way_is_named_with_its_host_and_stays() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", &bytes(100_000, 4)));
    let folders = ["a", "b"].map(|name| test.folder(name));
    fs::write(folders[0].join("file"), "mine").unwrap();
    let receivers = folders.each_ref().map(|folder| Receiver::start(folder, &["--key-file", &key]));
    let [first, second] = receivers.each_ref().map(|it| it.address.as_str());
    let said = send(&["--key-file", &key, &file, first, second]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    let there = folders[0].join("file");
    let line = format!("{first}: {}: another file of this name is there (--force", there.display());
    assert!(said.err.contains(&line), "{}", said.err);
    assert_eq!(fs::read(folders[0].join("file")).unwrap(), b"mine");
    assert_eq!(fs::read(folders[1].join("file")).unwrap(), bytes(100_000, 4));
    let said = send(&["--key-file", &key, "--force", &file, first, second]);
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert_eq!(fs::read(folders[0].join("file")).unwrap(), bytes(100_000, 4));
}

#[test]
fn nothing_is_written_outside_of_the_receiver_s_folder() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", b"abc"));
    let (inside, outside) = (test.folder("inside"), test.folder("outside"));
    symlink(&outside, inside.join("way")).unwrap();
    let receiver = Receiver::start(&inside, &["--key-file", &key]);
    let said = send(&["--key-file", &key, &file, &format!("{}/way", receiver.address)]);
    assert!(said.code == Some(1) && said.err.contains("leads out"), "{}", said.all());
    let said = send(&["--key-file", &key, &file, &format!("{}/../outside", receiver.address)]);
    assert!(said.code == Some(2) && said.err.contains("`..`"), "{}", said.all());
    assert!(names(&outside).is_empty() && names(&inside) == ["way"]);
}

#[test]
fn nobody_feeds_a_receiver_without_its_key_and_none_starts_without_one() {
    let test = Folder::new();
    let (key, other, file) = (test.key("key"), test.key("other"), test.file("file", b"abc"));
    let folder = test.folder("a");
    let receiver = Receiver::start(&folder, &["--key-file", &key]);
    for words in [&["--key-file", &other][..], &["--open"]] {
        let said = send(&[words, &[&file, &receiver.address]].concat());
        assert!(said.code == Some(1) && said.err.contains(&receiver.address), "{}", said.all());
    }
    assert!(names(&folder).is_empty());
    let said = run(CP, &["--receive", folder.to_str().unwrap()], &[]);
    assert!(said.code == Some(1) && said.err.contains("--key-file FILE"), "{}", said.all());
    let said = send(&[&file, &receiver.address]);
    assert!(said.code == Some(1) && said.err.contains("--key-file FILE"), "{}", said.all());
}

#[test]
fn a_wrong_command_line_is_one_sentence_and_status_2() {
    for words in [&["file"][..], &["host:/x"], &["--recieve", "x"], &[]] {
        let said = run(CP, words, &[]);
        assert_eq!(
            (said.code, said.err.lines().count(), said.out.as_str()),
            (Some(2), 1, ""),
            "{}",
            said.all()
        );
        assert!(said.err.contains("`multicast-cp --help` says what there is"), "{}", said.err);
    }
}
