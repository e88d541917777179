//! The modules of a crate.

use std::{
    collections::BTreeMap,
    fs, mem,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    crates::targets,
    root,
    syntax::{Code, Names},
};

/// The modules of a crate by their path from its root, outside of tests.
pub(crate) struct Modules(BTreeMap<Names, Module>);

/// A module with the file that contains it.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) code: Code,
}

impl Modules {
    /// Parses the file `root` of a crate and the files of the modules that it declares. `read`
    /// returns the text of a file, or `None` if it does not exist.
    pub(crate) fn parse(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut modules = Self(BTreeMap::new());
        let folder = root.parent().unwrap_or(root);
        let (file, code) = parse_file(&[root], read)?;
        modules.add(Names::new(), folder, file, code, read)?;
        Ok(modules)
    }

    /// Adds a module, and the modules in it, whose files are in `folder`.
    fn add(
        &mut self,
        names: Names,
        folder: &Path,
        file: PathBuf,
        mut code: Code,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        for (name, inline) in mem::take(&mut code.modules) {
            let folder = folder.join(&name);
            let (file, code) = match inline {
                Some(code) => (file.clone(), code),
                None => parse_file(&[&folder.with_extension("rs"), &folder.join("mod.rs")], read)?,
            };
            self.add([&names[..], &[name]].concat(), &folder, file, code, read)?;
        }
        self.0.insert(names, Module { file, code });
        Ok(())
    }

    /// Returns all modules by their path from the root, with parents before their children.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Names, &Module)> {
        self.0.iter()
    }
}

/// Parses the first of `files` that exists.
fn parse_file(files: &[&Path], read: &dyn Fn(&Path) -> Option<String>) -> Result<(PathBuf, Code)> {
    let found = files.iter().find_map(|file| Some((file, read(file)?)));
    let (file, text) = found.with_context(|| format!("found none of the files {files:?}"))?;
    let code = Code::parse(&text).with_context(|| format!("failed to parse {}", file.display()))?;
    Ok((file.to_path_buf(), code))
}

/// Parses the libraries and programs of the workspace; each has the name of its package.
pub(crate) fn product() -> Result<Vec<(String, Modules)>> {
    let targets = targets(&["lib", "bin"])?.into_iter();
    let read = |path: &Path| fs::read_to_string(root().join(path)).ok();
    targets
        .map(|(package, file)| Ok((package, Modules::parse(&file, &read)?)))
        .collect()
}

/// Parses a crate whose files have these paths and texts.
pub(crate) fn of_texts(files: &[(&str, &str)]) -> Result<Modules> {
    let files: BTreeMap<&Path, &str> = files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
    let read = |path: &Path| files.get(path).map(|text| (*text).to_owned());
    Modules::parse(Path::new("src/lib.rs"), &read)
}
