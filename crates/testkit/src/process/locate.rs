//! Finds the flowstone binary that belongs to the running test.
//!
//! `FLOWSTONE_BIN` takes precedence. Otherwise it is searched for beside the test's own profile
//! directory: `target/debug/deps/some-test` finds `target/debug/flowstone`, then
//! `target/release/flowstone`. It is not built here; a test that needs it fails with a message if
//! it is missing.

use std::env;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const NAME: &str = "flowstone";

/// Returns the path of the flowstone binary.
pub fn flowstone_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("FLOWSTONE_BIN") {
        return existing(PathBuf::from(path), "FLOWSTONE_BIN names");
    }
    let this = env::current_exe().map_err(|e| Error::io("find the running executable", e))?;
    let found = candidates(&this).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        let place = this.parent().unwrap_or(&this).display();
        Error::Daemon(format!("no `{NAME}` near {place}: build it or set FLOWSTONE_BIN"))
    })
}

fn existing(path: PathBuf, who: &str) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Daemon(format!("{who} {}, which is not a file", path.display())))
}

/// Returns the paths to try, best first, for an executable at `this`.
fn candidates(this: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for profile in this.ancestors().skip(1).take(2) {
        places.push(profile.join(NAME));
        if let Some(target) = profile.parent() {
            places.extend(["release", "debug"].map(|name| target.join(name).join(NAME)));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_profile_comes_before_the_other_one() {
        let places = candidates(Path::new("/t/debug/deps/it-123"));
        let at = |path: &str| places.iter().position(|p| p == Path::new(path)).unwrap();
        assert!(at("/t/debug/flowstone") < at("/t/release/flowstone"));
    }

    #[test]
    fn a_binary_beside_the_executable_is_found() {
        let places = candidates(Path::new("/t/release/flowstone-bench"));
        assert_eq!(places[0], Path::new("/t/release/flowstone"));
    }
}
