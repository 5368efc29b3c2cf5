//! Copies from folder to folder, without a network in between.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
};

use proptest::prelude::*;

use super::*;
use crate::{
    offer::BLOCK_MIN,
    outgoing::Outgoing,
    plan::plan,
    source::Source,
    test_folder::{TestFolder, as_ordinary_user, give_away},
};

/// A sender.
struct Sender {
    source: Source,
    offer: Offer,
}

impl Sender {
    fn new(paths: &[PathBuf]) -> Self {
        let source = Source::gather(paths, true).unwrap();
        let entries = source.entries.clone();
        Self {
            source,
            offer: Offer { block: BLOCK_MIN, force: false, preserve: false, into: None, entries },
        }
    }

    fn force(mut self) -> Self {
        self.offer.force = true;
        self
    }

    /// Copies, at most so many parts; bytes that came.
    fn copy_some(&self, to: &TestFolder, parts: usize) -> Result<u64, Trouble> {
        let (mut incoming, mut outgoing) = self.begin(to)?;
        for _ in 0..parts {
            let Some(part) = outgoing.next_part(PART) else { break };
            incoming.take(&part)?;
        }
        let received = incoming.received();
        if parts == usize::MAX {
            incoming.finish()?;
        }
        Ok(received)
    }

    fn copy(&self, to: &TestFolder) -> Result<u64, Trouble> {
        self.copy_some(to, usize::MAX)
    }

    fn begin(&self, to: &TestFolder) -> Result<(Incoming, Outgoing<'_>), Trouble> {
        let folder = Folder::open(&to.0).unwrap();
        let (mut incoming, held) = Incoming::begin(folder, self.offer.clone(), 0o022)?;
        let plan = plan(&self.offer, &[held], |entry| self.source.sums(&self.offer, entry));
        let lost: Vec<u32> = plan.lost.iter().map(|it| it.0).collect();
        incoming.settle(&plan.same[0], &lost)?;
        Ok((incoming, Outgoing::new(&self.source, &self.offer, plan)))
    }
}

/// Of a part: one block fills it.
const PART: usize = 4100;

/// Bytes that differ from block to block.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at / 7 + at / 4096 * 31 + usize::from(seed)) % 251).unwrap())
        .collect()
}

fn file(folder: &TestFolder, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.0.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_and_trees_come_with_modes_links_and_nothing_beside_them() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir_all(from.0.join("tree/deep/empty")).unwrap();
    fs::write(from.0.join("tree/deep/big"), bytes(20_000, 1)).unwrap();
    fs::write(from.0.join("tree/nothing"), "").unwrap();
    symlink("deep/big", from.0.join("tree/link")).unwrap();
    symlink("/etc/passwd", from.0.join("tree/far")).unwrap();
    fs::set_permissions(from.0.join("tree/deep/big"), Permissions::from_mode(0o4777)).unwrap();
    fs::set_permissions(from.0.join("tree/deep/empty"), Permissions::from_mode(0o555)).unwrap();
    let single = file(&from, "single", b"abc");
    let mut sender = Sender::new(&[from.0.join("tree"), single]);
    sender.offer.into = Some(Below::new("some/where").unwrap());
    sender.copy(&to).unwrap();
    let into = to.0.join("some/where");
    assert_eq!(fs::read(into.join("tree/deep/big")).unwrap(), bytes(20_000, 1));
    assert_eq!(fs::read(into.join("single")).unwrap(), b"abc");
    assert_eq!(fs::read(into.join("tree/nothing")).unwrap(), b"");
    assert_eq!(fs::read_link(into.join("tree/link")).unwrap(), PathBuf::from("deep/big"));
    assert_eq!(fs::read_link(into.join("tree/far")).unwrap(), PathBuf::from("/etc/passwd"));
    let mode = |path: &str| fs::metadata(into.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("tree/deep/big"), mode("tree/deep/empty")), (0o755, 0o555));
    assert_eq!((to.names(), fs::read_dir(&into).unwrap().count()), (vec!["some".to_owned()], 2));
    // Once more: all is there.
    assert_eq!(sender.copy(&to), Ok(0));
}

#[test]
fn times_and_modes_are_kept_where_that_is_asked_for() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir(from.0.join("tree")).unwrap();
    let path = file(&from, "tree/file", b"abc");
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for (path, mode) in [(path, 0o666), (from.0.join("tree"), 0o777)] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    }
    let mut sender = Sender::new(&[from.0.join("tree")]);
    sender.offer.preserve = true;
    sender.copy(&to).unwrap();
    for (path, mode) in [("tree/file", 0o666), ("tree", 0o777)] {
        let metadata = fs::metadata(to.0.join(path)).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (mode, old), "{path}");
    }
}

