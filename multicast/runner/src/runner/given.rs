//! Which options were given, rather than left at their defaults.

use std::collections::HashSet;

use clap::{ArgMatches, Command, Error, parser::ValueSource};

/// Their names. Part of a command line that has no options of its own.
#[derive(Debug)]
pub(crate) struct Given(HashSet<String>);

impl Given {
    /// Whether this one was: `block-size`.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.0.contains(option)
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let ids = matches.ids().map(clap::Id::as_str);
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(Self(given.map(|id| id.replace('_', "-")).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
