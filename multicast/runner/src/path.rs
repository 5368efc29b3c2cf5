//! Paths that stay below the folder that they are looked up in, whoever wrote them.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path},
};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// The folder of files that are not whole yet: the only name that no path may begin with.
pub const SPOOL: &str = ".multicast-cp";

/// A path of at least one name, relative to some folder. No name is `..`, and none is absolute: by its spelling it leads
/// nowhere else. Links are another matter, and [`Folder`](crate::folder::Folder)'s.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "ByteBuf", into = "ByteBuf")]
pub struct Below(Vec<u8>);

/// Why something is no such path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotBelow {
    /// It has no name at all.
    #[error("is empty")]
    Empty,
    /// It begins at the root.
    #[error("is absolute")]
    Absolute,
    /// One of its names is `..`, or it is spelled with `.` or with an empty name.
    #[error("has a name that is empty, `.` or `..`")]
    Dots,
    /// No system takes it.
    #[error("has a name of over {NAME_MAX} bytes, or over {PATH_MAX} in all")]
    TooLong,
    /// No system takes it.
    #[error("has a zero byte in it")]
    Zero,
    /// The folder for what is not whole yet has this name.
    #[error("begins with `{}`, which is where files lie that are not whole yet", SPOOL)]
    Reserved,
}

impl Below {
    /// These bytes, if they are one: in exactly this spelling, names separated by one `/` each.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, NotBelow> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(NotBelow::Empty);
        }
        if bytes[0] == b'/' {
            return Err(NotBelow::Absolute);
        }
        if bytes.len() > PATH_MAX {
            return Err(NotBelow::TooLong);
        }
        if bytes.contains(&0) {
            return Err(NotBelow::Zero);
        }
        for (number, name) in bytes.split(|byte| *byte == b'/').enumerate() {
            if matches!(name, b"" | b"." | b"..") {
                return Err(NotBelow::Dots);
            }
            if name.len() > NAME_MAX {
                return Err(NotBelow::TooLong);
            }
            if number == 0 && name == SPOOL.as_bytes() {
                return Err(NotBelow::Reserved);
            }
        }
        Ok(Self(bytes))
    }

    /// What somebody has written, who may add `.` and slashes; `None`: the folder itself.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_user(path: &Path) -> Result<Option<Self>, NotBelow> {
        let mut bytes = Vec::new();
        for component in path.components() {
            let name = match component {
                Component::Normal(name) => name.as_bytes(),
                Component::CurDir => continue,
                Component::ParentDir => return Err(NotBelow::Dots),
                Component::RootDir | Component::Prefix(_) => return Err(NotBelow::Absolute),
            };
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            bytes.extend_from_slice(name);
        }
        if bytes.is_empty() { Ok(None) } else { Self::new(bytes).map(Some) }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For the system.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Its last name.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        let last = self.0.rsplit(|byte| *byte == b'/').next();
        OsStr::from_bytes(last.expect("a split has at least one part"))
    }

    /// What holds it; `None`: the folder itself.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let slash = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(Self(self.0[..slash].to_vec()))
    }

    /// This path within `folder`.
    ///
    /// # Errors
    /// Both together are too long, or reserved.
    pub fn within(&self, folder: Option<&Self>) -> Result<Self, NotBelow> {
        let Some(folder) = folder else { return Ok(self.clone()) };
        Self::new([&folder.0[..], b"/", &self.0[..]].concat())
    }
}

impl TryFrom<ByteBuf> for Below {
    type Error = NotBelow;

    fn try_from(bytes: ByteBuf) -> Result<Self, NotBelow> {
        Self::new(bytes.into_vec())
    }
}

impl From<Below> for ByteBuf {
    fn from(path: Below) -> Self {
        Self::from(path.0)
    }
}

impl fmt::Display for Below {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.as_path().display())
    }
}

impl fmt::Debug for Below {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_path(), out)
    }
}

/// Bytes of a name, and of all of a path, as Linux has them.
pub const NAME_MAX: usize = 255;
/// See [`NAME_MAX`].
pub const PATH_MAX: usize = 4095;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_leads_out_by_its_spelling_is_refused_with_its_reason() {
        let long = "x".repeat(NAME_MAX + 1);
        let deep = "ab/".repeat(PATH_MAX / 3) + "abc";
        for (path, why) in [
            ("", NotBelow::Empty),
            ("/etc/passwd", NotBelow::Absolute),
            ("..", NotBelow::Dots),
            ("a/../../b", NotBelow::Dots),
            ("a/..", NotBelow::Dots),
            ("./a", NotBelow::Dots),
            ("a//b", NotBelow::Dots),
            ("a/", NotBelow::Dots),
            ("a\0b", NotBelow::Zero),
            (&long, NotBelow::TooLong),
            (&deep, NotBelow::TooLong),
            (".multicast-cp/a", NotBelow::Reserved),
        ] {
            assert_eq!(Below::new(path), Err(why), "{path}");
        }
        assert_eq!(
            Below::new("a/.multicast-cp").map(|it| it.to_string()).unwrap(),
            "a/.multicast-cp"
        );
    }

    #[test]
    fn a_user_may_write_more_than_is_needed_but_no_way_out() {
        let of = |text: &str| Below::of_user(Path::new(text));
        assert_eq!(of("./a//b/."), Ok(Some(Below::new("a/b").unwrap())));
        assert_eq!((of(""), of("./")), (Ok(None), Ok(None)));
        assert_eq!((of("/a"), of("a/../b")), (Err(NotBelow::Absolute), Err(NotBelow::Dots)));
    }

    proptest! {
        /// Against the standard library's opinion, for names of which many are dangerous.
        #[test]
        fn exactly_what_has_only_normal_names_is_taken(
            names in prop::collection::vec("|\\.|\\.\\.|\\.\\.\\.|[a-b]|\u{e9}| ", 1..6),
            is_absolute: bool,
        ) {
            let text = if is_absolute { "/" } else { "" }.to_owned() + &names.join("/");
            let naive = !text.is_empty()
                && Path::new(&text).components().all(|it| matches!(it, Component::Normal(_)))
                && Path::new(&text).components().count() == text.split('/').count();
            prop_assert_eq!(Below::new(text.clone()).is_ok(), naive, "{:?}", text);
        }

        #[test]
        fn no_bytes_make_a_path_that_leads_out(bytes in prop::collection::vec(prop_oneof![
            Just(b'/'), Just(b'.'), Just(0_u8), any::<u8>(),
        ], 0..40)) {
            if let Ok(path) = Below::new(bytes) {
                let mut depth = 0_i32;
                for component in path.as_path().components() {
                    prop_assert!(matches!(component, Component::Normal(_)));
                    depth += 1;
                }
                prop_assert!(depth > 0 && !path.as_path().has_root());
                let again = path.parent().map_or_else(
                    || path.clone(),
                    |parent| Below::new(path.name().as_bytes()).unwrap().within(Some(&parent)).unwrap(),
                );
                prop_assert_eq!(again, path);
            }
        }
    }
}
