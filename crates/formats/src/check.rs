//! Checks an image of any format.

use std::path::Path;

use flowstone_block::Result;
use flowstone_fileio::{Access, LockPatience, OpenOptions};

use flowstone_image::{CheckOptions, CheckProgress, CheckReport, Format};
use {flowstone_log as log, flowstone_qcow2 as qcow2, flowstone_raw as raw};

/// Checks the image at `path`, which must not be written meanwhile; a repair requires that it is
/// not in use. Waits up to `lock_patience` for a lock. Also checks images too damaged to open.
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
            let is_device = crate::create::is_block_device(path);
            let memory = (!is_device).then(|| qcow2::Place::of(path));
            qcow2::check(&path.display().to_string(), &*file, memory, options, progress)
        }
        Format::Log => {
            let name = path.display().to_string();
            // A block device is fully "allocated", so leaks cannot be told from its allocation.
            let tells_space = !crate::create::is_block_device(path);
            if options.repair {
                log::repair(&name, file, options.data, tells_space, progress)
            } else {
                log::check(&name, &*file, options.data, tells_space, progress)
            }
        }
    }
}
