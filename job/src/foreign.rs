//! The only room with `unsafe`: functions of C libraries that are found at run time, and inherited
//! descriptors. Everything outside deals in safe types.

#![expect(unsafe_code, reason = "calls functions of C libraries; takes descriptors by number")]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    io,
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use libloading::os::unix::Library as Image;
use nix::{errno::Errno, libc};

/// Takes over a descriptor that this process was started with: a duplicate that no child inherits.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    with_inherited(fd, |fd| fd.try_clone_to_owned())
}

/// Lets `use_it` see a descriptor that this process was started with.
pub(crate) fn with_inherited<T>(
    fd: RawFd,
    use_it: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    if fd < 0 || !std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists() {
        return Err(io::Error::from_raw_os_error(Errno::EBADF as i32));
    }
    // SAFETY:
    // - open: looked at above, and never -1.
    // - alive: nobody in this process owns the launcher's descriptors but libraries that keep them open
    //   until they are finalised; if one is closed meanwhile, the kernel answers EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    use_it(borrowed.as_fd())
}

/// A descriptor that is readable once this child of ours has ended. Not inherited.
pub(crate) fn process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY:
    // - takes two numbers and no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(Errno::result(fd)?).map_err(io::Error::other)?;
    // SAFETY:
    // - just opened, and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ended children stay until they are waited for: whoever started this process may have had it otherwise, and that is inherited.
pub(crate) fn keep_ended_children() -> io::Result<()> {
    // SAFETY:
    // - a structure of numbers and of a pointer to a function, for all of which zeroes are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY:
    // - sigaction(2): reads nothing, and writes what is alive here.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), &raw mut action) })?;
    let is_ignored = action.sa_sigaction == libc::SIG_IGN;
    if !is_ignored && action.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    if is_ignored {
        action.sa_sigaction = libc::SIG_DFL;
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY:
    // - sigaction(2): reads what is alive here; the handler is the default one or the process's own.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) })?;
    Ok(())
}

/// Does this process use MPI? Then MPI ends the launcher's protocol itself.
pub(crate) fn uses_mpi() -> bool {
    let this = Image::this();
    // SAFETY:
    // - MPI's standard gives `int MPI_Initialized(int *)`; whatever has this name in a process is that.
    let Ok(initialized) = (unsafe { this.get::<Initialized>(b"MPI_Initialized\0") }) else {
        return false;
    };
    let mut flag = 0;
    // SAFETY:
    // - may be called at any time, before and after MPI's own beginning and end; it writes one number.
    let status = unsafe { initialized(&raw mut flag) };
    status == 0 && flag != 0
}

type Initialized = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `pmix_proc_t`, as libpmix 2 to 5 have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    nspace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: a tag, and a union of which four members are used.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    string: *const c_char,
    integer: c_int,
    uint32: u32,
    /// As large as the largest member.
    room: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

const _: () = {
    assert!(size_of::<Proc>() == 260 && offset_of!(Proc, rank) == 256);
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, value) == 520);
};

/// Sizes, offsets and numbers with C's names, for the test that compares them with the headers.
#[doc(hidden)]
pub const LAYOUT: &[(&str, usize)] = &[
    ("sizeof(pmix_proc_t)", size_of::<Proc>()),
    ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
    ("sizeof(pmix_value_t)", size_of::<Value>()),
    ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
    ("sizeof(pmix_info_t)", size_of::<Info>()),
    ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
    ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
    ("PMIX_STRING", STRING as usize),
    ("PMIX_INT", INT as usize),
    ("PMIX_UINT32", UINT32 as usize),
    ("PMIX_GLOBAL", GLOBAL as usize),
    ("PMIX_RANK_WILDCARD", WILDCARD as usize),
];

const STRING: u16 = 3;
const INT: u16 = 6;
const UINT32: u16 = 14;
const GLOBAL: u8 = 3;
/// `PMIX_ERR_NOT_FOUND`.
const NOT_FOUND: c_int = -46;
/// Asks about the job instead of a rank.
const WILDCARD: u32 = u32::MAX - 1;

