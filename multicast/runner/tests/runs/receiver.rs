//! A receiver that runs, a folder for a test, and a key.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::CP;

/// A folder, with all that is in it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number has to be different.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("multicast-runs-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.text(name)
    }

    /// A file with a key, of which no two are alike.
    pub(crate) fn key(&self, name: &str) -> String {
        let mut file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.0.join(name))
            .unwrap();
        let digits = name.bytes().chain(std::iter::repeat(b'x')).take(32);
        file.write_all(digits.map(|byte| format!("{byte:02x}")).collect::<String>().as_bytes())
            .unwrap();
        self.text(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Names of what lies in a folder, hidden or not.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let names =
        fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Bytes that nobody guesses.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Whether a process is gone, or waits only for somebody to ask how it has ended.
pub(crate) fn has_ended(process: &u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    // Its first thread is a zombie before the others have closed what is open.
    let threads = || fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    stat.map_or(true, |stat| stat.contains(") Z ") && threads() < 2)
}

/// `-KILL`; one that has ended gets none.
pub(crate) fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args([name, &process.to_string()]).stderr(Stdio::null()).status();
}

/// Killed when dropped.
pub(crate) struct Receiver {
    process: Child,
    pub(crate) address: String,
}

impl Receiver {
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "2", "150", CP, "--url", "tcp://127.0.0.1", "--receive"])
            .arg(folder)
            .args(more);
        Self::run(command)
    }

    pub(crate) fn run(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { process, address: address.trim().to_owned() }
    }

    /// Sends a signal to the receiver itself, and not to the watchdog in front of it.
    pub(crate) fn signal(&self, name: &str) {
        for child in watchdog::below(self.process.id()) {
            signal(name, child);
        }
    }

    /// The receiver itself.
    pub(crate) fn process(&self) -> u32 {
        watchdog::below(self.process.id())[0]
    }

    /// SIGKILL, to both; afterwards the folder is anybody's.
    pub(crate) fn kill(&mut self) {
        let below = watchdog::below(self.process.id());
        self.signal("-KILL");
        let _ = self.process.kill();
        let _ = self.process.wait();
        watchdog::until("the end of a receiver", || below.iter().all(has_ended));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.kill();
    }
}