#[test]
fn an_interrupted_copy_goes_on_where_it_was_and_what_is_wrong_in_it_comes_again() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = Sender::new(&[file(&from, "file", &bytes(10 * 4096, 1))]);
    assert_eq!(sender.copy_some(&to, 6), Ok(6 * 4096));
    assert_eq!(to.names(), [spool::NAME]);
    // Somebody damages a block of what has come.
    let name = Spool::name_of(&Below::new("file").unwrap());
    let left = fs::File::options().write(true).open(to.0.join(spool::NAME).join(name)).unwrap();
    left.write_all_at(b"damage", 2 * 4096 + 100).unwrap();
    assert_eq!(sender.copy(&to), Ok(5 * 4096));
    assert_eq!(
        (fs::read(to.0.join("file")).unwrap(), to.names()),
        (bytes(10 * 4096, 1), vec!["file".to_owned()])
    );
}

#[test]
fn what_an_interrupted_copy_has_left_goes_with_the_next_one_that_is_another() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let first = Sender::new(&[file(&from, "first", &bytes(10 * 4096, 1))]);
    first.copy_some(&to, 3).unwrap();
    // Of the same name, but with other bytes or of another length: nothing of it counts.
    for (len, seed) in [(10 * 4096, 2), (9 * 4096, 3)] {
        let changed = Sender::new(&[file(&from, "first", &bytes(len, seed))]);
        assert_eq!(changed.copy_some(&to, 3), Ok(3 * 4096));
        assert_eq!(fs::read_dir(to.0.join(spool::NAME)).unwrap().count(), 1);
    }
    Sender::new(&[file(&from, "second", b"abc")]).copy(&to).unwrap();
    assert_eq!(to.names(), ["second"]);
}

#[test]
fn a_file_that_is_there_is_kept_when_it_is_the_same_and_replaced_only_by_force() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = || Sender::new(&[from.0.join("file")]);
    file(&from, "file", &bytes(9000, 1));
    for other in [&bytes(9000, 2)[..], b"short"] {
        file(&to, "file", other);
        let said = sender().copy(&to).unwrap_err();
        assert!(
            Path::new(&said.path) == to.0.join("file") && said.why.contains("another file"),
            "{said}"
        );
        assert_eq!((fs::read(to.0.join("file")).unwrap(), to.names().len()), (other.to_vec(), 1));
    }
    file(&to, "file", &bytes(9000, 1));
    assert_eq!(sender().copy(&to), Ok(0));
    for other in [&bytes(9000, 2)[..], b"short"] {
        file(&to, "file", other);
        assert_eq!(sender().force().copy(&to), Ok(9000));
        assert_eq!(fs::read(to.0.join("file")).unwrap(), bytes(9000, 1));
    }
    fs::remove_file(to.0.join("file")).unwrap();
    fs::create_dir(to.0.join("file")).unwrap();
    assert!(sender().force().copy(&to).unwrap_err().why.contains("a folder of this name"));
}

#[test]
fn a_file_that_comes_meanwhile_is_not_replaced() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = Sender::new(&[file(&from, "file", &bytes(9000, 1))]);
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    file(&to, "file", b"theirs");
    let part = outgoing.next_part(usize::MAX).unwrap();
    assert!(incoming.take(&part).unwrap_err().why.contains("has come meanwhile"));
    assert_eq!(fs::read(to.0.join("file")).unwrap(), b"theirs");
}

#[test]
fn links_in_the_target_lead_nowhere_else() {
    let (from, to, outside) = (TestFolder::new(), TestFolder::new(), TestFolder::new());
    fs::create_dir(from.0.join("tree")).unwrap();
    fs::write(from.0.join("tree/file"), "abc").unwrap();
    symlink(&outside.0, to.0.join("tree")).unwrap();
    let said = Sender::new(&[from.0.join("tree")]).force().copy(&to).unwrap_err();
    assert!(said.why.contains("leads out"), "{said}");
    let mut sender = Sender::new(&[from.0.join("tree")]).force();
    sender.offer.into = Some(Below::new("tree/more").unwrap());
    assert!(sender.copy(&to).is_err());
    // A link that comes with the copy itself is none either.
    fs::remove_file(to.0.join("tree")).unwrap();
    let (first, second) = (offer_of_link(&outside), Below::new("tree/file").unwrap());
    let mut both = first.clone();
    both.entries.push(Entry { path: second, what: What::File(3), ..first.entries[0].clone() });
    let folder = Folder::open(&to.0).unwrap();
    let (mut incoming, _) = Incoming::begin(folder, both, 0).unwrap();
    incoming.settle(&[], &[]).unwrap();
    let mut writer = crate::part::Writer::default();
    let sum = writer.block((1, 0), 3, |_| Ok::<(), ()>(())).unwrap();
    writer.end(1, Sum::of_file(3, &[sum]));
    let said = incoming.take(&writer.finish()).unwrap_err();
    assert!(said.why.contains("leads out"), "{said}");
    assert!(outside.names().is_empty());
}

