//! A batch that has arrived and is not acknowledged yet.

use std::sync::Arc;

use hg::Answer;

use crate::rpc::batch;

/// A batch that has arrived, or a share in it: acknowledged when it is dropped, or the last share.
#[derive(Debug)]
pub(crate) enum Receipt {
    /// Nobody else has a share.
    Whole { _answer: Acknowledgement },
    /// Others may have one.
    Share { _parent: Parent },
}

impl Receipt {
    /// Of a batch that goes nowhere else.
    pub(crate) fn of_all(answer: Answer<batch>) -> Self {
        Self::Whole { _answer: Acknowledgement(Some(answer)) }
    }

    pub(crate) fn share(parent: Parent) -> Self {
        Self::Share { _parent: parent }
    }
}

/// A share in a batch that has arrived: it is acknowledged when the last share is dropped, that is, when none of its
/// messages waits here any more.
#[derive(Debug, Clone)]
pub(crate) struct Parent(Arc<Acknowledgement>);

/// Sent when it is dropped.
#[derive(Debug)]
pub(crate) struct Acknowledgement(Option<Answer<batch>>);

impl Parent {
    pub(crate) fn new(answer: Answer<batch>) -> Self {
        Self(Arc::new(Acknowledgement(Some(answer))))
    }
}

impl Drop for Acknowledgement {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer.send(Ok(()));
        }
    }
}

impl PartialEq for Parent {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