/// libpmix, loaded and initialised. Its functions are called from one thread at a time.
pub(crate) struct Pmix {
    functions: Functions,
    me: Proc,
}

struct Functions {
    finalize: unsafe extern "C" fn(*const Info, usize) -> c_int,
    put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int,
    commit: unsafe extern "C" fn() -> c_int,
    get: unsafe extern "C" fn(
        *const Proc,
        *const c_char,
        *const Info,
        usize,
        *mut *mut Value,
    ) -> c_int,
    abort: unsafe extern "C" fn(c_int, *const c_char, *const Proc, usize) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

type Init = unsafe extern "C" fn(*mut Proc, *const Info, usize) -> c_int;

impl Pmix {
    /// Loads the library of that name, and tells its server that this process is here.
    pub(crate) fn load(name: &str) -> Result<Self, String> {
        // SAFETY:
        // - the initialisers of the file that the user named, or of the system's libpmix, run now: that is
        //   what loading it means.
        let image = unsafe { Image::new(name) }.map_err(|why| {
            format!("{name} could not be loaded ({why}); on Debian: apt-get install libpmix2")
        })?;
        // It leaves a thread behind: it stays until the process ends.
        let image: &'static Image = Box::leak(Box::new(image));
        let init: Init = function(image, name, c"PMIx_Init")?;
        let functions = Functions {
            finalize: function(image, name, c"PMIx_Finalize")?,
            put: function(image, name, c"PMIx_Put")?,
            commit: function(image, name, c"PMIx_Commit")?,
            get: function(image, name, c"PMIx_Get")?,
            abort: function(image, name, c"PMIx_Abort")?,
            error_string: function(image, name, c"PMIx_Error_string")?,
        };
        let mut me = Proc { nspace: [0; 256], rank: 0 };
        // SAFETY:
        // - PMIx_Init(3): `me` is a `pmix_proc_t` to be filled; no directives.
        let status = unsafe { init(&raw mut me, ptr::null(), 0) };
        let pmix = Self { functions, me };
        pmix.check("PMIx_Init", status)?;
        Ok(pmix)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.me.rank
    }

    /// `PMIX_JOB_SIZE`.
    pub(crate) fn size(&self) -> Result<u32, String> {
        let value = self.fetch(WILDCARD, c"pmix.job.size", None)?;
        if value.kind != UINT32 {
            return Err(format!("the job's size has the type {}", value.kind));
        }
        // SAFETY:
        // - the tag says that this member was written.
        Ok(unsafe { value.data.uint32 })
    }

