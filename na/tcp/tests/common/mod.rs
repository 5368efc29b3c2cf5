//! What the tests share: a plugin with names, and a key.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};
use hg_na_tcp::TcpPlugin;

/// TCP with names: `tcp://name-NAME` listens on an address of the loopback network that only this
/// name has, since the suite cannot know which ports are free. With `key`, everything is encrypted.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) key: bool,
}

/// The port behind all names: below those that the kernel gives out.
const PORT: u16 = 29_417;

impl Plugin for Named {
    fn schemes(&self) -> &[&str] {
        &["tcp"]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        let url = match url.rest().strip_prefix("name-") {
            Some(name) => Address::new(&place_of(name))?,
            None => url.clone(),
        };
        let mut options = options.clone();
        if self.key {
            options = options.with("key-file", &key_file());
        }
        TcpPlugin.open(&url, &options)
    }
}

fn place_of(name: &str) -> String {
    // FNV-1a: spreads names that differ in their last digits over the whole network.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, ..] = hash.to_le_bytes();
    // Not 127.0.*: there the other tests listen.
    format!("tcp://127.{}.{b}.{}:{PORT}", a | 1, c.clamp(1, 254))
}

/// A file with a key: one for all tests of this build.
pub(crate) fn key_file() -> String {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path, sync::OnceLock};
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hg-tcp-test-key");
        let own = path.with_extension(std::process::id().to_string());
        let mut open = std::fs::OpenOptions::new();
        let file = open.write(true).create(true).truncate(true).mode(0o600).open(&own);
        let mut file = file.expect("a key file can be made");
        file.write_all("5a".repeat(32).as_bytes()).expect("a key can be written");
        // Other processes find it whole, whoever was the last to put it there.
        std::fs::rename(&own, &path).expect("a file can be renamed");
        path.to_str().expect("a path of UTF-8").to_owned()
    })
    .clone()
}
