//! The address space of another process, by a descriptor: `/proc/PID/mem`.
//!
//! It names the memory and not the number: what is moved by it is of the process for which it was opened, whatever
//! its number came to mean since; when that has ended, or executed another program, there is nothing to read or to
//! write. So nobody needs to ask whose bytes they are, and a short transfer costs less than by `process_vm_readv` and
//! `process_vm_writev`, which look up number, memory and permission each time. Each page is copied twice, though: for
//! short ones only.
//!
//! A write does not stop at private pages that are read-only there (proc_pid_mem(5)), as `process_vm_writev` does. None
//! gets here: memory with `WRITE` is writable as long as it is registered, and its table was asked. Where the system
//! refuses such writes, it is opened for reading.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
};

use super::process::ProcessWatch;

/// That of the process which is watched, to be read and written at its addresses; `None` where the system does not
/// give it.
///
/// Its number is the one that it has in `/proc`, which may be mounted for another namespace than this
/// process's. It is itself after the descriptor was opened: number and program were its own until then.
pub(crate) fn of(watch: &ProcessWatch) -> Option<File> {
    let pidfd = watch.fd()?.as_raw_fd();
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    let number = about.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    let number: u32 = number.trim().parse().ok()?;
    let path = format!("/proc/{number}/mem");
    let both = File::options().read(true).write(true).open(&path);
    let space = both.or_else(|_| File::open(path)).ok()?;
    watch.is_itself().then_some(space)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::fs::FileExt as _,
        process::{Child, Command, Stdio},
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use super::*;
    use crate::rendezvous::socket::Socket;

    fn child(program: &str, argument: &str) -> Child {
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Any byte of the process can be read.
    fn readable(space: &File, pid: u32) -> bool {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let first = maps.split('-').next().unwrap();
        let address = u64::from_str_radix(first, 16).unwrap();
        matches!(space.read_at(&mut [0; 8], address), Ok(8))
    }

    /// Where a process is, bytes that it has not mapped are an error.
    fn has_ended(space: &File) -> bool {
        let ends = [space.read_at(&mut [0; 8], 4096), space.write_at(&[0; 8], 4096)];
        ends.iter().all(|end| matches!(end, Ok(0)))
    }

    #[test]
    fn bytes_are_written_to_a_process_that_is_connected_and_to_no_other() {
        let (one, other) = Socket::pair().unwrap();
        let one = Arc::new(one);
        let watch = ProcessWatch::of(&one).unwrap();
        let space = of(&watch).unwrap();
        let bytes = [AtomicU64::new(0)];
        let word = 7_u64.to_ne_bytes();
        assert_eq!(space.write_at(&word, bytes.as_ptr().addr() as u64).unwrap(), word.len());
        assert_eq!(bytes[0].load(Ordering::Relaxed), 7);
        drop(other);
        assert!(of(&watch).is_none(), "it may have executed another program");
    }

    #[test]
    fn it_ends_with_its_process() {
        let mut child = child("sleep", "60");
        let sockets: [_; 2] = Socket::pair().unwrap().into();
        let sockets = sockets.map(Arc::new);
        let watch = ProcessWatch::of_child(&child, &sockets[0]);
        let space = of(&watch).unwrap();
        assert!(readable(&space, child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&space), "nothing is left of it");
        assert!(of(&watch).is_none());
    }

    #[test]
    fn it_ends_when_its_process_executes_another_program() {
        let script = "echo 1; read go; exec sh -c 'echo 2; read go'";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut word = [0; 2];
        output.read_exact(&mut word).unwrap();
        let sockets: [_; 2] = Socket::pair().unwrap().into();
        let sockets = sockets.map(Arc::new);
        let watch = ProcessWatch::of_child(&child, &sockets[0]);
        let space = of(&watch).unwrap();
        assert!(readable(&space, child.id()));
        input.write_all(b"go\n").unwrap();
        output.read_exact(&mut word).unwrap();
        assert_eq!(word, *b"2\n");
        assert!(watch.alive() && has_ended(&space));
        drop(input);
        child.wait().unwrap();
    }
}