fn offer_of_link(outside: &TestFolder) -> Offer {
    use std::os::unix::ffi::OsStrExt as _;
    let target = serde_bytes::ByteBuf::from(outside.0.as_os_str().as_bytes());
    crate::offer::tests::offer(&[("tree", What::Link(target))])
}

#[test]
fn damaged_or_missing_blocks_give_no_file_its_name() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = Sender::new(&[file(&from, "file", &bytes(3 * 4096, 1))]);
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    let mut part = outgoing.next_part(usize::MAX).unwrap();
    *part.last_mut().unwrap() ^= 1;
    assert!(incoming.take(&part).unwrap_err().why.contains("damaged"));
    assert!(incoming.finish().unwrap_err().why.contains("not come whole"));
    let (mut incoming, _) = sender.begin(&to).unwrap();
    let mut writer = crate::part::Writer::default();
    writer.end(0, Sum([0; 16]));
    assert!(incoming.take(&writer.finish()).unwrap_err().why.contains("checksum"));
    assert_eq!(to.names(), [spool::NAME]);
}

#[test]
fn a_file_that_changes_while_it_is_sent_gets_its_name_nowhere() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let path = file(&from, "file", &bytes(3 * 4096, 1));
    let sender = Sender::new(std::slice::from_ref(&path));
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    incoming.take(&outgoing.next_part(PART).unwrap()).unwrap();
    fs::write(path, bytes(3 * 4096 + 1, 2)).unwrap();
    while let Some(part) = outgoing.next_part(PART) {
        incoming.take(&part).unwrap();
    }
    assert!(outgoing.failed()[0].why.contains("has changed"));
    assert!(incoming.finish().is_err());
    assert_eq!(to.names(), [spool::NAME]);
}

#[test]
fn a_file_that_is_changed_and_has_its_time_set_back_gets_its_name_nowhere() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let path = file(&from, "file", &bytes(3 * 4096, 1));
    let before = fs::metadata(&path).unwrap();
    let sender = Sender::new(std::slice::from_ref(&path));
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    incoming.take(&outgoing.next_part(PART).unwrap()).unwrap();
    // The clock of the file system has to go on.
    let time = |it: &fs::Metadata| (it.ctime(), it.ctime_nsec());
    while time(&fs::metadata(file(&to, "clock", b"")).unwrap()) == time(&before) {}
    fs::remove_file(to.0.join("clock")).unwrap();
    fs::write(&path, bytes(3 * 4096, 2)).unwrap();
    let changed = fs::File::options().write(true).open(&path).unwrap();
    changed.set_modified(before.modified().unwrap()).unwrap();
    while let Some(part) = outgoing.next_part(PART) {
        incoming.take(&part).unwrap();
    }
    assert!(outgoing.failed()[0].why.contains("has changed"));
    assert!(incoming.finish().is_err());
    assert_eq!(to.names(), [spool::NAME]);
}

#[test]
fn what_somebody_changes_on_the_disk_meanwhile_gets_no_name() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = Sender::new(&[file(&from, "file", &bytes(3 * 4096, 1))]);
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    incoming.take(&outgoing.next_part(PART).unwrap()).unwrap();
    let begun = fs::read_dir(to.0.join(spool::NAME)).unwrap().next().unwrap().unwrap().path();
    fs::File::options().write(true).open(begun).unwrap().write_all_at(b"other", 0).unwrap();
    let mut taken = Ok(());
    while let Some(part) = outgoing.next_part(PART) {
        taken = incoming.take(&part);
    }
    assert_eq!(taken.unwrap_err().why, "what lies there is not what was written");
    assert_eq!(to.names(), [spool::NAME]);
}

