//! Processes of a job that are imitated by threads of one, and tell each other something once.

use std::sync::{Condvar, Mutex};

use hg_invoke::Group;

/// Where they meet.
#[derive(Default)]
pub(crate) struct Meeting {
    state: Mutex<Given>,
    changed: Condvar,
}

/// What each has given, and what all get.
type Given = (Vec<Option<Vec<u8>>>, Vec<Vec<u8>>);

/// Its rank, how many there are, and where they meet.
pub(crate) struct Process<'a>(pub u32, pub u32, pub &'a Meeting);

impl Group for Process<'_> {
    fn rank(&self) -> u32 {
        self.0
    }
    fn size(&self) -> u32 {
        self.1
    }
    /// Once.
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut state = self.2.state.lock().unwrap();
        state.0.resize(self.1 as usize, None);
        state.0[self.0 as usize] = Some(own.to_vec());
        if state.0.iter().all(Option::is_some) {
            state.1 = state.0.iter().flatten().cloned().collect();
            self.2.changed.notify_all();
        }
        while state.1.is_empty() {
            state = self.2.changed.wait(state).unwrap();
        }
        Ok(state.1.clone())
    }
}
