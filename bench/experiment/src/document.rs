//! Updates of generated text between two markers of a document.

use std::path::Path;

use anyhow::{Context, Result};

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` of a document.
pub fn update(path: &Path, name: &str, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let new = splice(&old, name, text).with_context(|| {
        format!("{} has no `{}` before a `{}`", path.display(), begin(name), end(name))
    })?;
    std::fs::write(path, new).with_context(|| format!("write {}", path.display()))
}

fn begin(name: &str) -> String {
    format!("<!-- {name}:begin -->")
}

fn end(name: &str) -> String {
    format!("<!-- {name}:end -->")
}

fn splice(document: &str, name: &str, text: &str) -> Option<String> {
    let after = document.find(&begin(name))? + begin(name).len();
    let until = after + document[after..].find(&end(name))?;
    Some(format!("{}\n\n{text}\n{}", &document[..after], &document[until..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let old =
            "before\n<!-- b:begin -->\nold\n<!-- b:end -->\nafter <!-- a:begin --><!-- a:end -->\n";
        let new = splice(old, "b", "| new |\n").unwrap();
        let wanted = "before\n<!-- b:begin -->\n\n| new |\n\n<!-- b:end -->\nafter <!-- a:begin --><!-- a:end -->\n";
        assert_eq!(new, wanted);
        assert_eq!(splice(&new, "b", "| new |\n").unwrap(), new);
    }

    #[test]
    fn a_document_without_markers_is_left_alone() {
        assert!(splice("no markers", "b", "x").is_none());
        assert!(splice("<!-- b:end --> <!-- b:begin -->", "b", "x").is_none());
        assert!(splice("<!-- c:begin --><!-- c:end -->", "b", "x").is_none());
    }
}
