//! Copies in the middle of which somebody dies, or a disk is full.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use watchdog::Watchdog;

use crate::{
    CP,
    copies::send,
    hosts::{Hosts, or_skip, skip},
    receiver::{Folder, Receiver, bytes, has_ended, names, signal},
};

/// So long that it is under way for a while.
const LEN: usize = 12 << 20;
/// Of a block.
const MIB: usize = 1 << 20;

/// Three hosts, of which each has a narrow cable; the first one sends.
struct Net {
    test: Folder,
    content: Vec<u8>,
    hosts: Hosts,
    receivers: Vec<Receiver>,
    _watchdog: Watchdog,
    /// One of these copies at a time: each is encrypted by three processes, and is to be slowed down by its cables alone.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Net {
    fn new() -> Option<Self> {
        Self::with("40mbit", bytes(LEN, 5))
    }

    fn with(rate: &str, content: Vec<u8>) -> Option<Self> {
        let mut this = Self::without_receivers(rate, content)?;
        for host in 1..3 {
            let receiver = this.receiver(host);
            this.receivers.push(receiver);
        }
        Some(this)
    }

    fn without_receivers(rate: &str, content: Vec<u8>) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = or_skip(Hosts::new(3))?;
        for host in 0..3 {
            or_skip(hosts.link(host).shape(&format!("tbf rate {rate} burst 64k limit 1m")))?;
        }
        let test = Folder::new();
        test.key("key");
        test.file("file", &content);
        // As long as its processes have: two copies that three encrypt take their time where others work.
        let watchdog = Watchdog::within(Duration::from_secs(150));
        (1..3).for_each(|host| drop(test.folder(&host.to_string())));
        Some(Self { test, content, hosts, receivers: Vec::new(), _watchdog: watchdog, _turn: turn })
    }

    fn receiver(&self, host: usize) -> Receiver {
        let mut command = self.hosts.host(host).command("timeout");
        command.args(["-k", "2", "150", CP, "--key-file", &self.test.text("key"), "--receive"]);
        command.arg(self.test.text(&host.to_string()));
        Receiver::run(command)
    }

    fn sender(&self) -> Child {
        self.sender_with(&[])
    }

    fn sender_with(&self, more: &[&str]) -> Child {
        let mut command = self.hosts.host(0).command("timeout");
        command.args(["-k", "2", "150", CP, "--json", "--key-file", &self.test.text("key")]);
        command
            .args(more)
            .arg(self.test.text("file"))
            .args(self.receivers.iter().map(|it| &it.address));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Until a quarter of the file has reached a host.
    fn let_flow(&self, sender: &mut Child) {
        let before = self.hosts.link(2).traffic();
        while self.hosts.link(2).traffic() < before + LEN as u64 / 4 {
            assert!(sender.try_wait().unwrap().is_none(), "it has ended too early");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Until half of the first part is written in each of these folders.
    fn let_a_part_come(&self, sender: &mut Child, folders: [&str; 2]) {
        let (from, to) = (16 * MIB, 17 * MIB);
        for folder in folders {
            let spool = self.test.0.join(folder).join(".multicast-cp");
            watchdog::until("half of a part", || {
                assert!(sender.try_wait().unwrap().is_none(), "it has ended too early");
                let begun = fs::read_dir(&spool).into_iter().flatten().flatten().next();
                let mut bytes = vec![0; MIB];
                // What is made to see whose it is goes at once.
                begun.and_then(|begun| fs::File::open(begun.path()).ok()).is_some_and(|file| {
                    file.read_exact_at(&mut bytes, from as u64).is_ok()
                        && bytes == self.content[from..to]
                })
            });
        }
    }

    fn has_file(&self, host: usize) -> bool {
        let path = self.test.0.join(host.to_string());
        names(&path) == ["file"] && fs::read(path.join("file")).unwrap() == self.content
    }

    fn end(sender: &mut Child) -> (Option<i32>, String, String) {
        let ended = watchdog::ended(sender);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    }
}

#[test]
fn a_receiver_that_is_killed_is_named_the_other_gets_everything_and_it_resumes_when_it_is_back() {
    let Some(mut net) = Net::new() else { return };
    let mut sender = net.sender();
    net.let_flow(&mut sender);
    let dead = net.receivers[0].address.clone();
    net.receivers[0].kill();
    let (code, out, err) = Net::end(&mut sender);
    assert!(code == Some(1) && err.contains(&dead), "{out}{err}");
    assert!(net.has_file(2) && !net.test.0.join("1/file").exists(), "{out}{err}");
    net.receivers[0] = net.receiver(1);
    let (code, out, err) = Net::end(&mut net.sender());
    assert!(code == Some(0) && net.has_file(1) && net.has_file(2), "{out}{err}");
}

#[test]
fn a_receiver_that_is_stopped_is_left_out_where_that_is_wanted_and_resumes_when_it_is_back() {
    let Some(net) = Net::new() else { return };
    let mut sender = net.sender_with(&["--give-up", "2"]);
    net.let_flow(&mut sender);
    net.receivers[0].signal("-STOP");
    let (code, out, err) = Net::end(&mut sender);
    let line = format!("multicast-cp: {}: has given no sign of life", net.receivers[0].address);
    assert!(code == Some(1) && err.contains(&line), "{out}{err}");
    assert!(net.has_file(2) && !net.test.0.join("1/file").exists(), "{out}{err}");
    net.receivers[0].signal("-CONT");
    let (code, out, err) = Net::end(&mut net.sender());
    assert!(code == Some(0) && net.has_file(1) && net.has_file(2), "{out}{err}");
}

/// Nobody is told but by silence.
#[test]
fn a_receiver_whose_cable_is_cut_is_named_and_the_other_gets_everything() {
    for give_up in [&["--give-up", "3"][..], &[]] {
        let Some(net) = Net::new() else { return };
        let mut sender = net.sender_with(give_up);
        net.let_flow(&mut sender);
        net.hosts.link(1).down();
        let (code, out, err) = Net::end(&mut sender);
        let cut = &net.receivers[0].address;
        let lost = |line: &str| line.starts_with(&format!("multicast-cp: {cut}: "));
        assert!(code == Some(1) && err.lines().any(lost), "{give_up:?}: {out}{err}");
        assert!(!err.contains(&net.receivers[1].address), "{give_up:?}: {out}{err}");
        assert!(net.has_file(2) && !net.test.0.join("1/file").exists(), "{out}{err}");
        net.hosts.link(1).up();
        let (code, out, err) = Net::end(&mut net.sender());
        assert!(code == Some(0) && net.has_file(1) && net.has_file(2), "{out}{err}");
    }
}

#[test]
fn a_sender_that_is_killed_leaves_nothing_that_the_next_one_does_not_take_up() {
    let Some(net) = Net::new() else { return };
    let mut sender = net.sender();
    net.let_flow(&mut sender);
    kill(&mut sender);
    assert!((1..3).all(|host| !net.test.0.join(format!("{host}/file")).exists()));
    let (code, out, err) = Net::end(&mut net.sender());
    assert!(code == Some(0) && net.has_file(1) && net.has_file(2), "{out}{err}");
}

fn kill(sender: &mut Child) {
    for child in watchdog::below(sender.id()) {
        signal("-KILL", child);
    }
    Net::end(sender);
}

/// The last one is a short one. A link of 200 Mbit/s takes three seconds for them.
fn three_parts() -> Vec<u8> {
    (0..72).flat_map(|block| bytes(8, block).repeat(MIB / 8)).collect()
}

/// Processes that are killed when this is dropped.
struct Killed(Vec<u32>);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.iter().filter(|it| !has_ended(it)).for_each(|it| signal("-KILL", *it));
    }
}

