//! The header: big-endian numbers at the start of the file, then extensions, then the name of the
//! backing file, all within the first cluster. Its fields are validated here, once.

use flowstone_block::Error;
use flowstone_fileio::FileOffset;
use flowstone_image::Flaw;

use super::shape::{CLUSTER_BITS, Shape};

/// Bytes that suffice to read a header with its extensions and the backing file name.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

const MAGIC: u32 = 0x5146_49fb;
const V2_BYTES: usize = 72;
const V3_BYTES: usize = 104;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const END_OF_EXTENSIONS: u32 = 0;
/// As in QEMU: longer names are refused.
const BACKING_NAME_BYTES_MAX: usize = 1023;
/// As in QEMU. With the smallest clusters that is a disk of 128 GiB.
const L1_ENTRIES_MAX: u64 = (32 << 20) / 8;
/// As in QEMU.
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// File offsets are signed, and L2 entries cannot name larger files.
const DISK_BYTES_MAX: u64 = 1 << 56;

/// Offsets of the header fields that change: all in its first sector.
const SIZE_AT: usize = 24;
const L1_ENTRIES_AT: usize = 36;
const L1_OFFSET_AT: usize = 40;
const REFCOUNT_TABLE_AT: usize = 48;
const REFCOUNT_TABLE_CLUSTERS_AT: usize = 56;
const AUTOCLEAR_AT: usize = 88;

/// A header that has been validated, as far as is possible without the rest of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub shape: Shape,
    pub disk_bytes: u64,
    pub l1_offset: u64,
    pub l1_entries: u64,
    pub refcount_table_offset: u64,
    pub refcount_table_clusters: u64,
    pub snapshots: u32,
    pub backing: Option<BackingName>,
    /// Features that software which does not know them must clear when it writes the image; our
    /// [`Mark`](super::mark::Mark) is one of them.
    pub autoclear: u64,
    /// Marked as damaged by some software.
    pub corrupt: bool,
}

/// Why a header is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Not a qcow2 header.
    Foreign,
    /// Requires features that this version lacks.
    Unsupported(String),
    /// Invalid: no software writes such a header.
    Damaged(Flaw),
}

fn damaged(what: String) -> HeaderError {
    HeaderError::Damaged(Flaw::new(what).at(FileOffset::new(0)))
}

impl HeaderError {
    /// Converts it to an error about the image `name`.
    pub fn explain(self, name: &str) -> Error {
        match self {
            Self::Foreign => {
                let why = "it does not begin with a qcow2 header";
                Error::invalid(name, why, "give the right file or --format")
            }
            Self::Unsupported(why) => {
                Error::unsupported(name, why, "convert it with qemu-img, or use a newer version")
            }
            Self::Damaged(flaw) => Error::damaged(flaw.in_image(name), "restore it from a backup"),
        }
    }
}

/// Name and format of the backing file, as stored in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingName {
    /// Name, relative to the folder of the image.
    pub name: String,
    /// Name of its format.
    pub format: Option<String>,
}

