//! How far rank 0 is with a combination: a line on its terminal.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
    time::Duration,
};

use hg_job::Job;
use hg_job_runner::samples::{Sampler, bar};
use hg_multicast::Group;

use crate::Error;

/// What there is to be shown: objects that every member has, and bytes that others have taken from rank 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Shows it at rank 0, where that has a terminal, until what is returned ends. Of `count` objects.
///
/// # Errors
/// There is no thread to be had.
pub(crate) fn start(
    job: &Job,
    count: u64,
    look: impl Fn() -> Seen + Send + 'static,
) -> Result<Sampler<Seen>, Error> {
    if job.rank() != 0 || !io::stderr().is_terminal() {
        return Ok(Sampler::idle());
    }
    let show = move |seen: &[Seen], is_over: bool| {
        line(seen.last().copied().unwrap_or_default(), count, is_over)
    };
    let look = move |_: Duration| look();
    Sampler::start(look, Some(show)).map_err(Error::Thread)
}

/// The same of one group, which is not kept.
///
/// # Errors
/// There is no thread to be had.
pub(crate) fn of_group(job: &Job, count: u64, group: &Arc<Group>) -> Result<Sampler<Seen>, Error> {
    let group = Arc::downgrade(group);
    start(job, count, move || {
        let seen = group.upgrade().map(|it| it.progress());
        seen.map_or(Seen::default(), |it| Seen { objects: it.objects, bytes: it.bytes })
    })
}

#[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
fn line(Seen { objects, bytes }: Seen, count: u64, is_over: bool) -> String {
    let words = format!("{objects} of {count} objects, rank 0 has sent {} MB", bytes / 1_000_000);
    bar(objects as f64 / count.max(1) as f64, &words, is_over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_with_objects() {
        let seen = Seen { objects: 3, bytes: 5_300_000 };
        let line = |is_over| line(seen, 12, is_over);
        assert!(line(false).contains(" 25 %, 3 of 12 objects, rank 0 has sent 5 MB"));
        assert!(line(true).contains("100 %") && line(true).ends_with('\n'));
    }
}
