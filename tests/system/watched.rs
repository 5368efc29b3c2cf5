//! What is said of a test that hangs.

use std::{
    io::Read as _,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    common::{Child, Watchdog, child::say},
    roles::{add, never},
};

/// A role: a test that never ends, for its peer does not answer.
pub(crate) fn hangs() {
    let (target, address) = Child::target("url=sm://");
    let origin = hg::open("sm://").expect("it opens");
    let peer = origin.lookup(&address).expect("the target's address");
    let answer = origin.call(add, &peer, (1, 2)).wait();
    assert_eq!(answer.expect("the target serves"), 3);
    say(&format!("{} {} {address}", origin.address(), target.pid()));
    let _watchdog = Watchdog::within(Duration::from_millis(500));
    let _ = origin.call(never, &peer, ()).wait();
}

#[test]
fn a_test_that_hangs_is_ended_and_told_by_its_stacks_its_engines_and_those_of_its_processes() {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let mut program = Command::new(std::env::current_exe().unwrap());
    let (mut errors, its_end) = std::io::pipe().unwrap();
    program.stderr(Stdio::from(its_end));
    let mut hangs = Child::start_by(program, "hangs", "", &[]);
    let words = hangs.hear();
    let words: Vec<&str> = words.split(' ').collect();
    let [origin, target_pid, target] = words[..] else { panic!("{words:?}") };
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.contains("takes longer than 500ms: aborting"), "{said}");
    for (address, calls) in [(origin, "1 calls"), (target, "0 calls")] {
        let engine = format!("context 0 at {address}: ");
        let line = said.lines().find(|line| line.starts_with(&engine)).expect(&said);
        assert!(line.contains(calls) && line.contains("0 transfers"), "{line}");
    }
    let sections: Vec<&str> = said.split("stacks of process ").collect();
    for pid in [&hangs.pid().to_string(), target_pid] {
        let begin = format!("{pid} (");
        let section = sections.iter().find(|section| section.starts_with(&begin)).expect(&said);
        assert!(section.contains("Thread "), "{said}");
    }
    assert!(hangs.hear_or_end().is_none());
}

#[test]
fn processes_that_are_looked_at_go_on() {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let (mut target, address) = Child::target("url=sm://");
    let origin = hg::open("sm://").unwrap();
    let peer = origin.lookup(&address).unwrap();
    let hangs = origin.call(never, &peer, ());
    let said = watchdog::report();
    let has_stacks = said.contains("watchdog::report");
    assert!(has_stacks || said.contains("gdb has to be installed, and allowed to look"), "{said}");
    assert_eq!(target.ask("kept"), "0");
    drop(hangs);
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}
