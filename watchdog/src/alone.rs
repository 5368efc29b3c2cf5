//! A test in a process of its own.

use std::{
    env,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

/// Runs what the calling test does in a process of its own, whose limits, memory and descriptors are nobody else's: the test's own program is started for this
/// test alone, and calls this again. Those of one program run one after the other. It takes as long as it takes: a test that may block starts a
/// [`Watchdog`](crate::Watchdog) in there.
///
/// # Panics
/// The test has failed there, and what it has said is told; or this thread does not have its name. With `--test-threads=1` a test runs in the
/// thread `main`: no test has that name, so none passes there.
pub fn alone(test: impl FnOnce()) {
    if env::var_os(ALONE).is_some() {
        return test();
    }
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = thread::current().name().expect("a test's thread has its name").to_owned();
    let mut process = Command::new(env::current_exe().expect("this program"));
    process.args(["--exact", &name, "--nocapture"]).env(ALONE, "1");
    let ended = process.output().expect("it starts");
    let said = [&ended.stdout, &ended.stderr].map(|it| String::from_utf8_lossy(it));
    let has_passed = ended.status.success() && said[0].contains("1 passed");
    assert!(has_passed, "{name}: {}\n{}{}", ended.status, said[0], said[1]);
}

/// Set in a process that runs one test only.
const ALONE: &str = "HG_TEST_ALONE";

#[cfg(test)]
mod tests {
    use std::{
        panic::catch_unwind,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[test]
    fn what_runs_alone_runs_in_another_process() {
        static HAS_RUN: AtomicBool = AtomicBool::new(false);
        alone(|| HAS_RUN.store(true, Ordering::SeqCst));
        assert_eq!(HAS_RUN.load(Ordering::SeqCst), env::var_os(ALONE).is_some());
    }

    #[test]
    fn what_fails_alone_fails() {
        let fails = || alone(|| panic!("it fails in there"));
        if env::var_os(ALONE).is_some() {
            return fails();
        }
        let failed = catch_unwind(fails).expect_err("it was started, and has failed");
        let said = failed.downcast_ref::<String>().expect("a message");
        assert!(said.contains("what_fails_alone_fails") && said.contains("it fails in there"));
    }
}
