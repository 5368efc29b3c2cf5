//! Stands for `key` and `seal` in a build without the feature `tcp-key`: of neither anything can be made.

use std::convert::Infallible;

use hg_na::Error;

/// The longest piece that is sealed; here none is.
pub(crate) const RECORD_MAX: usize = usize::MAX;

/// A pre-shared key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(Infallible);

impl Key {
    /// No key, or what to switch on for one.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when the settings name one.
    pub(crate) fn read(
        (key_file, file): (&str, Option<&str>),
        (key_env, variable): (&str, Option<&str>),
    ) -> Result<Option<Self>, Error> {
        let name = match (file, variable) {
            (None, None) => return Ok(None),
            (Some(_), _) => key_file,
            (None, Some(_)) => key_env,
        };
        Err(cannot(name))
    }

    /// The same for one that was handed over by itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub(crate) fn given(_key: &hg_na::Key) -> Result<Self, Error> {
        Err(cannot("key"))
    }
}

fn cannot(name: &str) -> Error {
    let why = "this build cannot encrypt: switch on the feature `tcp-key` of `hydrargyrum` (or of \
        `hydrargyrum-na-tcp`)";
    Error::BadSetting { name: name.to_owned(), why: why.to_owned() }
}

/// The key exchange of one connection.
#[derive(Debug)]
pub(crate) struct Exchange(Infallible);

impl Exchange {
    pub(crate) fn dialling(key: &Key) -> Result<Self, Error> {
        match key.0 {}
    }

    pub(crate) fn accepting(key: &Key) -> Result<Self, Error> {
        match key.0 {}
    }

    pub(crate) fn write(&mut self) -> Result<Vec<u8>, Error> {
        match self.0 {}
    }

    pub(crate) fn read(&mut self, _bytes: &[u8]) -> bool {
        match self.0 {}
    }

    pub(crate) fn finish(self) -> Result<Seal, Error> {
        match self.0 {}
    }
}

/// The keys of an open connection.
#[derive(Debug)]
pub(crate) struct Seal(Infallible);

impl Seal {
    pub(crate) fn seal(&mut self, _plain: &[u8], _into: &mut Vec<u8>) -> Result<(), &'static str> {
        match self.0 {}
    }

    pub(crate) fn open(
        &mut self,
        _input: &mut &[u8],
        _into: &mut Vec<u8>,
    ) -> Result<bool, &'static str> {
        match self.0 {}
    }
}
