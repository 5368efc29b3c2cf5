//! A batch that has arrived and is not acknowledged yet.

use std::sync::Arc;

use hg::Answer;

use crate::rpc::batch;

/// A share in a batch that has arrived: it is acknowledged when the last share is dropped, that is, when none of its
/// messages waits here any more.
#[derive(Debug, Clone)]
pub(crate) struct Parent(Arc<Acknowledgement>);

#[derive(Debug)]
struct Acknowledgement(Option<Answer<batch>>);

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
