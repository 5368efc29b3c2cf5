//! Names, owners and disks that are out of the ordinary, and senders that come at the same time.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, Permissions},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    },
    path::Path,
    process::{Child, Command},
};

use crate::{
    CP,
    common::command,
    copies::send,
    hosts::skip,
    receiver::{Folder, Receiver, bytes, names},
};

/// All that is in a folder, by name: what a file holds, where a link points to.
fn all(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let content = |path: &Path| match fs::read_link(path) {
        Ok(target) => target.as_os_str().as_bytes().to_vec(),
        Err(_) => fs::read(path).unwrap_or_default(),
    };
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), content(&entry.path()))).collect()
}

#[test]
fn names_of_any_bytes_are_copied_and_said_without_those_that_a_terminal_obeys() {
    let test = Folder::new();
    let key = test.key("key");
    let tree = test.folder("tree");
    let long = "x".repeat(255);
    let odd: [&[u8]; 10] = [
        b"two\nlines",
        b"\x1b[31mred",
        b"\xff\xfe not utf-8",
        b" ",
        b"-rf",
        b"a:b",
        b"'\"`$(true)\\",
        "\u{e9}".as_bytes(),
        b"...",
        long.as_bytes(),
    ];
    for (name, len) in odd.into_iter().zip(1..) {
        fs::write(tree.join(OsStr::from_bytes(name)), bytes(len, 1)).unwrap();
    }
    symlink(OsStr::from_bytes(b"two\nlines\xff"), tree.join("a\rlink")).unwrap();
    let folder = test.folder("a");
    let receiver = Receiver::start(&folder, &["--key-file", &key]);
    let words = ["--key-file", &key, "--json", "-r", &test.text("tree"), &receiver.address];
    let said = send(&words);
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert_eq!(all(&folder.join("tree")), all(&tree));
    for name in ["two\nlines", "\u{1b}[31mred"] {
        fs::write(folder.join("tree").join(name), "other").unwrap();
        let said = send(&words);
        let line = format!("tree/{}: another file", name.escape_debug());
        assert!(said.code == Some(1) && said.err.contains(&line), "{}", said.all());
        assert_eq!(said.lines()[0]["error"].as_str().unwrap().matches(name).count(), 0);
        fs::copy(tree.join(name), folder.join("tree").join(name)).unwrap();
    }
}

#[test]
fn an_ordinary_user_receives_what_nobody_may_write_and_twice_sends_nothing_again() {
    const NOBODY: u32 = 65_534;
    let test = Folder::new();
    let (key, cp) = (test.key("key"), test.text("cp"));
    let tree = test.folder("tree");
    for name in ["a", "b", "c"] {
        fs::write(tree.join(name), bytes(100_000, 1)).unwrap();
        fs::set_permissions(tree.join(name), Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(&tree, Permissions::from_mode(0o555)).unwrap();
    let folder = test.folder("folder");
    fs::copy(CP, &cp).unwrap();
    let theirs = test.key("their");
    fs::copy(&key, &theirs).unwrap();
    if chown(&folder, Some(NOBODY), None).and_then(|()| chown(&theirs, Some(NOBODY), None)).is_err()
    {
        return skip("only root can start a process of another user");
    }
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "150", "setpriv", "--reuid", "65534", "--clear-groups", "--", &cp]);
    command.args(["--url", "tcp://127.0.0.1", "--key-file", &theirs, "--receive"]).arg(&folder);
    let receiver = Receiver::run(command);
    let words = ["--key-file", &key, "--json", "-r", &test.text("tree"), &receiver.address];
    for is_sent in [true, false] {
        let said = send(&words);
        assert_eq!(said.code, Some(0), "{}", said.all());
        assert_eq!(said.lines()[1]["bytes"], 300_000, "{}", said.all());
        let sent = said.lines()[1]["sent_bytes"].as_u64().unwrap();
        assert!(if is_sent { sent > 300_000 } else { sent == 0 }, "{}", said.all());
    }
    for path in [folder.join("tree"), folder.join("tree/a"), folder.join("tree/c")] {
        let metadata = fs::metadata(path).unwrap();
        let mode = if metadata.is_dir() { 0o555 } else { 0o444 };
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (NOBODY, mode));
    }
    assert!(names(&folder) == ["tree"] && all(&folder.join("tree")) == all(&tree));
}