#[test]
fn a_sender_that_is_killed_in_the_middle_of_a_copy_leaves_no_receiver_that_it_has_started() {
    let Some(net) = Net::without_receivers("200mbit", three_parts()) else { return };
    let [_, first, second, ..] = net.hosts.keepers()[..] else { panic!("there are three") };
    // Runs a receiver on one of the hosts, in whose user namespace, where they have one, it is already.
    let script = format!(
        "keeper={first}; test $1 = 1 || keeper={second}; shift
        exec timeout -k 2 150 nsenter --target $keeper --net --mount -- \"$@\""
    );
    let start = format!("sh {}", net.test.file("start", script.as_bytes()));
    for (name, folders) in [("-TERM", ["1", "2"]), ("-KILL", ["3", "4"])] {
        let targets = [0, 1].map(|at| format!("{}:{}", at + 1, net.test.text(folders[at])));
        let mut command = net.hosts.host(0).command("timeout");
        command.args(["-k", "2", "150", CP, "--start", &start, "--program", CP]);
        command.arg(net.test.text("file")).args(targets);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut sender = command.spawn().unwrap();
        net.let_a_part_come(&mut sender, folders);
        let all = Killed(watchdog::below(sender.id()));
        let [own, receivers @ ..] = &all.0[..] else { panic!("there is a sender") };
        // Nothing of it comes before the sender has ended.
        receivers.iter().for_each(|it| signal("-STOP", *it));
        assert_eq!(receivers.len(), 4, "each is behind a watchdog");
        signal(name, *own);
        watchdog::until("the end of the sender", || has_ended(own));
        receivers.iter().for_each(|it| signal("-CONT", *it));
        let (code, out, err) = Net::end(&mut sender);
        assert!(code != Some(0), "{name}: {out}{err}");
        watchdog::until("the end of both receivers", || receivers.iter().all(has_ended));
        for folder in folders {
            let names = names(&net.test.0.join(folder));
            assert_eq!(names, [".multicast-cp"], "{name}: {out}{err}");
        }
    }
}

