//! The format of an image: given by the operator or by the file's name, never by bytes that a guest
//! can write (a guest could otherwise turn its raw disk into an image that names host files).

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use flowstone_block::{Error, Result, named};

named! {
    /// A disk image format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Format {
        /// The disk's sectors in LBA order, in a sparse file or on a block device.
        Raw = "raw",
        /// Clusters and the tables that map them, as QEMU specifies.
        Qcow2 = "qcow2",
        /// Writes in order of arrival, and a map from LBA to address.
        Log = "log",
    }
}

impl Format {
    /// Returns the requested format, or else the one that the file's extension implies.
    pub fn choose(asked: Option<Self>, path: &Path) -> Result<Self> {
        let told = || match path.extension().and_then(|extension| extension.to_str()) {
            Some("raw" | "img") => Some(Self::Raw),
            Some("qcow2") => Some(Self::Qcow2),
            Some("flow") => Some(Self::Log),
            _ => None,
        };
        asked.or_else(told).ok_or_else(|| {
            Error::invalid(
                path.display().to_string(),
                "its name does not tell the image format",
                "add --format raw, qcow2 or log, or name the file .raw, .img, .qcow2 or .flow",
            )
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            format!("`{text}` is not an image format of this version; use raw, qcow2 or log")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_format_unless_one_is_given() {
        assert_eq!(Format::choose(None, Path::new("a/b.raw")).unwrap(), Format::Raw);
        assert_eq!(Format::choose(None, Path::new("b.qcow2")).unwrap(), Format::Qcow2);
        assert_eq!(Format::choose(None, Path::new("b.flow")).unwrap(), Format::Log);
        assert_eq!(Format::choose(None, Path::new("b.img")).unwrap(), Format::Raw);
        assert_eq!(Format::choose(Some(Format::Raw), Path::new("/dev/sda")).unwrap(), Format::Raw);
        assert!(Format::choose(None, Path::new("disk")).is_err());
        assert!(Format::choose(None, Path::new("disk.vmdk")).is_err());
        assert!("vmdk".parse::<Format>().is_err());
    }
}
