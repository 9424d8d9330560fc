//! A disk with programs of the host, for guests that need more than their initramfs contains.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Size of the image, which is sparse.
const IMAGE_BYTES: u64 = 512 << 20;

/// Makes an image in `folder` with a file system of these files.
pub fn tools_image(folder: &Path, files: &[(&str, PathBuf)]) -> Result<PathBuf> {
    let (root, image) = (folder.join("bin"), folder.join("tools.raw"));
    fs::create_dir(&root)?;
    for (name, file) in files {
        fs::copy(file, root.join(name)).with_context(|| file.display().to_string())?;
    }
    File::create(&image)?.set_len(IMAGE_BYTES)?;
    host(Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).args([&root, &image]))?;
    Ok(image)
}

/// Runs a host command that must succeed and returns its output.
pub fn host(command: &mut Command) -> Result<String> {
    // In Debian the file system tools are not in a user's search path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = command.env("PATH", path).output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    Ok(text)
}
