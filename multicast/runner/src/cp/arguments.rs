//! What the program may be told.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use hg_multicast_copy::{
    offer::{BLOCK_MAX, BLOCK_MIN},
    path::Below,
};

/// Copies files to many hosts at once: each host passes on what it gets while more is coming, so that many take about as long as one.
#[derive(Debug, clap::Parser)]
#[command(name = "multicast-cp", version, after_help = AFTER, override_usage = USAGE)]
pub(crate) struct Arguments {
    /// Files, then targets: HOST:FOLDER, or tcp://ADDRESS/FOLDER of a receiver that was started by hand.
    #[arg(
        value_name = "FILE... TARGET",
        required_unless_present = "receive",
        conflicts_with = "receive"
    )]
    words: Vec<OsString>,
    /// Receives into FOLDER, which has to be there, and nowhere else, until it is ended, with --key-file or --open; prints the address that
    /// senders are told.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) receive: Option<PathBuf>,
    /// The file with the key that sender and receivers have: 64 hexadecimal digits.
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    pub(crate) key_file: Option<PathBuf>,
    /// Receives, or sends, without a key: whoever reaches the receiver may write into its folder.
    #[arg(long)]
    pub(crate) open: bool,
    /// Folders, too, and all that is in them.
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// Replaces other files of the same name.
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Keeps times, and modes whatever the umask of the receivers is.
    #[arg(long, short)]
    pub(crate) preserve: bool,
    /// How a receiver is started on a host, whose name stands for {}, or else comes last: "srun -N1 -n1 -w {}".
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(crate) start: String,
    /// This program on the hosts.
    #[arg(long, value_name = "PATH", default_value = "multicast-cp")]
    pub(crate) program: String,
    /// The transport: tcp://, or tcp://ADDRESS of the interface to use here.
    #[arg(long, default_value = "tcp://")]
    pub(crate) url: String,
    /// A setting of the transport, here and at receivers that are started: interface=ib0, subnet=10.0.0.0/8.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) setting: Vec<String>,
    /// Bytes of a block.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(i64::from(BLOCK_MIN)..=i64::from(BLOCK_MAX)))]
    pub(crate) block_size: u32,
    /// Leaves out a host that gives no sign of life for so long, so that the others go on; without it they wait for it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) give_up: Option<u32>,
    /// Prints one JSON object a host, and one for all of them last.
    #[arg(long)]
    pub(crate) json: bool,
    /// Says nothing while it copies.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// A place that is copied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A receiver is to be started on this host, for this folder.
    Host { host: String, folder: String },
    /// One runs at this address; below its folder.
    Address { address: String, folder: Option<Below> },
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Host { host: name, .. } | Self::Address { address: name, .. } => name,
        })
    }
}

impl Target {
    /// Whether both are one receiver.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address { address, .. }, Self::Address { address: other, .. }) => {
                address == other
            }
            (this, other) => this == other,
        }
    }
}

impl Arguments {
    /// What is copied, and where to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn files_and_targets(&self) -> Result<(Vec<PathBuf>, Vec<Target>), String> {
        let first = self.words.iter().position(|word| is_target(word)).unwrap_or(self.words.len());
        let (files, words) = self.words.split_at(first);
        if words.is_empty() {
            return Err("no target is given: HOST:FOLDER, or tcp://ADDRESS/FOLDER".to_owned());
        }
        if files.is_empty() {
            let why = "no file is given; one with a colon in its name is written ./NAME";
            return Err(why.to_owned());
        }
        let targets = words.iter().map(|word| target(word)).collect::<Result<Vec<_>, _>>()?;
        let is_twice =
            |at: &usize| targets[..*at].iter().any(|before| before.is_same(&targets[*at]));
        if let Some(at) = (0..targets.len()).find(is_twice) {
            let word = words[at].display();
            return Err(format!("`{word}`: a receiver takes a copy once, into one folder"));
        }
        Ok((files.iter().map(PathBuf::from).collect(), targets))
    }

    /// The settings of the transport.
    ///
    /// # Errors
    /// One has no value, or characters that a shell would read.
    pub(crate) fn settings(&self) -> Result<Vec<(&str, &str)>, String> {
        let pair = |setting: &'_ String| {
            let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.,:/=[]".contains(it);
            if !setting.chars().all(is_plain) {
                return Err(format!("--setting: `{setting}` has a character that no setting has"));
            }
            Ok(())
        };
        self.setting.iter().try_for_each(pair)?;
        let split = |setting: &'_ str| {
            setting.split_once('=').map(|(name, value)| (name.len(), value.len()))
        };
        self.setting
            .iter()
            .map(|setting| match split(setting) {
                Some((name, _)) => Ok((&setting[..name], &setting[name + 1..])),
                None => Err(format!("--setting: `{setting}` is not NAME=VALUE")),
            })
            .collect()
    }
}

