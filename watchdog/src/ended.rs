//! Runs a program to its end, and fires when that does not come.

use std::{
    io::Read,
    process::{Child, Output},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Instant,
};

/// What came of a process whose output and errors are piped. Fires when it does not end: what it has said is shown.
///
/// # Panics
/// A stream is not piped, or somebody else has waited for the process.
#[must_use]
pub fn ended(process: &mut Child) -> Output {
    let (sender, pieces) = channel();
    read(process.stdout.take().expect("piped"), |said| &mut said.stdout, sender.clone());
    read(process.stderr.take().expect("piped"), |said| &mut said.stderr, sender);
    let mut said = Said::default();
    hear(&pieces, &mut said, process.id());
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

fn hear(pieces: &Receiver<Piece>, said: &mut Said, process: u32) {
    let begin = Instant::now();
    loop {
        match pieces.recv_timeout(crate::LIMIT.saturating_sub(begin.elapsed())) {
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