#[test]
fn a_kill_of_all_of_them_leaves_unfinished_files_in_one_place_and_the_next_copy_takes_them_up() {
    let Some(mut net) = Net::with("200mbit", three_parts()) else { return };
    let mut sender = net.sender();
    net.let_a_part_come(&mut sender, ["1", "2"]);
    kill(&mut sender);
    for host in 1..3 {
        net.receivers[host - 1].kill();
        let folder = net.test.0.join(host.to_string());
        assert_eq!(names(&folder), [".multicast-cp"]);
        assert_eq!(names(&folder.join(".multicast-cp")).len(), 1);
        net.receivers[host - 1] = net.receiver(host);
    }
    let (code, out, err) = Net::end(&mut net.sender());
    assert!(code == Some(0) && net.has_file(1) && net.has_file(2), "{out}{err}");
    let total: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert!(total["sent_bytes"].as_u64().unwrap() < 72 * MIB as u64, "{out}");
}

#[test]
fn a_disk_that_is_full_is_named_with_its_host() {
    let test = Folder::new();
    let (key, file) = (test.key("key"), test.file("file", &bytes(4 << 20, 6)));
    let (small, large) = (test.folder("small"), test.folder("large"));
    let script = "mount -t tmpfs -o size=1m none \"$1\" && exec \"$0\" --url tcp://127.0.0.1 --key-file \"$2\" --receive \"$1\"";
    let mut command = Command::new("timeout");
    command
        .args(["-k", "2", "150", "unshare", "--mount", "sh", "-c", script, CP])
        .arg(&small)
        .arg(&key);
    let full = Receiver::run(command);
    if full.address.is_empty() {
        return skip("no right to mount a small disk");
    }
    let other = Receiver::start(&large, &["--key-file", &key]);
    let said = send(&["--key-file", &key, &file, &full.address, &other.address]);
    assert_eq!(said.code, Some(1), "{}", said.all());
    assert!(
        said.err.contains(&format!(
            "{}: {}: the disk is too full: 4194304 bytes",
            full.address,
            small.display()
        )),
        "{}",
        said.err
    );
    assert_eq!(fs::read(large.join("file")).unwrap(), bytes(4 << 20, 6));
}
