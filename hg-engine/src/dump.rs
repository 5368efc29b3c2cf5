//! What every engine of this process is doing: for whoever wants to know why nothing moves.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
};

use crate::port::Port;

/// The ports of all engines. A forked child may inherit it locked: nobody waits for this lock. It is none of this crate's own: all
/// simulations of a process share it, and are not to be told apart by it.
static ALL: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());

/// Longest description of one part, in bytes.
const PART_MAX: usize = 2000;

/// Ports of an engine that was opened.
pub(crate) fn add(ports: &[Arc<Port>]) {
    if let Ok(mut all) = ALL.try_lock() {
        all.retain(|port| port.strong_count() > 0);
        all.extend(ports.iter().map(Arc::downgrade));
    }
}

/// One paragraph for each context of each engine of this process. For tests that hang; waits for no lock.
#[doc(hidden)]
#[must_use]
pub fn dump_engines() -> String {
    let Ok(all) = ALL.try_lock() else { return "the list of engines is locked\n".to_owned() };
    let ports: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
    drop(all);
    let mut text = String::new();
    for port in ports {
        // Writing to a string does not fail.
        let _ = writeln!(text, "context {} at {}{}", port.index, port.address, describe(&port));
    }
    text
}

fn describe(port: &Port) -> String {
    let closed = port.is_closed.load(Ordering::Relaxed); // Only to be shown.
    let Some(state) = port.state.try_lock() else { return ": its state is locked".to_owned() };
    let role = if state.work.is_some() { "is free" } else { "is held" };
    let protocol = &state.protocol;
    let mut text = format!(
        "{}: the role {role}, {} wait for it; {} calls, {} transfers, {} bytes in the backlog, {} kept for peers",
        if closed { " (closed)" } else { "" },
        state.followers.len(),
        protocol.operations.calls(),
        protocol.operations.transfers(),
        protocol.backlog_bytes(),
        protocol.kept.len(),
    );
    for (name, part) in [
        ("serves", format!("{:?}", protocol.serves)),
        ("operations", format!("{:?}", protocol.operations)),
    ] {
        let end = part.floor_char_boundary(PART_MAX);
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {name}: {}", &part[..end]);
    }
    text
}