impl Header {
    /// Decodes the header at the start of `bytes`, or returns why the image cannot be used.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() < V3_BYTES || u32_at(bytes, 0) != MAGIC {
            return Err(HeaderError::Foreign);
        }
        let version = u32_at(bytes, 4);
        if !(2..=3).contains(&version) {
            let why = format!("it has version {version} of the qcow2 format");
            return Err(HeaderError::Unsupported(why));
        }
        let cluster_bits = u32_at(bytes, 20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(damaged(format!(
                "its clusters of 2^{cluster_bits} bytes are not possible"
            )));
        }
        if u32_at(bytes, 32) != 0 {
            let why = "it is encrypted, which this version cannot read";
            return Err(HeaderError::Unsupported(why.into()));
        }
        let (incompatible, autoclear, refcount_order, header_bytes) = match version {
            2 => (0, 0, 4, V2_BYTES),
            _ => (
                u64_at(bytes, 72),
                u64_at(bytes, AUTOCLEAR_AT),
                u32_at(bytes, 96),
                u32_at(bytes, 100) as usize,
            ),
        };
        check_features(incompatible).map_err(HeaderError::Unsupported)?;
        if refcount_order > 6 {
            let why = format!("its refcounts of 2^{refcount_order} bits are not possible");
            return Err(damaged(why));
        }
        let shape = Shape { version, cluster_bits, refcount_order };
        let header = Self {
            shape,
            disk_bytes: u64_at(bytes, SIZE_AT),
            l1_offset: u64_at(bytes, L1_OFFSET_AT),
            l1_entries: u64::from(u32_at(bytes, L1_ENTRIES_AT)),
            refcount_table_offset: u64_at(bytes, REFCOUNT_TABLE_AT),
            refcount_table_clusters: u64::from(u32_at(bytes, REFCOUNT_TABLE_CLUSTERS_AT)),
            snapshots: u32_at(bytes, 60),
            backing: backing_name(bytes, shape, header_bytes).map_err(damaged)?,
            autoclear,
            corrupt: incompatible & CORRUPT != 0,
        };
        header.check_tables().map_err(damaged)?;
        Ok(header)
    }

    fn check_tables(&self) -> Result<(), String> {
        let aligned = |offset: u64| offset.is_multiple_of(self.shape.cluster_bytes());
        let needed = self.shape.l1_entries(self.disk_bytes);
        if self.disk_bytes > DISK_BYTES_MAX || self.l1_entries > L1_ENTRIES_MAX {
            return Err("its L1 table is larger than any image needs".into());
        }
        if self.l1_entries < needed {
            return Err("its L1 table is too small for its disk".into());
        }
        let table_bytes = self.refcount_table_clusters.saturating_mul(self.shape.cluster_bytes());
        if table_bytes > REFCOUNT_TABLE_BYTES_MAX.max(self.shape.cluster_bytes()) {
            return Err("its refcount table is larger than any image needs".into());
        }
        if self.refcount_table_clusters == 0 {
            return Err("it has no refcount table".into());
        }
        let ends = [
            self.l1_offset.checked_add(self.l1_entries * 8),
            self.refcount_table_offset.checked_add(table_bytes),
        ];
        if ends.iter().any(|end| end.is_none_or(|end| end > DISK_BYTES_MAX)) {
            return Err("a table lies past the end of any file".into());
        }
        if !aligned(self.l1_offset) || !aligned(self.refcount_table_offset) {
            return Err("a table does not begin where a cluster does".into());
        }
        let in_header = |offset: u64| offset == 0;
        if (self.l1_entries > 0 && in_header(self.l1_offset))
            || in_header(self.refcount_table_offset)
        {
            return Err("a table lies over the header".into());
        }
        Ok(())
    }

    /// Encodes the header as the first cluster of a new image of version 3.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.shape.cluster_bytes() as usize];
        put_u32(&mut bytes, 0, MAGIC);
        put_u32(&mut bytes, 4, 3);
        put_u32(&mut bytes, 20, self.shape.cluster_bits);
        put_u32(&mut bytes, 96, self.shape.refcount_order);
        put_u32(&mut bytes, 100, V3_BYTES as u32);
        self.update(&mut bytes);
        let mut at = V3_BYTES;
        if let Some(backing) = &self.backing {
            if let Some(format) = &backing.format {
                put_u32(&mut bytes, at, BACKING_FORMAT);
                put_u32(&mut bytes, at + 4, format.len() as u32);
                bytes[at + 8..at + 8 + format.len()].copy_from_slice(format.as_bytes());
                at += 8 + format.len().next_multiple_of(8);
            }
            // After the end mark, which is eight zeroes.
            at += 8;
            put_u64(&mut bytes, 8, at as u64);
            put_u32(&mut bytes, 16, backing.name.len() as u32);
            bytes[at..at + backing.name.len()].copy_from_slice(backing.name.as_bytes());
        }
        bytes
    }

    /// Returns whether a backing file name fits behind the header.
    pub fn has_room_for(shape: Shape, name: &str) -> bool {
        name.len() <= BACKING_NAME_BYTES_MAX
            && V3_BYTES + 24 + name.len() <= shape.cluster_bytes() as usize
    }

    /// Writes the fields that may change into the first sector of a header.
    pub fn update(&self, sector: &mut [u8]) {
        put_u64(sector, SIZE_AT, self.disk_bytes);
        put_u32(sector, L1_ENTRIES_AT, self.l1_entries as u32);
        put_u64(sector, L1_OFFSET_AT, self.l1_offset);
        put_u64(sector, REFCOUNT_TABLE_AT, self.refcount_table_offset);
        put_u32(sector, REFCOUNT_TABLE_CLUSTERS_AT, self.refcount_table_clusters as u32);
        if self.shape.version >= 3 {
            put_u64(sector, AUTOCLEAR_AT, self.autoclear);
        }
    }
}

const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;

