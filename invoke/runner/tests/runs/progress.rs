//! What is said while a run goes on.

use std::{
    fs::File,
    io::{ErrorKind, Read as _},
};

use nix::pty::openpty;

use crate::{
    RUNNER,
    common::{command, run},
};

/// What a process says to a terminal, until nobody has it open any more.
fn read_all(mut terminal: File) -> String {
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match terminal.read(&mut part) {
            Ok(0) => break,
            Ok(len) => said.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // How the end of a terminal is told.
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_bar_says_on_a_terminal_how_far_a_run_is_and_nowhere_else() {
    for given in ["--count 200000", "--duration 0.3"] {
        let given: Vec<&str> = ["--local", "2"].into_iter().chain(given.split(' ')).collect();
        let terminal = openpty(None, None).unwrap();
        let mut command = command(RUNNER, &given);
        command.stderr(terminal.slave).stdout(std::process::Stdio::null());
        let mut process = command.spawn().unwrap();
        drop(command);
        let said = read_all(terminal.master.into());
        assert!(process.wait().unwrap().success(), "{said}");
        let bars: Vec<&str> = said.split('\r').filter(|it| it.starts_with('[')).collect();
        assert!(bars.len() > 1, "again and again: {said:?}");
        assert!(bars.iter().all(|it| it.contains(" %, rank 0 runs ")), "{said:?}");
        let (first, last) = (bars[0], bars[bars.len() - 1]);
        assert!(!first.contains("100 %") && last.contains("100 %"), "{first:?} {last:?}");

        let outcome = run(RUNNER, &given, &[]);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{}", outcome.all());
        assert!(!outcome.out.contains('%'), "{}", outcome.out);
    }
}
