//! The functions of a fabric: by the hash of their names, and by the short numbers that travel.

use hg_core::{
    codec::{self, Codec as _, CodecError},
    rpc::{Responder, Rpc, RpcId, Serve, ServeKind},
};
use rustc_hash::FxHashMap;

use crate::{Error, Worker};

/// Decodes arguments and runs a function.
type Run = fn(&Worker, &[u8]) -> Result<(), CodecError>;

/// All processes register the same functions; the number of one is its place in the order of hashes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    list: Vec<(RpcId, &'static str, Run)>,
    places: FxHashMap<RpcId, u32>,
}

impl Functions {
    pub(crate) fn add<F: Serve<Worker>>(&mut self) -> Result<(), Error> {
        if F::KIND != ServeKind::Plain {
            let why = "is asynchronous or blocking: functions that are called run at once";
            return Err(Error::Setup(format!("`{}` {why}", F::NAME)));
        }
        let id = F::wire_id();
        if let Some((_, name, _)) = self.list.iter().find(|(other, ..)| other.has_name_of(id)) {
            let why = "is registered already, or has the same hash as";
            return Err(Error::Setup(format!("`{}` {why} `{name}`", F::NAME)));
        }
        self.list.push((id, F::NAME, run::<F>));
        self.list.sort_unstable_by_key(|(id, ..)| *id);
        let ids = self.list.iter().map(|(id, ..)| *id);
        self.places = ids.zip(0..).collect();
        Ok(())
    }

    /// The hashes, in the order of numbers.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.list.iter().map(|(id, ..)| id.0).collect()
    }

    #[inline]
    pub(crate) fn number<F: Rpc>(&self) -> Result<u32, Error> {
        self.places.get(&F::wire_id()).copied().ok_or(Error::NotRegistered(F::NAME))
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<Run> {
        self.list.get(number as usize).map(|(_, _, run)| *run)
    }

    pub(crate) fn name(&self, number: u32) -> &'static str {
        self.list.get(number as usize).map_or("?", |(_, name, _)| name)
    }
}

fn run<F: Serve<Worker>>(worker: &Worker, bytes: &[u8]) -> Result<(), CodecError> {
    let args = codec::Default::decode(bytes)?;
    F::serve(worker, args, Nobody);
    Ok(())
}

/// Takes what a function returns, and drops it.
struct Nobody;

impl<T, E> Responder<T, E> for Nobody {
    type Done = ();

    fn now(self, _result: Result<T, E>) {}

    fn later<F>(self, _future: F)
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        unreachable!("registering refuses functions that answer later");
    }
}