/// A sender that has begun.
fn begin(key: &str, file: &str, target: &str) -> Child {
    let words = ["--url", "tcp://127.0.0.1", "--key-file", key, file, target];
    command(CP, &words).spawn().unwrap()
}

#[test]
fn of_two_senders_at_a_time_one_is_served_and_the_other_told_so_and_no_file_is_a_mixture() {
    let test = Folder::new();
    let key = test.key("key");
    for name in ["one", "two"] {
        test.folder(name);
    }
    let folder = test.folder("a");
    let receiver = Receiver::start(&folder, &["--key-file", &key]);
    for (names_, is_same) in [(["x", "y"], false), (["same", "same"], true)] {
        let contents = [bytes(3_000_000, 8), bytes(3_000_000, 9)];
        let files = [0, 1]
            .map(|it| test.file(&format!("{}/{}", ["one", "two"][it], names_[it]), &contents[it]));
        let ended = files
            .each_ref()
            .map(|file| begin(&key, file, &receiver.address))
            .map(|mut sender| watchdog::ended(&mut sender));
        let is_well = ended.each_ref().map(|it| it.status.success());
        assert!(
            if is_same { is_well[0] != is_well[1] } else { is_well[0] || is_well[1] },
            "{ended:?}"
        );
        for (at, ended) in ended.iter().enumerate().filter(|it| !it.1.status.success()) {
            let err = String::from_utf8_lossy(&ended.stderr);
            let there = is_same && err.contains("another file of this name");
            assert!(there || err.contains("at work for another sender"), "{err}");
            let said = send(&["--key-file", &key, &files[at], &receiver.address]);
            assert_eq!(said.code, Some(i32::from(is_same)), "{}", said.all());
        }
        for at in 0..2 {
            let there = fs::read(folder.join(names_[at])).unwrap();
            assert!(there == contents[at] || is_same && contents.contains(&there));
        }
    }
    assert_eq!(names(&folder), ["same", "x", "y"]);
}

#[test]
fn a_disk_that_is_full_in_the_middle_is_named_and_the_next_copy_goes_on_there() {
    let test = Folder::new();
    let key = test.key("key");
    let (tree, small, large) = (test.folder("tree"), test.folder("small"), test.folder("large"));
    // Each takes a page of the disk, whatever its size, so that there seems to be enough room.
    for number in 0..400 {
        fs::write(tree.join(format!("{number}")), bytes(100, number)).unwrap();
    }
    let script = "mount -t tmpfs -o size=1m none \"$1\" && exec \"$0\" --url tcp://127.0.0.1 --key-file \"$2\" --receive \"$1\"";
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "150", "unshare", "--mount", "sh", "-c", script, CP]);
    let full = Receiver::run({
        command.arg(&small).arg(&key);
        command
    });
    if full.address.is_empty() {
        return skip("no right to mount a small disk");
    }
    let other = Receiver::start(&large, &["--key-file", &key]);
    let words =
        ["--key-file", &key, "-r", &test.text("tree"), &full.address, &other.address, "--json"];
    let said = send(&words);
    assert_eq!(said.code, Some(1), "{}", said.all());
    let line = format!("multicast-cp: {}: {}/tree/", full.address, small.display());
    let is_named = said.err.contains(&line) && said.err.contains("No space left on device");
    assert!(is_named && !said.err.contains(&other.address), "{}", said.err);
    assert_eq!(all(&large.join("tree")), all(&tree));
    let mounts = format!("--mount=/proc/{}/ns/mnt", full.process());
    let grown = Command::new("nsenter")
        .args([&mounts, "mount", "-o", "remount,size=16m"])
        .arg(&small)
        .status();
    assert!(grown.unwrap().success());
    let said = send(&words);
    assert_eq!(said.code, Some(0), "{}", said.all());
    let seen = format!("/proc/{}/root{}", full.process(), small.display());
    assert_eq!(names(Path::new(&seen)), ["tree"]);
    assert_eq!(all(&Path::new(&seen).join("tree")), all(&tree));
}
