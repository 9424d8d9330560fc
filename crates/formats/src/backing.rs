//! The backing file of an image. Its name is stored in the image, so the image's creator chose it:
//! it is followed only where the operator allows, and its format is never probed.

use std::path::{Path, PathBuf};

use flowstone_block::{Error, Result};

use flowstone_fileio::Access;
use flowstone_image::Format;
use flowstone_qcow2::BackingName;

use crate::options::ImageOptions;

/// Maximum number of images in a chain, including the first.
pub const CHAIN_MAX: usize = 16;

/// Returns the backing file of the image at `path`, its format, and the options to open it for
/// reading.
pub fn locate(
    path: &Path,
    backing: &BackingName,
    options: &ImageOptions,
) -> Result<(PathBuf, Format, ImageOptions)> {
    let name = path.display().to_string();
    let refuse = |why: String, advice: &'static str| Err(Error::invalid(name.clone(), why, advice));
    let target = match allowed(path, &backing.name, &options.args.backing_dirs) {
        Ok(target) => target,
        Err(Unwanted::Named(why)) => {
            let why = format!("its backing file `{}` {why}", backing.name);
            return refuse(
                why,
                "make sure that you trust the image; change the name with qemu-img rebase",
            );
        }
        Err(Unwanted::Elsewhere(directory)) => {
            let why = format!("its backing file `{}` is in another directory", backing.name);
            let advice = format!("if you trust it, add --backing-dir {}", directory.display());
            return Err(Error::invalid(name, why, advice));
        }
    };
    let format = match backing.format.as_deref().map(str::parse::<Format>) {
        Some(Ok(format @ (Format::Raw | Format::Qcow2))) => format,
        Some(_) => {
            let format = backing.format.as_deref().unwrap_or_default();
            let why = format!("its backing file has the format `{format}`");
            return Err(Error::unsupported(name, why, "use a raw or a qcow2 backing file"));
        }
        None => {
            let why = "it does not say which format its backing file has".to_owned();
            return refuse(why, "record it: qemu-img rebase -u -F FORMAT -b BACKING IMAGE");
        }
    };
    if options.chain_depth + 1 >= CHAIN_MAX {
        let why = format!("its chain of backing files is longer than {CHAIN_MAX}, or a loop");
        return refuse(why, "shorten it with qemu-img rebase");
    }
    let mut file = options.file;
    file.access = Access::Read;
    let below = ImageOptions { file, chain_depth: options.chain_depth + 1, ..options.clone() };
    Ok((target, format, below))
}

/// Why a backing file name is not followed.
#[derive(Debug, PartialEq, Eq)]
pub enum Unwanted {
    Named(&'static str),
    /// This directory is not among the allowed ones.
    Elsewhere(PathBuf),
}

/// Resolves `name` in the image at `path`, if the file may be opened: it is in the directory of the
/// image, in one of `directories`, or below one of these.
pub fn allowed(
    path: &Path,
    name: &str,
    directories: &[PathBuf],
) -> std::result::Result<PathBuf, Unwanted> {
    // `nbd:host`, `json:{…}`: QEMU interprets the part before a colon as a protocol.
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        return Err(Unwanted::Named("is not a plain file name"));
    }
    if name.contains('\0') || name.is_empty() {
        return Err(Unwanted::Named("is not a file name"));
    }
    let missing = Unwanted::Named("does not exist or cannot be reached");
    let Ok(image) = path.canonicalize() else { return Err(missing) };
    let home = image.parent().unwrap_or(Path::new("/"));
    let Ok(target) = home.join(name).canonicalize() else { return Err(missing) };
    let within = |directory: &Path| {
        directory.canonicalize().is_ok_and(|directory| target.starts_with(directory))
    };
    if within(home) || directories.iter().any(|directory| within(directory)) {
        return Ok(target);
    }
    let elsewhere = target.parent().unwrap_or(Path::new("/")).to_path_buf();
    Err(Unwanted::Elsewhere(elsewhere))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_in_allowed_directories_are_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for directory in ["images", "images/below", "other"] {
            std::fs::create_dir(root.join(directory)).unwrap();
        }
        for file in ["images/top.qcow2", "images/base.raw", "images/below/base.raw", "other/x"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink(root.join("other/x"), root.join("images/link")).unwrap();
        let top = root.join("images/top.qcow2");
        let ask = |name: &str| allowed(&top, name, &[]);
        assert_eq!(ask("base.raw"), Ok(root.join("images/base.raw")));
        assert_eq!(ask("./below/base.raw"), Ok(root.join("images/below/base.raw")));
        let elsewhere = Err(Unwanted::Elsewhere(root.join("other")));
        assert_eq!(ask("../other/x"), elsewhere);
        assert_eq!(ask("link"), elsewhere, "a link is what it leads to");
        for name in ["nbd:localhost:10809", "json:{\"driver\":\"file\"}", "file:base.raw", ""] {
            assert!(matches!(ask(name), Err(Unwanted::Named(_))), "{name}");
        }
        assert!(matches!(ask("missing"), Err(Unwanted::Named(_))));
        let others = [root.join("other")];
        assert_eq!(allowed(&top, "../other/x", &others), Ok(root.join("other/x")));
    }
}
