//! Which kinds of operations one peer was refused for want of room: what [`hg_na::Completion::Room`] is told for.

/// Kinds that were refused, and for which room was not told since.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusals(u8);

impl Refusals {
    /// One of this kind, below 8, was refused; says whether it is the first since room was told.
    pub fn add(&mut self, kind: usize) -> bool {
        let before = self.0;
        self.0 |= 1 << kind;
        self.0 != before
    }

    /// Whether there is any.
    #[inline]
    #[must_use]
    pub fn any(&self) -> bool {
        self.0 != 0
    }

    /// Takes those out that have room by now; says whether any had.
    pub fn take(&mut self, has_room: impl Fn(usize) -> bool) -> bool {
        let before = self.0;
        for kind in 0..8 {
            if before & (1 << kind) != 0 && has_room(kind) {
                self.0 &= !(1 << kind);
            }
        }
        self.0 != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_told_once_for_all_refusals_of_a_kind_before_it() {
        let mut refusals = Refusals::default();
        assert!(!refusals.any() && !refusals.take(|_| true));
        assert!(refusals.add(0) && !refusals.add(0) && refusals.add(7));
        assert!(!refusals.take(|_| false));
        assert!(refusals.take(|kind| kind == 0) && refusals.any());
        assert!(!refusals.take(|kind| kind == 0) && refusals.add(0));
        assert!(refusals.take(|_| true) && !refusals.any());
    }
}
