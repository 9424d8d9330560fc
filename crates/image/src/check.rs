//! Checking an image, whatever its format.

use std::path::Path;

use flowstone_block::Result;
use flowstone_fileio::{Access, LockPatience, OpenOptions};

use crate::report::{CheckOptions, CheckProgress, CheckReport};
use crate::{Format, log, qcow2, raw};

/// Checks the image at `path`, which must not be written meanwhile; for a repair it must not be in
/// use. Waits for a lock for `lock_patience`. Also checks images that are too damaged to be opened.
pub fn check(
    path: &Path,
    format: Format,
    options: CheckOptions,
    lock_patience: LockPatience,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    let access = if options.repair { Access::Write } else { Access::Read };
    let file = Box::new(OpenOptions { lock_patience, ..OpenOptions::new(access) }.open(path)?);
    match format {
        Format::Raw => raw::check(path, file, access, progress),
        Format::Qcow2 => {
            let memory = match crate::create::is_block_device(path) {
                true => qcow2::Memory::None,
                false => qcow2::Memory::Beside(qcow2::Place::of(path)),
            };
            qcow2::check(&path.display().to_string(), &*file, memory, options, progress)
        }
        Format::Log => {
            let name = path.display().to_string();
            // All of a device is "allocated", so there is nothing to tell leaks by.
            let tells_space = !crate::create::is_block_device(path);
            if options.repair {
                log::repair(&name, file, options.data, tells_space, progress)
            } else {
                log::check(&name, &*file, options.data, tells_space, progress)
            }
        }
    }
}