fn is_target(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    if bytes.starts_with(SCHEME.as_bytes()) {
        return true;
    }
    let colon = bytes.iter().position(|byte| *byte == b':');
    let slash = bytes.iter().position(|byte| *byte == b'/');
    colon.is_some_and(|colon| colon > 0 && slash.is_none_or(|slash| colon < slash))
}

fn target(word: &OsStr) -> Result<Target, String> {
    if !is_target(word) {
        return Err(format!(
            "`{}` comes after a target and is none: files come first",
            word.display()
        ));
    }
    let text = word.to_str().ok_or_else(|| format!("`{}` is no text", word.display()))?;
    if let Some(rest) = text.strip_prefix(SCHEME) {
        let (host, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let folder =
            Below::of_user(Path::new(folder)).map_err(|why| format!("{text}: the folder {why}"))?;
        return Ok(Target::Address { address: format!("{SCHEME}{host}"), folder });
    }
    let colon = match text.strip_prefix('[') {
        Some(rest) => rest.find("]:").map(|at| at + 2),
        None => text.find(':'),
    };
    let colon = colon.ok_or_else(|| format!("`{text}` is no target: [ADDRESS]:FOLDER"))?;
    let host = text[..colon].trim_start_matches('[').trim_end_matches(']');
    if host.starts_with('-') || host.is_empty() {
        return Err(format!("`{text}`: there is no host of this name"));
    }
    let folder = &text[colon + 1..];
    if folder.contains('\n') {
        return Err(format!("`{text}`: a folder's name has no end of line"));
    }
    let folder = if folder.is_empty() { "." } else { folder };
    Ok(Target::Host { host: host.to_owned(), folder: folder.to_owned() })
}

const SCHEME: &str = "tcp://";
const USAGE: &str = "\
multicast-cp [OPTIONS] FILE... TARGET...
       multicast-cp --receive FOLDER --key-file FILE";
const AFTER: &str = "\
A target's FOLDER is always a folder, made where it is not there; that of --receive is made before. What is there already is not sent again, and an interrupted copy
goes on where it was when the same command is given again. Blocks and files are summed up at both ends; a file gets its name when it is
whole. Links inside folders are copied as links.

Exit status: 0 if every host has everything, 1 if not, 2 if the command line is wrong.";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(words: &[&str]) -> Result<(Vec<PathBuf>, Vec<Target>), String> {
        let arguments = Arguments::try_parse_from([&["multicast-cp"], words].concat()).unwrap();
        arguments.files_and_targets()
    }

    #[test]
    fn files_come_first_and_targets_have_a_colon_before_any_slash() {
        let (files, targets) = parse(&[
            "a",
            "./b:c",
            "/d:e",
            "me@host:",
            "host:x:y",
            "[::1]:/z",
            "tcp://10.0.0.1:99/m//n",
            "tcp://10.0.0.1:98",
            "tcp://10.0.0.1:97/./m/.",
        ])
        .unwrap();
        assert_eq!(files, ["a", "./b:c", "/d:e"].map(PathBuf::from));
        let host = |host: &str, folder: &str| Target::Host {
            host: host.to_owned(),
            folder: folder.to_owned(),
        };
        let address = |port, folder| {
            let address = format!("tcp://10.0.0.1:{port}");
            Target::Address { address, folder }
        };
        let expected = [
            host("me@host", "."),
            host("host", "x:y"),
            host("::1", "/z"),
            address(99, Some(Below::new("m/n").unwrap())),
            address(98, None),
            address(97, Some(Below::new("m").unwrap())),
        ];
        assert_eq!(targets, expected);
    }

    #[test]
    fn what_is_missing_or_leads_out_is_said() {
        for (words, said) in [
            (&["a"][..], "no target"),
            (&["host:"], "no file"),
            (&["a", "host:", "b"], "`b` comes after a target"),
            (&["a", "host:x", "host:x"], "`host:x`: a receiver takes a copy once"),
            (&["a", "tcp://1.2.3.4:5/x", "tcp://1.2.3.4:5/y"], "into one folder"),
            (&["a", "tcp://1.2.3.4:5/../x"], "`..`"),
            (&["a", "tcp://1.2.3.4:5/x/y/../z"], "`..`"),
            (&["a", "tcp://1.2.3.4:5//x"], "absolute"),
            (&["a", "tcp://1.2.3.4:5/./.."], "`..`"),
            (&["a", "-oProxyCommand=x:y"][..1], "no target"),
        ] {
            let why = parse(words).unwrap_err();
            assert!(why.contains(said), "{words:?}: {why}");
        }
        assert!(target(OsStr::new("-oProxyCommand=x:y")).unwrap_err().contains("no host"));
    }
}
