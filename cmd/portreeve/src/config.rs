//! `--config`: a YAML file with the settings that flags have, under the flags' names in camelCase.
//!
//! There is one list of settings, the command line's: a flag, a controller's too, is a key without another line. What the file gives
//! becomes the default of its flag, so that it is read by the flag's own parser and a flag that is given wins.
//!
//! Architecture Invariant: only [`File::read`] looks at the file system; what a file says, and what is in force, is decided by values.

mod document;
mod effective;
mod keys;
mod reference;
mod rules;

use std::{
    ffi::OsString,
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, Id, parser::ValueSource};

pub(crate) use self::{effective::render_effective, reference::reference};

/// What the file must say that it is.
const API_VERSION: &str = "portreeve.dev/v1alpha1";
const KIND: &str = "ControllerManagerConfiguration";
/// The longest file that is read: what fits into a ConfigMap.
const LONGEST: u64 = 1 << 20;

/// Why the file that `--config` names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("failed to read --config {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// It is too long to be a config file.
    #[error("failed to read --config {path}: it is longer than 1 MiB; give the YAML file with the settings")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It says what it must not: one line for each mistake, which begins with the file's name and the number of the line.
    #[error("{}", lines(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every mistake in it, in the order of their lines.
        problems: Vec<Problem>,
    },
}

/// A mistake in a config file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// The number of the line, from 1.
    pub line: u64,
    /// The key, the value and the way out.
    pub text: String,
}

fn lines(path: &Path, problems: &[Problem]) -> String {
    let line = |problem: &Problem| format!("{}:{}: {}", path.display(), problem.line, problem.text);
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What a file gives for one flag.
#[derive(Clone, Debug)]
struct FileSetting {
    flag: Id,
    key: String,
    line: u64,
    values: Vec<OsString>,
}

/// A config file that was read and whose every value its flag would take.
#[derive(Clone, Debug)]
pub(crate) struct File {
    path: PathBuf,
    given: Vec<FileSetting>,
}

/// Where the file gives a setting: `FILE:LINE: key`.
#[derive(Debug)]
pub struct FileLocation(String);

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl File {
    /// Reads the settings of a file for the flags of `command`.
    ///
    /// # Errors
    ///
    /// Names every mistake in the file.
    pub(crate) fn read(path: &Path, command: &Command) -> Result<Self, Error> {
        let path = path.to_owned();
        let mut bytes = Vec::new();
        // One more than is allowed, to know that there is more.
        let read = fs::File::open(&path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
        let absolute = match read.and_then(|_| std::path::absolute(&path)) {
            Ok(absolute) => absolute,
            Err(source) => return Err(Error::Read { path, source }),
        };
        if bytes.len() as u64 > LONGEST {
            return Err(Error::TooLong { path });
        }
        let folder = absolute.parent().unwrap_or(&absolute);
        match rules::settings(&bytes, command, folder) {
            Ok(given) => Ok(Self { path, given }),
            Err(problems) => Err(Error::Invalid { path, problems }),
        }
    }

    /// The file's name, as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The command with the file's values as the defaults of its flags.
    pub(crate) fn apply(&self, command: Command) -> Command {
        self.given.iter().fold(command, rules::with)
    }

    /// Where the file gives what is in force for these flags. Nothing for those that are on the command line too.
    pub(crate) fn locations(&self, flags: &[&str], matches: &ArgMatches) -> Vec<FileLocation> {
        let counts = |given: &&FileSetting| {
            let flag = given.flag.as_str();
            flags.contains(&flag) && matches.value_source(flag) != Some(ValueSource::CommandLine)
        };
        let place =
            |given: &FileSetting| FileLocation(format!("{}:{}: {}", self.path.display(), given.line, given.key));
        self.given.iter().filter(counts).map(place).collect()
    }
}

#[cfg(test)]
mod tests;