#[test]
fn files_that_nobody_may_write_come_for_an_ordinary_user_and_what_is_left_of_them_is_taken_up() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let paths = ["a", "b"].map(|name| file(&from, name, &bytes(3 * 4096, 1)));
    for path in &paths {
        fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
    }
    let sender = Sender::new(&paths);
    as_ordinary_user(|| {
        let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
        // So both of them are left.
        for name in ["a", "b"] {
            file(&to, name, b"theirs");
        }
        let part = outgoing.next_part(usize::MAX).unwrap();
        assert!(incoming.take(&part).unwrap_err().why.contains("has come meanwhile"));
        drop(incoming);
        // One of them can be read, the other one cannot, for whatever reason.
        for (name, mode) in [("a", 0o444), ("b", 0)] {
            fs::remove_file(to.0.join(name)).unwrap();
            let left = to.0.join(spool::NAME).join(Spool::name_of(&Below::new(name).unwrap()));
            fs::set_permissions(left, Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(sender.copy(&to), Ok(3 * 4096));
    });
    assert_eq!(to.names(), ["a", "b"]);
    for name in ["a", "b"] {
        let path = to.0.join(name);
        assert_eq!(fs::read(&path).unwrap(), bytes(3 * 4096, 1));
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o444);
    }
}

#[test]
fn a_link_that_was_left_is_none_of_a_file_s_blocks() {
    let (from, to, outside) = (TestFolder::new(), TestFolder::new(), TestFolder::new());
    let secret = file(&outside, "secret", &bytes(4096, 1));
    let sender = Sender::new(&[file(&from, "file", &bytes(4096, 1))]);
    fs::create_dir(to.0.join(spool::NAME)).unwrap();
    fs::set_permissions(to.0.join(spool::NAME), Permissions::from_mode(0o700)).unwrap();
    let left = to.0.join(spool::NAME).join(Spool::name_of(&Below::new("file").unwrap()));
    symlink(&secret, left).unwrap();
    assert_eq!(sender.copy(&to), Ok(4096));
    assert!(to.names() == ["file"] && fs::symlink_metadata(to.0.join("file")).unwrap().is_file());
    assert_eq!(fs::read(secret).unwrap(), bytes(4096, 1));
}

#[test]
fn a_file_of_somebody_else_that_was_left_is_none_of_a_file_s_blocks() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let sender = Sender::new(&[file(&from, "file", &bytes(4096, 1))]);
    let spool = to.0.join(spool::NAME);
    fs::create_dir(&spool).unwrap();
    fs::set_permissions(&spool, Permissions::from_mode(0o700)).unwrap();
    let left = spool.join(Spool::name_of(&Below::new("file").unwrap()));
    fs::write(&left, bytes(4096, 1)).unwrap();
    if give_away(&left) {
        assert_eq!(as_ordinary_user(|| sender.copy(&to)), Ok(4096));
        let owner = |folder: &TestFolder| fs::metadata(folder.0.join("file")).unwrap().uid();
        assert_eq!((owner(&to), to.names()), (owner(&from), vec!["file".to_owned()]));
    }
}

#[test]
fn a_file_that_has_changed_between_two_attempts_costs_the_others_nothing() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    let paths = ["begun", "other", "whole"].map(|name| file(&from, name, &bytes(2 * 4096, 1)));
    let sender = Sender::new(&paths);
    fs::copy(&paths[2], to.0.join("whole")).unwrap();
    assert_eq!(sender.copy_some(&to, 1), Ok(4096));
    fs::write(&paths[0], "changed").unwrap();
    fs::write(&paths[2], "changed").unwrap();
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    incoming.take(&outgoing.next_part(usize::MAX).unwrap()).unwrap();
    assert_eq!(outgoing.next_part(usize::MAX), None);
    let failed: Vec<_> = outgoing.failed().iter().map(|it| it.path.rsplit('/').next()).collect();
    assert_eq!(failed, [Some("begun"), Some("whole")]);
    assert!(outgoing.failed().iter().all(|it| it.why.contains("has changed")));
    let said = incoming.finish().unwrap_err();
    let place = to.0.join("begun");
    assert_eq!((Path::new(&said.path), &said.why[..]), (&*place, "has not come whole"));
    assert_eq!(fs::read(to.0.join("other")).unwrap(), bytes(2 * 4096, 1));
    assert_eq!(fs::read(to.0.join("whole")).unwrap(), bytes(2 * 4096, 1));
}

#[test]
fn folders_that_were_there_keep_their_modes_unless_that_is_asked_for() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir_all(from.0.join("tree/private/new")).unwrap();
    file(&from, "tree/private/new/file", b"abc");
    fs::create_dir_all(to.0.join("tree/private")).unwrap();
    fs::set_permissions(to.0.join("tree/private"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(from.0.join("tree/private"), Permissions::from_mode(0o755)).unwrap();
    let mut sender = Sender::new(&[from.0.join("tree")]);
    sender.copy(&to).unwrap();
    let mode = |path: &str| fs::metadata(to.0.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("tree/private"), mode("tree/private/new")), (0o700, 0o755));
    sender.offer.preserve = true;
    sender.copy(&to).unwrap();
    assert_eq!(mode("tree/private"), 0o755);
}

