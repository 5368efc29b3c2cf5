//! Finding and loading the library.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    fmt,
    sync::OnceLock,
};

use crate::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Gid, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, Srq, SrqInitAttr,
};

/// Names a library file to be loaded instead of `libibverbs.so.1`.
pub const PATH_VARIABLE: &str = "HG_LIBIBVERBS";
/// What is loaded otherwise, from where the system's loader looks.
const DEFAULT: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that are looked up by name. Never unloaded. A test may fill it with functions of its own.
        #[derive(Debug, Clone, Copy)]
        #[expect(missing_docs, reason = "functions as in their manual pages, without `ibv_`")]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(file: &'static libloading::Library, name: &str) -> Result<Self, Missing> {
                Ok(Self { $($name: function(file, name, concat!("ibv_", stringify!($name)))?,)* })
            }
        }
    };
}

functions! {
    get_device_list: fn(*mut c_int) -> *mut *mut Device;
    free_device_list: fn(*mut *mut Device);
    get_device_name: fn(*mut Device) -> *const c_char;
    open_device: fn(*mut Device) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd: fn(*mut Context) -> *mut Pd;
    dealloc_pd: fn(*mut Pd) -> c_int;
    reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: fn(*mut Mr) -> c_int;
    create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    resize_cq: fn(*mut Cq, c_int) -> c_int;
    destroy_cq: fn(*mut Cq) -> c_int;
    get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut Cq, c_uint);
    get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: fn(*mut AsyncEvent);
    create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq: fn(*mut Srq) -> c_int;
    create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: fn(*mut Qp) -> c_int;
}

/// Why there is no libibverbs, and what to do about it.
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
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name, why } if name == DEFAULT => write!(
                out,
                "libibverbs is not installed: {name} was not found ({why}); on Debian: apt-get install \
                 libibverbs1 ibverbs-providers, elsewhere name the file in {PATH_VARIABLE}"
            ),
            Self::NotFound { name, why } => write!(
                out,
                "{PATH_VARIABLE} names {name}, which cannot be loaded ({why}): correct it, or leave it out to \
                 use the installed libibverbs (on Debian: apt-get install libibverbs1 ibverbs-providers)"
            ),
            Self::NoFunction { name, function } => {
                write!(out, "{name} is no libibverbs: it has no function {function}")
            }
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
    // SAFETY:
    // - initialisers of the file that the user named, or of the system's libibverbs, run now: that is what loading it means.
    let file = unsafe { libloading::Library::new(name) }
        .map_err(|why| Missing::NotFound { name: name.to_owned(), why: why.to_string() })?;
    // Drivers are loaded by it and stay: so does it until the process ends.
    Library::find(Box::leak(Box::new(file)), name)
}

/// Looks one function up; its type is as in its manual page, at each line above.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_install() {
        let missing = load_from("libibverbs-that-is-nowhere.so.1").unwrap_err();
        let text = missing.to_string();
        assert!(matches!(missing, Missing::NotFound { .. }));
        assert!(text.contains("libibverbs-that-is-nowhere.so.1"), "{text}");
        assert!(text.contains("apt-get install libibverbs1"), "{text}");
    }

    #[test]
    fn another_library_is_told_from_libibverbs() {
        let missing = load_from("libc.so.6").unwrap_err();
        let text = "libc.so.6 is no libibverbs: it has no function ibv_get_device_list";
        assert_eq!(missing.to_string(), text);
    }
}
