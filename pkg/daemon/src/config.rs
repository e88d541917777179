//! `--config`: a YAML file with the settings of the flags. Its keys are the flags' names in
//! camelCase.
//!
//! The keys are derived from the command line, so every flag that is a setting has one, including
//! the flags of controllers. A value in the file becomes the default of its flag. So the flag's own
//! parser reads it, and a flag on the command line overrides it.
//!
//! Architecture Invariant: only [`File::read`] accesses the file system. Everything else works on
//! values.

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

pub(crate) use self::{
    effective::{flag_values, render_effective},
    reference::reference,
};

/// The `apiVersion` that a file must have.
const API_VERSION: &str = "portreeve.dev/v1alpha1";
const KIND: &str = "ControllerManagerConfiguration";
/// The maximum size of the file, which is that of a ConfigMap.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The reason why the file of `--config` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read --config {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is too long to be a config file.
    #[error("failed to read --config {path}: the file is longer than 1 MiB; set --config to a YAML file with settings")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file contains mistakes. The message has one line for each of them, which starts with the
    /// file's name and the line number.
    #[error("{}", lines(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All mistakes, in the order of their lines.
        problems: Vec<Problem>,
    },
}

/// A mistake in a config file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// The line number, starting at 1.
    pub line: u64,
    /// The key, the value and how to fix it.
    pub text: String,
}

fn lines(path: &Path, problems: &[Problem]) -> String {
    let line = |problem: &Problem| format!("{}:{}: {}", path.display(), problem.line, problem.text);
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The values that a file sets for one flag.
#[derive(Clone, Debug)]
struct FileSetting {
    flag: Id,
    key: String,
    line: u64,
    values: Vec<OsString>,
}

/// A config file that was read and whose values are valid for their flags.
#[derive(Clone, Debug)]
pub(crate) struct File {
    path: PathBuf,
    settings: Vec<FileSetting>,
}

/// The location of a setting in the file: `FILE:LINE: key`.
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
    /// Returns an error that lists every mistake in the file.
    pub(crate) fn read(path: &Path, command: &Command) -> Result<Self, Error> {
        let path = path.to_owned();
        let mut bytes = Vec::new();
        // Read one byte more than allowed, to detect a longer file.
        let read = fs::File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        let absolute = match read.and_then(|_| std::path::absolute(&path)) {
            Ok(absolute) => absolute,
            Err(source) => return Err(Error::Read { path, source }),
        };
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(Error::TooLong { path });
        }
        let folder = absolute.parent().unwrap_or(&absolute);
        match rules::settings(&bytes, command, folder) {
            Ok(settings) => Ok(Self { path, settings }),
            Err(problems) => Err(Error::Invalid { path, problems }),
        }
    }

    /// Returns the file's name, as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the command with the file's values as the defaults of its flags.
    pub(crate) fn apply(&self, command: Command) -> Command {
        self.settings.iter().fold(command, rules::with_default)
    }

    /// Returns the locations of the file's settings for these flags. Skips flags that the command
    /// line overrides.
    pub(crate) fn locations(&self, flags: &[&str], matches: &ArgMatches) -> Vec<FileLocation> {
        let is_effective = |setting: &&FileSetting| {
            let flag = setting.flag.as_str();
            flags.contains(&flag) && matches.value_source(flag) != Some(ValueSource::CommandLine)
        };
        let location =
            |setting: &FileSetting| FileLocation(format!("{}:{}: {}", self.path.display(), setting.line, setting.key));
        self.settings.iter().filter(is_effective).map(location).collect()
    }
}

#[cfg(test)]
mod tests;