    /// Shows the others a text under a key.
    pub(crate) fn show(&self, key: &CStr, text: &CStr) -> Result<(), String> {
        let data = Data { string: text.as_ptr() };
        let mut value = Value { kind: STRING, data };
        // SAFETY:
        // - PMIx_Put(3) copies key and value before it returns; both are alive until then.
        let status = unsafe { (self.functions.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.check("PMIx_Put", status)?;
        // SAFETY:
        // - PMIx_Commit(3) takes nothing.
        let status = unsafe { (self.functions.commit)() };
        self.check("PMIx_Commit", status)
    }

    /// The text that another rank shows under a key. Waits for it, about so long, or for ever; or does not
    /// wait and gives `None`, which Open MPI's server does for a rank that it has not heard of.
    pub(crate) fn look(
        &self,
        rank: u32,
        key: &CStr,
        seconds: c_int,
    ) -> Result<Option<String>, String> {
        let Some(value) = self.try_fetch(rank, key, Some(seconds))? else { return Ok(None) };
        if value.kind != STRING {
            return Err(format!("the value has the type {}", value.kind));
        }
        // SAFETY:
        // - the tag says that this member was written.
        let text = unsafe { value.data.string };
        if text.is_null() {
            return Err("the value is empty".into());
        }
        // SAFETY:
        // - a string of the library's own, ended by a zero; the value is never freed.
        let text = unsafe { CStr::from_ptr(text) };
        Ok(Some(text.to_string_lossy().into_owned()))
    }

    fn fetch(&self, rank: u32, key: &CStr, seconds: Option<c_int>) -> Result<Value, String> {
        self.try_fetch(rank, key, seconds)?.ok_or_else(|| format!("the server knows no {key:?}"))
    }

    /// `PMIx_Get`. What it allocates stays: a few values in the life of a process.
    fn try_fetch(
        &self,
        rank: u32,
        key: &CStr,
        seconds: Option<c_int>,
    ) -> Result<Option<Value>, String> {
        let whom = Proc { rank, ..self.me };
        let directive = seconds.map(timeout);
        let (info, count) =
            directive.as_ref().map_or((ptr::null(), 0), |info| (ptr::from_ref(info), 1));
        let mut found: *mut Value = ptr::null_mut();
        // SAFETY:
        // - PMIx_Get(3): process, key and directives are read, alive until it returns; the value is written.
        let status = unsafe {
            (self.functions.get)(&raw const whom, key.as_ptr(), info, count, &raw mut found)
        };
        if status == NOT_FOUND {
            return Ok(None);
        }
        self.check("PMIx_Get", status)?;
        if found.is_null() {
            return Err("PMIx_Get succeeded without a value".into());
        }
        // SAFETY:
        // - written by the library when it reports success; aligned, as it came from its allocator.
        Ok(Some(unsafe { *found }))
    }

    /// Asks the launcher to end the job.
    pub(crate) fn abort(&self, code: u8, why: &str) {
        let why = CString::new(why.replace('\0', " ")).unwrap_or_default();
        // SAFETY:
        // - PMIx_Abort(3): the text is alive until it returns; no list of processes means all.
        unsafe { (self.functions.abort)(c_int::from(code), why.as_ptr(), ptr::null(), 0) };
    }

    /// Says that this process needs the server no more.
    pub(crate) fn finalize(&self) -> Result<(), String> {
        // SAFETY:
        // - PMIx_Finalize(3), no directives; it counts its `PMIx_Init`s, so that MPI's own stays good.
        let status = unsafe { (self.functions.finalize)(ptr::null(), 0) };
        self.check("PMIx_Finalize", status)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY:
        // - PMIx_Error_string(3) takes any number.
        let text = unsafe { (self.functions.error_string)(status) };
        if text.is_null() {
            return Err(format!("{call} failed with status {status}"));
        }
        // SAFETY:
        // - a constant string, ended by a zero.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("{call} failed with status {status}, {}", text.to_string_lossy()))
    }
}

/// The directive `PMIX_TIMEOUT`.
fn timeout(seconds: c_int) -> Info {
    let mut key = [0; 512];
    for (place, byte) in key.iter_mut().zip(c"pmix.timeout".to_bytes()) {
        *place = c_char::from_ne_bytes([*byte]);
    }
    let mut data = Data { room: [0; 3] };
    data.integer = seconds;
    Info { key, flags: 0, value: Value { kind: INT, data } }
}

/// Looks one function up; its type is as in its manual page, at each call above.
fn function<F: Copy>(image: &'static Image, name: &str, function: &CStr) -> Result<F, String> {
    // SAFETY:
    // - the symbol is a function of the type that its manual page gives: stated where this is called.
    let found = unsafe { image.get::<F>(function.to_bytes_with_nul()) };
    found.map(|symbol| *symbol).map_err(|_| {
        format!("{name} is no libpmix: it has no function {}", function.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_wrong_library_is_named_with_what_to_install() {
        let said = Pmix::load("libpmix-that-is-nowhere.so").err().unwrap();
        assert!(said.contains("nowhere.so could not be loaded"), "{said}");
        assert!(said.ends_with("on Debian: apt-get install libpmix2"), "{said}");
        let said = Pmix::load("libc.so.6").err().unwrap();
        assert_eq!(said, "libc.so.6 is no libpmix: it has no function PMIx_Init");
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_refused() {
        assert_eq!(inherited(-1).unwrap_err().raw_os_error(), Some(9));
        assert_eq!(inherited(987_654).unwrap_err().raw_os_error(), Some(9));
        assert!(inherited(0).is_ok());
    }

    #[test]
    fn this_test_is_no_mpi_program() {
        assert!(!uses_mpi());
    }
}
