//! Extracts the names from a Rust file: its modules, its imports and every path outside of tests.

use std::collections::BTreeMap;

use anyhow::Result;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{
    Attribute, ExprAsync, ExprAwait, Ident, ImplItem, Item, ItemMod, ItemUse, Macro, Path, Signature, UseTree,
    ext::IdentExt,
    visit::{self, Visit},
};

/// The names of a path, such as `["crate", "store", "Store"]`.
pub(crate) type Names = Vec<String>;

/// The code of one module outside of its tests. Modules in braces are separate.
#[derive(Default)]
pub(crate) struct Code {
    /// The text of the module doc at the top of the file, in one line.
    pub(crate) header: String,
    /// Paths by the name under which they are imported.
    pub(crate) imports: BTreeMap<String, Names>,
    /// Every path as it is written, imported or used, also as an argument of a macro.
    pub(crate) paths: Vec<Reference>,
    /// The lines with async code.
    pub(crate) async_lines: Vec<usize>,
    /// The modules that are declared here; `None` for those in files of their own.
    pub(crate) modules: Vec<(String, Option<Self>)>,
}

/// A path in a file.
pub(crate) struct Reference {
    pub(crate) names: Names,
    pub(crate) line: usize,
}

impl Code {
    /// Parses the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let header = text.lines().map_while(|line| line.strip_prefix("//!"));
        let mut code = Self {
            header: header.map(str::trim).collect::<Vec<_>>().join(" "),
            ..Self::default()
        };
        code.visit_file(&syn::parse_file(text)?);
        Ok(code)
    }

    fn add(&mut self, names: Names, span: Span) {
        let line = span.start().line;
        self.paths.push(Reference { names, line });
    }

    /// Adds the paths of `tree`, which all begin with `prefix`.
    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let join = |ident: &Ident| [prefix, &[name(ident)]].concat();
        match tree {
            UseTree::Path(path) => self.import(&join(&path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(prefix, tree)),
            UseTree::Name(leaf) if leaf.ident == "self" => self.bind(prefix.last().cloned(), prefix, leaf.ident.span()),
            UseTree::Name(leaf) => self.bind(Some(name(&leaf.ident)), &join(&leaf.ident), leaf.ident.span()),
            UseTree::Rename(leaf) if leaf.ident == "self" => {
                self.bind(Some(name(&leaf.rename)), prefix, leaf.ident.span());
            }
            UseTree::Rename(leaf) => self.bind(Some(name(&leaf.rename)), &join(&leaf.ident), leaf.ident.span()),
            UseTree::Glob(leaf) => self.add(prefix.to_vec(), leaf.star_token.spans[0]),
        }
    }

    fn bind(&mut self, alias: Option<String>, names: &[String], span: Span) {
        self.imports.extend(alias.map(|alias| (alias, names.to_vec())));
        self.add(names.to_vec(), span);
    }

    /// Adds the paths and async code in the arguments of a macro, which syn does not parse.
    fn scan(&mut self, tokens: TokenStream) {
        let mut names = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        names.clear();
                    }
                    if ident == "async" || ident == "await" {
                        self.async_lines.push(ident.span().start().line);
                    }
                    names.push(name(&ident));
                    self.add(names.clone(), ident.span());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    names.clear();
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
    }
}

/// Visits what is compiled outside of tests.
impl<'ast> Visit<'ast> for Code {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let is_for_tests = matches!(item, ImplItem::Fn(function) if function.attrs.iter().any(is_test));
        if !is_for_tests {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let content = module.content.as_ref().map(|(_, items)| {
            let mut code = Self::default();
            for item in items {
                code.visit_item(item);
            }
            code
        });
        self.modules.push((name(&module.ident), content));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let names = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        if let Some(last) = path.segments.last() {
            self.add(names, last.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.scan(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        let keyword = signature.asyncness.as_ref();
        self.async_lines
            .extend(keyword.map(|keyword| keyword.span.start().line));
        visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, block: &'ast ExprAsync) {
        self.async_lines.push(block.async_token.span.start().line);
        visit::visit_expr_async(self, block);
    }

    fn visit_expr_await(&mut self, wait: &'ast ExprAwait) {
        self.async_lines.push(wait.await_token.span.start().line);
        visit::visit_expr_await(self, wait);
    }
}

fn name(ident: &Ident) -> String {
    ident.unraw().to_string()
}

/// Returns whether `attribute` is `#[cfg(test)]` or `#[test]`.
fn is_test(attribute: &Attribute) -> bool {
    let is_cfg = attribute.path().is_ident("cfg");
    let condition = attribute.parse_args::<Ident>();
    attribute.path().is_ident("test") || is_cfg && condition.is_ok_and(|condition| condition == "test")
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
