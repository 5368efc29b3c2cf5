//! A folder for a test, gone when dropped.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

pub(crate) struct TestFolder(pub(crate) PathBuf);

impl TestFolder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number has to be different.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("multicast-cp-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// What lies in it, hidden or not, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs this with no rights but those that owners and modes of files give: those of root are this thread's no more.
pub(crate) fn as_ordinary_user<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let as_told = || {
        set_capabilities(None, none).unwrap();
        run()
    };
    thread::scope(|scope| scope.spawn(as_told).join().unwrap())
}

/// Makes somebody else the owner; says that the test is skipped where it has no right to.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn give_away(path: &Path) -> bool {
    let is_given = chown(path, Some(65_534), None);
    if is_given.is_err() {
        let test = thread::current();
        eprintln!("SKIPPED: {}: only root can give files away", test.name().unwrap_or("a test"));
    }
    is_given.is_ok()
}
