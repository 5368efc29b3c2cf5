//! The pre-shared key: 32 bytes, written as 64 hexadecimal digits in a file or the environment.
//!
//! `head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > key; chmod 600 key` makes one.

use std::{
    fmt,
    io::Read as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use hg_na::Error;
use nix::fcntl::OFlag;

use super::{KEY_ENV, KEY_FILE};
use crate::Reader;

/// Bytes of a key.
const KEY_LEN: usize = 32;
/// Longest key file that is looked at: the digits, and some white space around them.
const FILE_MAX: u64 = 256;

/// A pre-shared key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LEN]);

impl Key {
    /// Reads the key from where the settings say, if they do.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub fn read(file: Option<&str>, variable: Option<&str>) -> Result<Option<Self>, Error> {
        let (name, text) = match (file, variable) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Reader::bad(KEY_ENV, "the key comes from a file already"));
            }
            (Some(path), None) => (KEY_FILE, read_file(Path::new(path))?),
            (None, Some(variable)) => {
                let unset = || format!("the variable {variable} is not set");
                let text = std::env::var_os(variable);
                let text = text.ok_or_else(|| Reader::bad(KEY_ENV, &unset()))?;
                (KEY_ENV, text.into_string().unwrap_or_default())
            }
        };
        let key = parse(text.trim());
        let wrong = || {
            let why = "a key is 64 hexadecimal digits (32 random bytes), as `openssl rand -hex 32` prints them";
            Reader::bad(name, why)
        };
        key.map(|key| Some(Self(key))).ok_or_else(wrong)
    }

    /// One that was handed over by itself.
    ///
    /// # Errors
    /// None where this build can encrypt.
    pub fn given(key: &hg_na::Key) -> Result<Self, Error> {
        Ok(Self(key.0))
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key(..)")
    }
}

fn read_file(path: &Path) -> Result<String, Error> {
    let bad = |why: &str| Reader::bad(KEY_FILE, &format!("{} {why}", path.display()));
    let failed = |error: std::io::Error| bad(&format!("cannot be read: {error}"));
    // Without waiting for somebody to open the other end of a pipe.
    let mut open = std::fs::OpenOptions::new();
    let file = open.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(bad("is no file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(bad("can be read by others: chmod 600 it"));
    }
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn parse(text: &str) -> Option<[u8; KEY_LEN]> {
    if text.len() != 2 * KEY_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY_LEN];
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        let digits = "00ff".repeat(16);
        assert_eq!(parse(&digits).unwrap()[..2], [0, 255]);
        for bad in [&digits[1..], &format!("{digits}0"), &digits.replace("ff", "fg"), ""] {
            assert_eq!(parse(bad), None);
        }
        assert_eq!(format!("{:?}", Key([7; KEY_LEN])), "Key(..)");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("hg-key-{}", std::process::id()));
        std::fs::write(&path, "07".repeat(32) + "\n").unwrap();
        let name = path.to_str().unwrap().to_owned();
        let with_mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            Key::read(Some(&name), None)
        };
        let refused = with_mode(0o644).unwrap_err().to_string();
        let found = with_mode(0o600);
        std::fs::remove_file(&path).unwrap();
        assert!(refused.contains("chmod 600"), "{refused}");
        assert_eq!(found.unwrap(), Some(Key([7; KEY_LEN])));
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let refused = Key::read(None, Some("HG_NO_SUCH_VARIABLE")).unwrap_err();
        assert!(refused.to_string().contains("HG_NO_SUCH_VARIABLE"));
        assert!(Key::read(Some("a"), Some("b")).is_err());
        assert_eq!(Key::read(None, None).unwrap(), None);
    }
}
