//! Finding and loading the library.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    sync::OnceLock,
};

use crate::{API, FabricAttr, FidFabric, Info, signals::Kept};

/// Names a library file to be loaded instead of `libfabric.so.1`.
pub const PATH_VARIABLE: &str = "HG_LIBFABRIC";
/// What is loaded otherwise, from where the system's loader looks.
const DEFAULT: &str = "libfabric.so.1";

/// The functions of libfabric that are looked up by name. Never unloaded.
#[derive(Debug)]
#[expect(missing_docs, reason = "functions as in their manual pages, without `fi_`")]
pub struct Library {
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub freeinfo: unsafe extern "C" fn(*mut Info),
    pub dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

/// Why there is no libfabric, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// It was not found, or could not be loaded.
    NotFound {
        /// What was looked for.
        name: String,
        /// What the loader said.
        why: String,
    },
    /// It lacks a function: something else bears its name.
    NoFunction {
        /// What was loaded.
        name: String,
        /// The function.
        function: &'static str,
    },
    /// It is older than [`API`].
    TooOld {
        /// Its version.
        found: (u32, u32),
    },
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name, why } if name == DEFAULT => write!(
                out,
                "libfabric is not installed: {name} was not found ({why}); on Debian: apt-get install \
                 libfabric1, elsewhere name the file in {PATH_VARIABLE}"
            ),
            Self::NotFound { name, why } => write!(
                out,
                "{PATH_VARIABLE} names {name}, which cannot be loaded ({why}): correct it, or leave it out to \
                 use the installed libfabric (on Debian: apt-get install libfabric1)"
            ),
            Self::NoFunction { name, function } => {
                write!(out, "{name} is no libfabric: it has no function {function}")
            }
            Self::TooOld { found: (major, minor) } => write!(
                out,
                "libfabric {major}.{minor} is too old: {}.{} or later is needed",
                API >> 16,
                API & 0xFFFF
            ),
        }
    }
}

/// The library, loaded at the first call.
///
/// # Errors
/// What is missing. A failure is final for this process.
pub fn library() -> Result<&'static Library, Missing> {
    static LOADED: OnceLock<Result<Library, Missing>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, Missing> {
    let named = std::env::var(PATH_VARIABLE).ok().filter(|name| !name.is_empty());
    load_from(named.as_deref().unwrap_or(DEFAULT))
}

fn load_from(name: &str) -> Result<Library, Missing> {
    let signals = Kept::now();
    // SAFETY:
    // - the initialisers of the file that the user named, or of the system's libfabric, run now: that is what
    //   loading it means; libfabric's only register its providers.
    let file = unsafe { libloading::Library::new(name) }
        .map_err(|why| Missing::NotFound { name: name.to_owned(), why: why.to_string() })?;
    drop(signals);
    // Providers leave threads behind: it stays until the process ends.
    let file: &'static libloading::Library = Box::leak(Box::new(file));
    let version: unsafe extern "C" fn() -> u32 = function(file, name, "fi_version")?;
    // SAFETY:
    // - `fi_version(3)` takes nothing and changes nothing.
    let version = unsafe { version() };
    if version < API {
        return Err(Missing::TooOld { found: (version >> 16, version & 0xFFFF) });
    }
    Ok(Library {
        getinfo: function(file, name, "fi_getinfo")?,
        freeinfo: function(file, name, "fi_freeinfo")?,
        dupinfo: function(file, name, "fi_dupinfo")?,
        fabric: function(file, name, "fi_fabric")?,
        strerror: function(file, name, "fi_strerror")?,
        version,
    })
}

/// Looks one function up; its type is as in its manual page, at each call above.
fn function<F: Copy>(
    file: &'static libloading::Library,
    name: &str,
    function: &'static str,
) -> Result<F, Missing> {
    // SAFETY:
    // - the symbol is a function of the type that its manual page gives: stated where this is called.
    let found = unsafe { file.get::<F>(function.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| Missing::NoFunction { name: name.to_owned(), function })
}

impl Library {
    /// Major and minor number (`fi_version`).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xFFFF)
    }

    /// What an error number means (`fi_strerror`), of either sign.
    #[must_use]
    pub fn strerror(&self, number: i32) -> String {
        // SAFETY:
        // - `fi_strerror(3)` takes any number.
        let text = unsafe { (self.strerror)(number.saturating_abs()) };
        if text.is_null() {
            return format!("error {number}");
        }
        // SAFETY:
        // - a constant string, or a buffer of the calling thread's, ended by a zero.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_install() {
        let missing = load_from("libfabric-that-is-nowhere.so.1").unwrap_err();
        let text = missing.to_string();
        assert!(matches!(missing, Missing::NotFound { .. }));
        assert!(text.contains("libfabric-that-is-nowhere.so.1"), "{text}");
        assert!(text.contains("apt-get install libfabric1"), "{text}");
    }

    #[test]
    fn another_library_is_told_from_libfabric() {
        let missing = load_from("libc.so.6").unwrap_err();
        assert_eq!(missing.to_string(), "libc.so.6 is no libfabric: it has no function fi_version");
    }

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        let text = Missing::TooOld { found: (1, 11) }.to_string();
        assert_eq!(text, "libfabric 1.11 is too old: 1.17 or later is needed");
    }
}
