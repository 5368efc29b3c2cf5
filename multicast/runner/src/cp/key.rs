//! The key without which nobody joins a copy nor feeds a receiver.

use std::{
    fs,
    io::{ErrorKind, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// 32 bytes that all hosts of a copy have. Never printed, but into the standard input of a receiver that is started.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) [u8; 32]);

impl Key {
    /// A new one.
    pub(crate) fn random() -> Result<Self, String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| format!("the system gives no random numbers: {error}"))?;
        Ok(Self(bytes))
    }

    /// From a file that nobody else may read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |why: &dyn std::fmt::Display| format!("--key-file: {}: {why}", path.display());
        let file = fs::File::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => failed(&format!(
                "is not there: `openssl rand -hex 32 > {0}; chmod 600 {0}` makes one, of which sender and receivers have copies",
                path.display()
            )),
            _ => failed(&error),
        })?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if !metadata.is_file() {
            return Err(failed(&"is no file"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(failed(&"can be read by others: chmod 600 it"));
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(|error| failed(&error))?;
        Self::parse(text.trim()).ok_or_else(|| {
            failed(&"holds no key, which is 64 hexadecimal digits, as `openssl rand -hex 32` prints them")
        })
    }

    /// From its digits.
    pub(crate) fn parse(digits: &str) -> Option<Self> {
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut key = [0; 32];
        for (byte, digits) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(key))
    }

    /// Its digits.
    pub(crate) fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

/// Longest file that is looked at: the digits, and white space around them.
const FILE_MAX: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_digits_and_nothing_else_is_one() {
        let key = Key::random().unwrap();
        assert_eq!(Key::parse(&key.digits()).unwrap().0, key.0);
        for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"\u{e9}".repeat(32)] {
            assert!(Key::parse(wrong).is_none(), "{wrong}");
        }
        assert!(!format!("{key:?}").contains(&key.digits()[..8]));
    }
}
