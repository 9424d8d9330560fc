//! Lookup of the disk that an operator names.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use flowstone_block::{Error, lock};
use flowstone_control::{DiskWord, Refused};
use flowstone_host::real_path;

use super::Disks;
use crate::disk::Disk;
use crate::image_probe::PATIENCE;

impl Disks {
    /// Returns the disk of this name, or with this image path. An ambiguous word is refused: a disk
    /// grown by mistake cannot be shrunk again.
    pub fn find(&self, what: &str, disk: &DiskWord) -> Result<Arc<Disk>, Refused> {
        let what = format!("{what} {}", disk.name);
        let name = &*disk.name;
        let path = disk.path.as_deref().unwrap_or(Path::new(name));
        let (served, is_opening) = {
            let table = lock(&self.table);
            let is_opening = table.opening().any(|opening| opening == name);
            (table.serving().cloned().collect::<Vec<_>>(), is_opening)
        };
        // Known names and paths first, before a file system is accessed: that of another disk may
        // hang.
        let called = |path: &Path| {
            let mut called = served.iter().filter(|disk| disk.is_called(name, path));
            (called.next().map(Arc::clone), called.next())
        };
        let found = match called(path) {
            (None, _) if !is_opening => match real_path(path, PATIENCE) {
                Ok(path) => called(&path),
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(Error::busy(what, error, "give the name of the disk").into());
                }
                Err(_) => (None, None),
            },
            found => found,
        };
        match found {
            (Some(disk), None) => Ok(disk),
            (None, _) if is_opening => {
                Err(Error::busy(what, "it is being opened", "try again later").into())
            }
            (None, _) => {
                let advice = "see `flowstone stats` for the names";
                Err(Refused::unknown(Error::invalid(what, "no disk is called that", advice)))
            }
            _ => {
                let advice = "give the whole path of the image";
                Err(Error::invalid(what, "two disks are called that", advice).into())
            }
        }
    }
}
