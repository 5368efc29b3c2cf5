//! Completions of operations.

use hg_na::{Completion, Done, Error, Failure, OpId, Reached, Returned, Token};

/// That of an operation that went well.
#[inline(always)]
pub(crate) fn done(id: OpId, token: Token, returned: Returned) -> Completion {
    Completion::Done(Done { id, token, result: Ok(()), returned })
}

/// A failed completion.
pub(crate) fn failed(
    id: OpId,
    token: Token,
    error: Error,
    reached: Reached,
    returned: Returned,
) -> Completion {
    let result = Err(Box::new(Failure { error, reached }));
    Completion::Done(Done { id, token, result, returned })
}
