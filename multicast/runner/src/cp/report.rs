//! What is printed at the end.

use std::io::{self, Write as _};

use serde::Serialize;

/// What came of a copy.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) hosts: Vec<OfHost>,
    pub(crate) files: u64,
    /// Of all files.
    pub(crate) bytes: u64,
    /// Bytes that the sender gave to the group.
    pub(crate) sent_bytes: u64,
    pub(crate) seconds: f64,
}

/// What came of one host.
#[derive(Debug, Serialize)]
pub(crate) struct OfHost {
    pub(crate) host: String,
    /// Why it has not everything.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Total {
    hosts: u64,
    failed: u64,
    files: u64,
    bytes: u64,
    sent_bytes: u64,
    seconds: f64,
}

impl Report {
    /// Whether every host has everything.
    pub(crate) fn is_well(&self) -> bool {
        self.hosts.iter().all(|host| host.error.is_none())
    }

    #[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let hosts = self.hosts.len() as u64;
        let failed = self.hosts.iter().filter(|host| host.error.is_some()).count() as u64;
        let Self { files, bytes, sent_bytes, seconds, .. } = *self;
        if json {
            for host in &self.hosts {
                writeln!(out, "{}", serde_json::to_string(host)?)?;
            }
            let total = Total { hosts, failed, files, bytes, sent_bytes, seconds };
            writeln!(out, "{}", serde_json::to_string(&total)?)?;
            return out.flush();
        }
        let (mb, sent, rate) =
            (bytes as f64 / 1e6, sent_bytes as f64 / 1e6, sent_bytes as f64 / 1e6 / seconds);
        writeln!(
            out,
            "{} of {hosts} hosts have {files} {} of {mb:.1} MB; {sent:.1} MB have travelled in {seconds:.2} s, {rate:.1} MB/s to each",
            hosts - failed,
            if files == 1 { "file" } else { "files" },
        )?;
        out.flush()
    }
}
