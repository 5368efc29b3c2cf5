//! The attribute that makes a function an RPC: [`macro@rpc`]. Applications use it as `#[hg::rpc]`.
//!
//! | module     | what it is                                                    |
//! |------------|---------------------------------------------------------------|
//! | `options`  | what stands in the parentheses                                |
//! | `function` | the function: what it may be, and what is said when it is not |
//! | `types`    | which types travel, and as what                               |
//! | `generate` | what is written in its place                                  |
//!
//! What is written names only items of the facade: `hg::Request`, and in `hg::__private` the items
//! `LocalCall`, `NoError`, `Responder`, `Rpc`, `Serve`, `ServeKind`, `SignatureCell`, `travels` and the crate `serde_bytes`.

#![forbid(unsafe_code)]

mod function;
mod generate;
mod options;
mod types;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Makes a function an RPC: something to register at a target and to call from an origin.
///
/// The function's name becomes a value of a unit struct of that name, which implements `hg::Rpc`:
/// `target.register(add)`, `origin.call(add, &peer, (2, 3))`. Called like a function, in unit tests
/// for example, it runs its body here and now.
///
/// ```
/// # extern crate self as hg;
/// # pub mod __private { pub use hg_core::rpc::*; }
/// # pub struct Request;
/// # pub use hg_macros::rpc;
/// /// The sum.
/// #[hg::rpc]
/// pub fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// #[hg::rpc]
/// pub fn divide(a: i64, b: i64) -> Result<i64, String> {
///     a.checked_div(b).ok_or_else(|| format!("{a} / {b}"))
/// }
///
/// # fn main() {
/// assert_eq!(add(2, 3), 5);
/// assert_eq!(divide(1, 0), Err("1 / 0".to_owned()));
/// # }
/// ```
///
/// # What travels
/// Arguments and results are any types with serde's `Serialize` and `Deserialize`, owned, besides
/// `&str` and `&[u8]`, which are borrowed from the received message without a copy. Byte slices and
/// `Vec<u8>`, as arguments and as results, move as one copy; inside other types use
/// `serde_bytes::ByteBuf` for that. Callers pass a tuple, of one argument too: `(x,)`.
///
/// A function that returns `Result<T, E>` hands `E` to its caller as the handler's own error; any
/// other return type is a plain value. It is known by its name: an alias of a `Result` is taken for a plain value.
///
/// # Handlers
/// | written                          | runs on                              | may               |
/// |----------------------------------|--------------------------------------|-------------------|
/// | `fn`                             | the thread that progresses the engine | compute, briefly |
/// | `async fn`                       | the engine's executor                | call out, `.await` |
/// | `fn` with `#[hg::rpc(blocking)]` | a pool of threads                    | block             |
///
/// A first argument `&Request` (`hg::Request`) is the context of the request: who asks, until when,
/// whether it was cancelled. It does not travel. For an `async fn`, which outlives its message,
/// `&str` and `&[u8]` are copied once and the context is cloned.
///
/// ```
/// # extern crate self as hg;
/// # pub mod __private { pub use hg_core::rpc::*; }
/// # #[derive(Clone)] pub struct Request;
/// # pub use hg_macros::rpc;
/// # async fn slowly(_: &str) {}
/// #[hg::rpc]
/// pub async fn length(_request: &hg::Request, text: &str) -> u64 {
///     slowly(text).await;
///     text.len() as u64
/// }
///
/// #[hg::rpc(blocking)]
/// pub fn checksum(path: &str) -> Result<u32, String> {
///     let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
///     Ok(bytes.iter().map(|byte| u32::from(*byte)).sum())
/// }
/// # fn main() { assert!(checksum("/no/such/file").is_err()); }
/// ```
///
/// # Options
/// - `name = "..."`: the full name, whose hash identifies the RPC on the wire. Without it the name is
///   the function's path, `calculator::add`: the crate's name, the modules, the function.
/// - `implements = path`: this is the handler of that declaration, whose name and types it has.
/// - `blocking`: see above.
/// - `crate = path`: where Hydrargyrum is found when it is not `::hg`.
///
/// # Interface crates
/// A function that ends in `;` declares an RPC: it can be called by whoever sees the declaration, and
/// implemented by whoever serves it. Both share only the interface.
///
/// ```
/// # extern crate self as hg;
/// # pub mod __private { pub use hg_core::rpc::*; }
/// # pub struct Request;
/// # pub use hg_macros::rpc;
/// mod store {
///     #[hg::rpc]
///     pub fn put(key: &str, value: &[u8]) -> u64;
/// }
///
/// #[hg::rpc(implements = store::put)]
/// fn put(key: &str, value: &[u8]) -> u64 {
///     (key.len() + value.len()) as u64
/// }
/// # fn main() {
/// # use hg_core::rpc::Rpc;
/// # fn id<R: Rpc>(_: R) -> hg_core::rpc::RpcId { R::ID }
/// assert_eq!(id(put), id(store::put));
/// # }
/// ```
#[proc_macro_attribute]
pub fn rpc(options: TokenStream, function: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as options::Options);
    let function = parse_macro_input!(function as function::Function);
    generate::generate(&options, &function).unwrap_or_else(syn::Error::into_compile_error).into()
}
