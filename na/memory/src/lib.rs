//! Copies to, from and between registered memory, and vectored I/O on it: one room for their `unsafe`.
//!
//! Plugins reach the bytes of a [`hg_na::Memory`] only through this crate, or hand its addresses to a kernel or a
//! network card. Every function checks the range first, and holds [`hg_na::Memory::exclusion`] while it works, so
//! that copies by this process exclude one another. A peer that writes the same bytes meanwhile, through
//! the kernel, a card or a mapping, makes them some mix of old and new; nothing more is promised.
//!
//! | function | what |
//! |---|---|
//! | [`pieces`], [`cut`] | a range as runs: of memory, of a list of runs |
//! | [`copy_out`], [`copy_in`] | between memory and a slice |
//! | [`copy_between`] | from memory to memory |
//! | [`write_vectored`] | `sendmsg(2)`: a slice, a range of memory and another slice, to a socket |
//! | [`Held`] | memory that is dropped in the middle of progress |
//! | [`ForkGuard`] | tells a forked child's copy from the original |
//! | [`node_id`] | whose memory can be shared at all |
//! | [`zeroed_here`] | memory that lies on the NUMA node of the thread that asks for it |
//! | [`NotInherited`] | keeps a descriptor from forked children |
//! | [`read_vectored`] | `readv(2)`: from a descriptor into a range of memory, then into a slice |

mod copy;
#[expect(unsafe_code, reason = "a page that the kernel wipes in a forked child")]
mod fork;
#[expect(unsafe_code, reason = "advises the kernel of an allocation that holds nothing yet")]
mod fresh;
mod held;
#[expect(unsafe_code, reason = "handlers of pthread_atfork")]
mod inherit;
mod io;
mod node;
mod pieces;

#[expect(unsafe_code, reason = "follows the addresses of registered memory")]
mod raw;

pub use copy::{copy_between, copy_in, copy_out};
pub use fork::ForkGuard;
pub use fresh::zeroed_here;
pub use held::Held;
pub use inherit::NotInherited;
pub use io::{read_vectored, write_vectored};
pub use node::node_id;
pub use pieces::{cut, pieces};
