//! What an image says about itself, while somebody else may be writing it.

use flowstone_block::Result;
use flowstone_fileio::FileIo;

use super::open::read_header;

/// More about a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qcow2Info {
    /// Size of the disk.
    pub virtual_bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// The name of its backing file, as it stands in the image.
    pub backing: Option<String>,
    /// The format of the backing file, if the image says so.
    pub backing_format: Option<String>,
    /// Internal snapshots, which are not served.
    pub snapshots: u32,
    /// Whether some software has marked it as damaged.
    pub corrupt: bool,
}

/// Reads the header; follows no name in it.
pub fn inspect(name: &str, file: &dyn FileIo) -> Result<Qcow2Info> {
    let header = read_header(name, file)?;
    let (backing, backing_format) =
        header.backing.map_or((None, None), |backing| (Some(backing.name), backing.format));
    Ok(Qcow2Info {
        virtual_bytes: header.disk_bytes,
        cluster_bytes: header.shape.cluster_bytes(),
        version: header.shape.version,
        backing,
        backing_format,
        snapshots: header.snapshots,
        corrupt: header.corrupt,
    })
}
