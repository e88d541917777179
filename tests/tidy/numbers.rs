//! Measured numbers: BENCHMARKS.md has them, and other pages repeat them.

use anyhow::{Context, Result, ensure};

use crate::files::texts;

/// The pages whose tables name rows of BENCHMARKS.md.
const PAGES: [&str; 2] = ["README.md", "docs/comparison.md"];

/// Returns the row that a line of a table names at the end of its first cell, and the other cells.
fn named_row(line: &str) -> Option<(&str, &str)> {
    let (first, others) = line.strip_prefix("| ")?.split_once(" | ")?;
    let (_, row) = first.strip_suffix("`)")?.rsplit_once("(`")?;
    Some((row, others))
}

/// Returns the words of a text that are numbers.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '.');
    words.filter(|word| word.parse::<f64>().is_ok())
}

#[test]
fn other_pages_have_only_the_numbers_of_the_bench() -> Result<()> {
    let measured = texts(&["BENCHMARKS.md"])?;
    let (_, measured) = measured.first().context("BENCHMARKS.md does not exist")?;
    let mut checked = 0;
    for (page, text) in texts(&PAGES)? {
        for line in text.lines() {
            let Some((row, cells)) = named_row(line) else { continue };
            let start = format!("| `{row}` |");
            let measured: Vec<_> = measured.lines().filter(|line| line.starts_with(&start)).collect();
            let page = page.display();
            ensure!(!measured.is_empty(), "{page} names `{row}`, which BENCHMARKS.md lacks");
            for number in numbers(cells) {
                ensure!(
                    measured.iter().any(|line| numbers(line).any(|found| found == number)),
                    "{page} says {number} for `{row}`, which BENCHMARKS.md does not: {line}"
                );
                checked += 1;
            }
        }
    }
    ensure!(checked > 0, "no number was checked");
    Ok(())
}
