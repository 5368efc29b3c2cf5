//! Whole systems: real processes that call each other, and what goes wrong with them.
//!
//! | module | what it shows |
//! |---|---|
//! | `bulk` | transfers: ranges, refusals, early endings, views |
//! | `calls` | every kind of call, of waiting, of progress; names; payloads of all sizes |
//! | `contexts` | engines of several contexts behind one address, over each transport |
//! | `callers` | what a handler is told of who calls |
//! | `large` | arguments and results beyond one message, over each transport |
//! | `away` | memory that is not there when it is to be read |
//! | `denied` | processes that the system keeps out of each other's memory (seccomp) |
//! | `death` | processes that are killed, and what is left of them |
//! | `input` | messages that no honest peer sends, over an honest transport |
//! | `signatures` | declarations of one name that differ |
//! | `strangers` | peers that break the transport itself: greetings, descriptors, shared memory, users |
//! | `pressure` | full rings, stopped targets, deadlines, what waiting costs |
//! | `crowds` | a thousand peers, thousands of connections, no descriptors left |
//! | `drains` | a server that drains before it is started again: each call runs once |
//! | `restarts` | a server that is started again and again while others call it |
//! | `routing` | `tcp://` inside a node: shared memory chosen by itself, and sockets where it is refused |
//! | `fork` | a process that forks with an open engine |
//! | `fail_points` | death at each step of the protocol (feature `fail-points`) |
//! | `watched` | what is said of a test that hangs |
//!
//! Processes are this test binary again, in a role: `common::child`, `roles`. What is measured (memory,
//! descriptors, processor time) is measured at such a process, never at the one that runs the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests end the test, too")]

mod away;
mod bulk;
mod callers;
mod calls;
mod common;
mod contexts;
mod crowds;
mod death;
mod denied;
mod drains;
#[cfg(feature = "fail-points")]
mod fail_points;
mod fork;
mod input;
mod large;
mod pressure;
mod restarts;
mod roles;
#[cfg(feature = "sm-routing")]
mod routing;
mod signatures;
mod strangers;
mod transports;
mod watched;
