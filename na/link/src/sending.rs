//! Messages on their way out, and how operations end.

use hg_na::{
    Completion, Done, Error, Failure, Message, OpId, QUIET, Reached, Returned, Tag, Token,
};

/// Kinds of messages. Each kind keeps its order, and waits for no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Short ones that wait for nobody's admission.
    Control,
    /// Answers, for which the other side has a receive.
    Expected,
    /// Requests.
    Unexpected,
}

impl Lane {
    /// All of them, the most important first.
    pub const ALL: [Self; 3] = [Self::Control, Self::Expected, Self::Unexpected];

    /// Its place among them.
    #[inline]
    #[must_use]
    pub fn place(self) -> usize {
        self as usize
    }
}

/// A message of the poster's that has not left as a whole.
#[derive(Debug)]
pub struct Sending {
    /// Names its operation.
    pub id: OpId,
    /// Its poster's.
    pub token: Token,
    /// Of an expected message; 0 of any other.
    pub tag: Tag,
    /// The bytes.
    pub message: Message,
    /// How many of them have left in earlier frames.
    pub left: usize,
}

impl Sending {
    /// One of which nothing has left.
    #[inline]
    #[must_use]
    pub fn new(id: OpId, token: Token, tag: Tag, message: Message) -> Self {
        Self { id, token, tag, message, left: 0 }
    }

    /// Whether the peer may have got some of it, as far as is known before it is handed over.
    #[must_use]
    pub fn reached(&self) -> Reached {
        if self.left > 0 { Reached::Unknown } else { Reached::Never }
    }

    /// Its completion, with the poster's own memory where that went in.
    #[must_use]
    pub fn end(self, failure: Option<(Error, Reached)>) -> Completion {
        ended(self.id, self.token, failure, given_back(self.message))
    }

    /// It was sent: tells its poster, if that one wants to be told.
    #[inline]
    pub fn sent(self, done: &mut Vec<Completion>) {
        if self.token & QUIET == 0 {
            done.push(self.end(None));
        }
    }
}

/// What a send hands back: the poster's own memory, where it was.
#[must_use]
pub fn given_back(message: Message) -> Returned {
    if message.slot().is_some() { Returned::Nothing } else { Returned::Message(message) }
}

/// The completion of an operation.
#[must_use]
pub fn ended(
    id: OpId,
    token: Token,
    failure: Option<(Error, Reached)>,
    returned: Returned,
) -> Completion {
    let result =
        failure.map_or(Ok(()), |(error, reached)| Err(Box::new(Failure { error, reached })));
    Completion::Done(Done { id, token, result, returned })
}

/// Memory for a message of up to `max` bytes: inside itself, or a vector, which is sent from where it lies.
///
/// # Errors
/// [`Error::TooLong`].
pub fn new_message(len: usize, max: usize) -> Result<Message, Error> {
    match len {
        _ if len > max => Err(Error::TooLong { len, max }),
        _ if len <= hg_na::INLINE_MAX => Ok(Message::inline(len)),
        _ => Ok(Message::from(vec![0; len])),
    }
}
