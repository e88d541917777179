//! The modules of a crate, and which of them a path leads to.

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

/// The most imports that one path leads through.
const LONGEST_CHAIN: usize = 16;

/// The modules of a crate by their path from its root, outside of tests.
pub(crate) struct Modules(BTreeMap<Names, Module>);

/// A module with the file that contains it.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) code: Code,
}

/// A path in one of two sibling modules that leads to the other one.
pub(crate) struct Edge {
    /// The path of the module that contains both.
    pub(crate) parent: Names,
    /// The sibling with the path.
    pub(crate) from: String,
    /// The sibling that the path leads to.
    pub(crate) to: String,
    /// The place of the path, and the path as it is written.
    pub(crate) example: String,
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

    /// Returns every path that leads from one of two sibling modules, or from a module in it, to
    /// the other.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (source, module) in &self.0 {
            for path in &module.code.paths {
                let Some(target) = self.target(source, &path.names) else {
                    continue;
                };
                let shared = source.iter().zip(&target).take_while(|(a, b)| a == b).count();
                if let (Some(from), Some(to)) = (source.get(shared), target.get(shared)) {
                    edges.push(Edge {
                        parent: source[..shared].to_vec(),
                        from: from.clone(),
                        to: to.clone(),
                        example: format!("{}:{}: {}", module.file.display(), path.line, path.names.join("::")),
                    });
                }
            }
        }
        edges
    }

    /// Returns every path in a module that leads to an item of the crate's root file, which is not
    /// one that it exports from a module.
    pub(crate) fn paths_to_root(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (source, module) in self.0.iter().filter(|(source, _)| !source.is_empty()) {
            // `pub(crate)` is a path too.
            let items = module.code.paths.iter().filter(|path| path.names.len() > 1);
            let is_in_root = |path: &Names| self.target(source, path).is_some_and(|target| target.is_empty());
            found.extend(items.filter(|path| is_in_root(&path.names)).map(|path| {
                let (file, names) = (module.file.display(), path.names.join("::"));
                format!("{file}:{}: {names}", path.line)
            }));
        }
        found
    }

    /// Returns the module that `path` leads to, as it is written in `source`; `None` if it leads
    /// out of the crate. Names that `source` or a module around it imports lead to where they are
    /// imported from. Any other module is the target itself, because its own imports count for it.
    fn target(&self, source: &[String], path: &[String]) -> Option<Names> {
        let mut place = source.to_vec();
        let mut rest = path.to_vec();
        let mut is_first = true;
        let mut imports = 0;
        while !rest.is_empty() {
            let name = rest.remove(0);
            let child = [&place[..], std::slice::from_ref(&name)].concat();
            match &*name {
                "crate" => place.clear(),
                "super" => drop(place.pop()),
                "self" => {}
                _ if self.0.contains_key(&child) => place = child,
                _ => {
                    let imported = self.0.get(&place)?.code.imports.get(&name);
                    match imported.filter(|_| source.starts_with(&place)) {
                        // An import of an external crate under its own name.
                        Some(path) if is_first && path[0] == name => return None,
                        Some(path) if imports < LONGEST_CHAIN => {
                            imports += 1;
                            rest.splice(..0, path.iter().cloned());
                            is_first = true;
                            continue;
                        }
                        _ if is_first => return None,
                        _ => return Some(place),
                    }
                }
            }
            is_first = false;
        }
        Some(place)
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
pub(crate) fn workspace_crates() -> Result<Vec<(String, Modules)>> {
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
