//! Runs a program to its end, and fires when that does not come.

use std::{
    io::Read,
    process::{Child, Output},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::wait::{Id, WaitPidFlag, waitid},
    unistd::Pid,
};

/// What came of a process whose output and errors are piped. Fires when it does not end: what it has said is shown.
///
/// # Panics
/// A stream is not piped, or somebody else has waited for the process.
#[must_use]
pub fn ended(process: &mut Child) -> Output {
    ended_within(process, crate::LIMIT)
}

fn ended_within(process: &mut Child, limit: Duration) -> Output {
    let (sender, pieces) = channel();
    read(process.stdout.take().expect("piped"), |said| &mut said.stdout, sender.clone());
    read(process.stderr.take().expect("piped"), |said| &mut said.stderr, sender.clone());
    // It may close both and live on.
    let pid = Pid::from_raw(process.id().try_into().expect("a process number"));
    thread::spawn(move || {
        let _ended = sender;
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
    });
    let mut said = Said::default();
    hear(&pieces, &mut said, (process.id(), limit));
    let status = process.wait().expect("nobody else waits for it");
    Output { status, stdout: said.stdout, stderr: said.stderr }
}

#[derive(Default)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A piece of a stream, and which one.
type Piece = (fn(&mut Said) -> &mut Vec<u8>, Vec<u8>);

fn read(
    mut from: impl Read + Send + 'static,
    to: fn(&mut Said) -> &mut Vec<u8>,
    sender: Sender<Piece>,
) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            // Who listens ends only with the process.
            let _ = sender.send((to, buffer[..len].to_vec()));
        }
    });
}

fn hear(pieces: &Receiver<Piece>, said: &mut Said, (process, limit): (u32, Duration)) {
    let begin = Instant::now();
    loop {
        match pieces.recv_timeout(limit.saturating_sub(begin.elapsed())) {
            Ok((stream, bytes)) => stream(said).extend(bytes),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let name = crate::processes::name(process);
                crate::say(&format!("{name} does not end: aborting\n{}", crate::report()));
                // The states that were asked for are among it.
                pieces.try_iter().for_each(|(stream, bytes)| stream(said).extend(bytes));
                let text = [&said.stdout[..], &said.stderr].map(String::from_utf8_lossy);
                crate::say(&format!("it has said:\n{}{}\n", text[0], text[1]));
                crate::end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt as _,
        process::{Command, Stdio},
    };

    use super::*;

    const NAME: &str = "ended::tests::a_process_that_closes_its_output_and_lives_on_is_not_waited_for_without_a_bound";
    const INSIDE: &str = "WATCHDOG_TEST_INSIDE";

    #[test]
    fn a_process_that_closes_its_output_and_lives_on_is_not_waited_for_without_a_bound() {
        let piped = |command: &mut Command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        if env::var_os(INSIDE).is_some() {
            let script = "exec sleep 1000 >&- 2>&-";
            let mut silent = piped(Command::new("sh").args(["-c", script]));
            let _ = ended_within(&mut silent, Duration::from_millis(50));
            return;
        }
        let mut inside = Command::new(env::current_exe().expect("this program"));
        let mut inside = piped(inside.args(["--exact", NAME, "--nocapture"]).env(INSIDE, ""));
        let output = ended(&mut inside);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("does not end: aborting"), "{said}");
        assert_eq!(output.status.signal(), Some(6), "{said}");
    }
}
