//! The address space of another process, by a descriptor: `/proc/PID/mem`.
//!
//! It names the memory and not the number: what is read by it is of the process for which it was opened, whatever
//! its number came to mean since; when that has ended, or executed another program, there is nothing to read. So
//! nobody needs to ask afterwards whose bytes they were, and a short read costs less than `process_vm_readv`, which
//! looks up number, memory and permission each time. Each page is copied twice, though: for short reads only.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
};

use super::process::ProcessWatch;

/// That of the process which is watched, to be read at its addresses; `None` where the system does not give it.
///
/// Its number is the one that it has in `/proc`, which may be mounted for another namespace than this
/// process's. It is alive after the descriptor was opened: the number was its own until then.
pub(crate) fn of(watch: &ProcessWatch) -> Option<File> {
    let pidfd = watch.fd()?.as_raw_fd();
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    let number = about.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    let number: u32 = number.trim().parse().ok()?;
    let space = File::open(format!("/proc/{number}/mem")).ok()?;
    watch.alive().then_some(space)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::fs::FileExt as _,
        process::{Child, Command, Stdio},
    };

    use super::*;

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

    #[test]
    fn it_ends_with_its_process() {
        let mut child = child("sleep", "60");
        let watch = ProcessWatch::of_child(&child);
        let space = of(&watch).unwrap();
        assert!(readable(&space, child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(space.read_at(&mut [0; 8], 4096).unwrap(), 0, "nothing is left of it");
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
        let watch = ProcessWatch::of_child(&child);
        let space = of(&watch).unwrap();
        assert!(readable(&space, child.id()));
        input.write_all(b"go\n").unwrap();
        output.read_exact(&mut word).unwrap();
        assert_eq!(word, *b"2\n");
        assert!(watch.alive() && !readable(&space, child.id()));
        drop(input);
        child.wait().unwrap();
    }
}
