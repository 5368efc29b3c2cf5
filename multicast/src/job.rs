//! Groups of the ranks of a job.

use hg::Address;
use hg_job::Job;

use crate::{error::Error, id::GroupId, multicast::Multicast};

impl Multicast {
    /// Opens an engine, with a key that rank 0 draws where the transport takes one (over `tcp://` it seals what is sent), and tells all ranks of a job where it is: the addresses
    /// in the order of ranks. Collective.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Job`], [`Error::Random`]; [`Error::Members`] at the ranks that could open one, with the words of one that
    /// could not.
    pub fn of_job(
        job: &Job,
        builder: hg::Builder,
        url: &str,
    ) -> Result<(Self, Vec<Address>), Error> {
        let drawn = draw(job, 32)?;
        let key: [u8; 32] = drawn.try_into().map_err(|_| other_version())?;
        let builder = if builder.takes_key(url) { builder.key(key) } else { builder };
        let opened = Self::open(builder, url);
        // All ranks come here, whether they could open it or not: an address, or a line why there is none.
        let own = match &opened {
            Ok(it) => it.address().to_string(),
            Err(why) => format!("\n{why}"),
        };
        let told = job.channel("multicast.addresses").all_gather(own.as_bytes())?;
        let multicast = opened?;
        let address = |(rank, it): (u32, &Vec<u8>)| {
            let text = std::str::from_utf8(it).map_err(|_| other_version())?;
            match text.strip_prefix('\n') {
                Some(why) => Err(Error::Members(format!("rank {rank} has no engine: {why}"))),
                None => text.parse().map_err(Error::Engine),
            }
        };
        let addresses = (0..).zip(&told).map(address).collect::<Result<_, _>>()?;
        Ok((multicast, addresses))
    }

    /// Ids that all ranks of a job get, drawn by rank 0. Collective.
    ///
    /// # Errors
    /// [`Error::Job`], [`Error::Random`].
    pub fn ids_of_job(job: &Job, count: usize) -> Result<Vec<GroupId>, Error> {
        let drawn = draw(job, 16 * count)?;
        let (ids, _) = drawn.as_chunks();
        Ok(ids.iter().map(|it| GroupId::from_bytes(*it)).collect())
    }
}

/// The same random bytes at all ranks.
fn draw(job: &Job, len: usize) -> Result<Vec<u8>, Error> {
    let mut own = Vec::new();
    if job.rank() == 0 {
        own = vec![0; len];
        getrandom::fill(&mut own).map_err(Error::Random)?;
    }
    let all = job.channel("multicast.secrets").all_gather(&own)?;
    all.into_iter().next().filter(|it| it.len() == len).ok_or_else(other_version)
}

fn other_version() -> Error {
    Error::Members("rank 0 runs another version".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hg_job::{Settings, Via};
    use watchdog::Watchdog;

    use super::*;
    use crate::{Destination, Options};

    /// It has been told the group's id and members, and is one of those.
    #[test]
    fn who_has_not_the_key_of_the_job_gets_nowhere() {
        let _watchdog = Watchdog::start();
        let url = "tcp://127.0.0.1";
        let plain = || hg::builder().setting("routing", "off");
        let job = Settings::new().via(Via::Single).connect().unwrap();
        let (root, addresses) = Multicast::of_job(&job, plain(), url).unwrap();
        let stranger = Multicast::open(plain(), url).unwrap();
        let members = [addresses[0].clone(), stranger.address().clone()];
        let id = Multicast::ids_of_job(&job, 1).unwrap()[0];
        let options = Options { join_within: Duration::MAX, ..Options::default() };
        let join = |it: &Multicast, own| {
            it.group(id, &members, own, options.clone(), |_| Ok(Destination::Allocate)).unwrap()
        };
        let groups = [join(&root, 0), join(&stranger, 1)];
        let failure = groups[1].joined().wait().unwrap_err();
        assert!(failure.member == 0 && failure.why.contains("key"), "{failure}");
        job.leave().unwrap();
    }
}
