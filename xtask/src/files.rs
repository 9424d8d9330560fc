//! The files of the tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the path relative to the top of the tree.
pub fn relative(workspace: &Path, path: &Path) -> String {
    path.strip_prefix(workspace).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns the texts of all documents, by their paths from the top of the tree.
pub fn documents(workspace: &Path) -> Result<BTreeMap<String, String>> {
    let read = |path: PathBuf| Ok((relative(workspace, &path), fs::read_to_string(&path)?));
    files(workspace, "md")?.into_iter().map(read).collect()
}

/// Returns all files below `folder` with this extension, sorted; without build output.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = all_files(folder)?;
    files.retain(|path| path.extension().is_some_and(|it| it == extension));
    Ok(files)
}

/// Returns all files below `folder`, sorted; without build output.
pub fn all_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(all_files(&path)?);
        } else if path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}