/// Refuses, by name, features that would be misinterpreted.
fn check_features(incompatible: u64) -> Result<(), String> {
    const REFUSED: [(u64, &str); 4] = [
        (DIRTY, "it was not closed in order and has lazy refcounts, which are out of date"),
        (1 << 2, "its data is in another file, which this version does not follow"),
        (1 << 3, "its compressed clusters are not deflated, which this version cannot read"),
        (1 << 4, "it has extended L2 entries, which this version cannot read"),
    ];
    if let Some((_, why)) = REFUSED.iter().find(|(bit, _)| incompatible & bit != 0) {
        return Err((*why).into());
    }
    match incompatible & !CORRUPT {
        0 => Ok(()),
        unknown => Err(format!("it has features {unknown:#x} that this version does not know")),
    }
}

fn backing_name(
    bytes: &[u8],
    shape: Shape,
    header_bytes: usize,
) -> Result<Option<BackingName>, String> {
    let area = &bytes[..bytes.len().min(shape.cluster_bytes() as usize)];
    let at = u64_at(bytes, 8);
    let format = backing_format(area, header_bytes)?;
    if at == 0 {
        return Ok(None);
    }
    let length = u32_at(bytes, 16) as usize;
    if length > BACKING_NAME_BYTES_MAX {
        return Err("the name of its backing file is too long".into());
    }
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let name = area
        .get(start..start.saturating_add(length))
        .ok_or("the name of its backing file lies outside of the header")?;
    let name = std::str::from_utf8(name)
        .map_err(|_| "the name of its backing file is not valid text")?
        .to_owned();
    if name.is_empty() {
        return Ok(None);
    }
    Ok(Some(BackingName { name, format }))
}

fn backing_format(area: &[u8], header_bytes: usize) -> Result<Option<String>, String> {
    let broken = || "its header extensions are damaged".to_owned();
    if !header_bytes.is_multiple_of(8) || header_bytes < V2_BYTES {
        return Err(broken());
    }
    let mut rest = area.get(header_bytes..).ok_or_else(broken)?;
    let mut format = None;
    // Each extension has a type and a length, and takes at least these eight bytes.
    while rest.len() >= 8 && u32_at(rest, 0) != END_OF_EXTENSIONS {
        let length = u32_at(rest, 4) as usize;
        let data = rest.get(8..8usize.saturating_add(length)).ok_or_else(broken)?;
        if u32_at(rest, 0) == BACKING_FORMAT {
            format = Some(String::from_utf8_lossy(data).into_owned());
        }
        let step = 8 + length.next_multiple_of(8);
        rest = rest.get(step..).ok_or_else(broken)?;
    }
    Ok(format)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            shape: Shape { version: 3, cluster_bits: 16, refcount_order: 4 },
            disk_bytes: 1 << 30,
            l1_offset: 3 << 16,
            l1_entries: 2,
            refcount_table_offset: 1 << 16,
            refcount_table_clusters: 1,
            snapshots: 0,
            backing: Some(BackingName { name: "base.raw".into(), format: Some("raw".into()) }),
            autoclear: 0,
            corrupt: false,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn headers_that_would_be_misread_are_refused_by_name() {
        let with = |at: usize, value: u32| {
            let mut bytes = header().encode();
            put_u32(&mut bytes, at, value);
            match Header::decode(&bytes).unwrap_err() {
                HeaderError::Foreign => "does not begin".to_owned(),
                HeaderError::Unsupported(why) => why,
                HeaderError::Damaged(flaw) => flaw.what,
            }
        };
        assert!(with(0, 7).contains("does not begin"));
        assert!(with(4, 4).contains("version 4"));
        assert!(with(20, 8).contains("2^8 bytes"));
        assert!(with(20, 63).contains("2^63 bytes"));
        assert!(with(32, 2).contains("encrypted"));
        assert!(with(76, 1).contains("lazy refcounts"));
        assert!(with(76, 1 << 2).contains("another file"));
        assert!(with(76, 1 << 4).contains("extended L2"));
        assert!(with(76, 1 << 9).contains("0x200"));
        assert!(with(96, 7).contains("refcounts"));
        assert!(with(36, u32::MAX).contains("L1 table is larger"));
        assert!(with(36, 0).contains("too small"));
        assert!(with(56, u32::MAX).contains("refcount table is larger"));
        assert!(with(40, u32::MAX).contains("past the end"));
        assert!(with(44, 0x3_0200).contains("where a cluster does"));
        assert!(with(44, 0).contains("over the header"));
        assert!(with(16, 1024).contains("too long"));
        assert!(with(12, 65_530).contains("outside"));
        assert!(with(100, 9).contains("extensions"));
        assert!(with(108, u32::MAX).contains("extensions"));
        assert!(Header::decode(&[0; 104]).is_err());
        assert!(Header::decode(&[]).is_err());
    }
}