#[test]
fn a_folder_of_somebody_else_takes_files_from_who_may_write_there() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir(from.0.join("tree")).unwrap();
    file(&from, "tree/file", b"abc");
    let theirs = to.0.join("tree");
    fs::create_dir(&theirs).unwrap();
    // Which who may write there cannot even read.
    fs::set_permissions(&theirs, Permissions::from_mode(0o730)).unwrap();
    if give_away(&theirs) {
        let copied = as_ordinary_user(|| Sender::new(&[from.0.join("tree")]).copy(&to));
        assert_eq!((copied, fs::read(theirs.join("file")).unwrap()), (Ok(3), b"abc".to_vec()));
    }
}

#[test]
fn folders_that_an_interrupted_copy_has_made_get_their_modes_from_the_next_one() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir_all(from.0.join("tree/deep")).unwrap();
    file(&from, "tree/deep/file", &bytes(2 * 4096, 1));
    fs::set_permissions(from.0.join("tree/deep"), Permissions::from_mode(0o555)).unwrap();
    let sender = Sender::new(&[from.0.join("tree")]);
    let mode = |path: &str| fs::metadata(to.0.join(path)).unwrap().mode() & 0o7777;
    as_ordinary_user(|| {
        sender.copy_some(&to, 1).unwrap();
        assert_eq!(mode("tree/deep") & 0o77, 0, "nobody else's before it is whole");
        sender.copy(&to).unwrap();
    });
    assert_eq!((mode("tree"), mode("tree/deep")), (0o755, 0o555));
}

#[test]
fn folders_get_their_modes_though_a_file_in_them_never_comes_unless_it_could_not_come_any_more() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir_all(from.0.join("tree/fixed")).unwrap();
    let path = file(&from, "tree/fixed/file", &bytes(2 * 4096, 1));
    fs::set_permissions(from.0.join("tree/fixed"), Permissions::from_mode(0o555)).unwrap();
    let sender = Sender::new(&[from.0.join("tree")]);
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    incoming.take(&outgoing.next_part(PART).unwrap()).unwrap();
    fs::write(path, bytes(2 * 4096 + 1, 2)).unwrap();
    while let Some(part) = outgoing.next_part(PART) {
        incoming.take(&part).unwrap();
    }
    assert!(outgoing.failed()[0].why.contains("has changed"));
    let said = incoming.finish().unwrap_err();
    let place = to.0.join("tree/fixed/file");
    assert_eq!((Path::new(&said.path), &said.why[..]), (&*place, "has not come whole"));
    let mode = |path: &str| fs::metadata(to.0.join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("tree"), 0o755);
    let again = as_ordinary_user(|| Sender::new(&[from.0.join("tree")]).copy(&to));
    assert_eq!((again, mode("tree/fixed")), (Ok(2 * 4096 + 1), 0o555));
}

#[test]
fn folders_that_were_made_get_their_modes_where_the_file_system_does_not_keep_their_mark() {
    let (from, to) = (TestFolder::new(), TestFolder::new());
    fs::create_dir(from.0.join("tree")).unwrap();
    file(&from, "tree/file", b"abc");
    let sender = Sender::new(&[from.0.join("tree")]);
    let (mut incoming, mut outgoing) = sender.begin(&to).unwrap();
    fs::set_permissions(to.0.join("tree"), Permissions::from_mode(0o700)).unwrap();
    incoming.take(&outgoing.next_part(usize::MAX).unwrap()).unwrap();
    incoming.finish().unwrap();
    assert_eq!(fs::metadata(to.0.join("tree")).unwrap().mode() & 0o7777, 0o755);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Interrupted any number of times, each time the copy goes on, and nothing but the file is left at the end.
    #[test]
    fn any_interruptions_end_with_the_file(
        len in 0_usize..30_000,
        parts in prop::collection::vec(0_usize..4, 0..4),
    ) {
        let (from, to) = (TestFolder::new(), TestFolder::new());
        let sender = Sender::new(&[file(&from, "file", &bytes(len, 3))]);
        let mut received = 0;
        for parts in parts {
            received += sender.copy_some(&to, parts).unwrap();
        }
        received += sender.copy(&to).unwrap();
        prop_assert_eq!(received, len as u64);
        prop_assert_eq!(fs::read(to.0.join("file")).unwrap(), bytes(len, 3));
        prop_assert_eq!(to.names(), ["file"]);
    }
}
