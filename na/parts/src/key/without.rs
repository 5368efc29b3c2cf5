//! Stands for `psk` and `seal` in a build without the feature `key`: of neither anything can be made.

use std::convert::Infallible;

use hg_na::Error;

use super::{KEY_ENV, KEY_FILE};
use crate::Reader;

/// The longest piece that is sealed; here none is.
pub const RECORD_MAX: usize = usize::MAX;

/// A pre-shared key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(Infallible);

impl Key {
    /// No key, or what to switch on for one.
    ///
    /// # Errors
    /// [`Error::BadSetting`] when the settings name one.
    pub fn read(file: Option<&str>, variable: Option<&str>) -> Result<Option<Self>, Error> {
        match (file, variable) {
            (None, None) => Ok(None),
            (Some(_), _) => Err(cannot(KEY_FILE)),
            (None, Some(_)) => Err(cannot(KEY_ENV)),
        }
    }

    /// The same for one that was handed over by itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub fn given(_key: &hg_na::Key) -> Result<Self, Error> {
        Err(cannot("key"))
    }
}

fn cannot(name: &str) -> Error {
    let why = "this build cannot encrypt: switch on the feature `tcp-key` of `hydrargyrum` (or `key` of \
        `hydrargyrum-na-parts`)";
    Reader::bad(name, why)
}

/// The key exchange of one connection.
#[derive(Debug)]
pub struct Exchange(Infallible);

impl Exchange {
    /// For the end that dials.
    ///
    /// # Errors
    /// None: there is no exchange.
    pub fn dialling(key: &Key, _protocol: &'static [u8]) -> Result<Self, Error> {
        match key.0 {}
    }

    /// For fuzz targets.
    ///
    /// # Errors
    /// None: there is no exchange.
    #[doc(hidden)]
    pub fn dialling_in(_suite: u8, key: &Key, _protocol: &'static [u8]) -> Result<Self, Error> {
        match key.0 {}
    }

    /// For the end that accepts.
    #[must_use]
    pub fn accepting(key: &Key, _protocol: &'static [u8]) -> Self {
        match key.0 {}
    }

    /// This end's message.
    ///
    /// # Errors
    /// None: there is no exchange.
    pub fn write(&mut self) -> Result<Vec<u8>, Error> {
        match self.0 {}
    }

    /// The other end's message.
    ///
    /// # Errors
    /// None: there is no exchange.
    pub fn read(&mut self, _bytes: &[u8]) -> Result<(), &'static str> {
        match self.0 {}
    }

    /// After both messages.
    ///
    /// # Errors
    /// None: there is no exchange.
    pub fn finish(self) -> Result<Seal, Error> {
        match self.0 {}
    }
}

/// The keys of an open connection.
#[derive(Debug)]
pub struct Seal(Infallible);

impl Seal {
    /// Appends a record.
    ///
    /// # Errors
    /// None: there are no keys.
    pub fn seal(&mut self, _plain: &[u8], _into: &mut Vec<u8>) -> Result<(), &'static str> {
        match self.0 {}
    }

    /// Bytes of a record whose rest has not come yet.
    #[must_use]
    pub fn partial(&self) -> usize {
        match self.0 {}
    }

    /// Refuses long records.
    pub fn limit(&mut self, _longest: usize) {
        match self.0 {}
    }

    /// Opens a record.
    ///
    /// # Errors
    /// None: there are no keys.
    pub fn open(&mut self, _input: &mut &[u8], _into: &mut Vec<u8>) -> Result<bool, &'static str> {
        match self.0 {}
    }
}
