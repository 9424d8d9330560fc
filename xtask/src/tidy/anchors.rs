//! Links in documents lead to existing headings: `[text](other.md#heading)`.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the links to headings that do not exist.
pub fn check(documents: &BTreeMap<String, String>) -> Vec<String> {
    let anchors: BTreeMap<&String, BTreeSet<String>> =
        documents.iter().map(|(name, text)| (name, anchors(text))).collect();
    let mut complaints = Vec::new();
    for (name, text) in documents {
        for (at, line) in text.lines().enumerate() {
            for (target, anchor) in links(line) {
                let file = if target.is_empty() { name.clone() } else { beside(name, target) };
                let known = anchors.get(&file).is_some_and(|known| known.contains(anchor));
                if !known {
                    let line = at + 1;
                    complaints.push(format!("{name}:{line}: there is no `{target}#{anchor}`"));
                }
            }
        }
    }
    complaints
}

/// Returns the links of a line that name a heading of a document in the tree.
fn links(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let headings = targets.filter_map(|target| target.split_once('#'));
    headings.filter(|(file, _)| !file.contains("://") && (file.is_empty() || file.ends_with(".md")))
}

/// Resolves the path `target`, as written in the document `name`.
fn beside(name: &str, target: &str) -> String {
    let mut folders: Vec<&str> = name.split('/').collect();
    folders.pop();
    for word in target.split('/') {
        match word {
            ".." => drop(folders.pop()),
            "." => {}
            word => folders.push(word),
        }
    }
    folders.join("/")
}

/// Returns the anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut in_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_code && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().to_lowercase();
            let kept = kept.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            found.insert(kept.collect::<String>().replace(' ', "-"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_heading_that_is_not_there_is_refused() {
        let text = "# A cache: `--cache SIZE`\n[here](#a-cache---cache-size) [gone](#a-cache)\n";
        let other = "[there](a.md#a-cache---cache-size)\n[gone](../docs/a.md#b)\n[web](https://x.org/a.md#b)\n";
        let documents = [("docs/a.md", text), ("docs/b.md", other)];
        let documents = documents.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let said = check(&documents.into_iter().collect());
        let expected =
            ["docs/a.md:2: there is no `#a-cache`", "docs/b.md:2: there is no `../docs/a.md#b`"];
        assert_eq!(said, expected);
    }
}
