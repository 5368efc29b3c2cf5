//! One flush after the other ([`hg_na::Context::flush`]), of messages that are numbered as they are accepted.

/// The flush that is under way, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flush(Option<u64>);

impl Flush {
    /// Asks whether all up to the number at which the flush began have left; `last`: of the last one that was accepted.
    pub fn ask(&mut self, last: u64, have_left: impl FnOnce(u64) -> bool) -> bool {
        let to = *self.0.get_or_insert(last);
        let is_over = have_left(to);
        if is_over {
            self.0 = None;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_later_is_not_waited_for_and_the_next_flush_is_of_that() {
        let mut flush = Flush::default();
        assert!(!flush.ask(3, |to| 2 >= to));
        assert!(flush.ask(9, |to| 3 >= to));
        assert!(!flush.ask(9, |to| 3 >= to));
        assert!(flush.ask(20, |to| 9 >= to));
    }
}
