//! LVM2: logical volumes whose extents are consecutive on this disk ("linear").
//!
//! Source: LVM2, lib/format_text/layout.h and the output of `vgcfgbackup`. A physical volume has a
//! label, a header with the place of its metadata area, and in that the text of the whole volume
//! group. Other kinds of volumes (striped over several disks, mirrors, thin, cached) cannot be
//! mapped from here: their content counts as data.

mod text;

use self::text::Node;
use crate::fields::{le32, le64};
use crate::layout::Builder;
use crate::volume::{Piece, Scan, Volume};

const SECTOR_BYTES: u64 = 512;
/// The label is in one of the first four sectors.
const LABEL_SECTORS: u64 = 4;
const LABEL_MAGIC: &[u8] = b"LABELONE";
const LABEL_TYPE: &[u8] = b"LVM2 001";
const UUID_BYTES: usize = 32;
/// Magic and version follow the checksum of a metadata area's header.
const AREA_MAGIC: &[u8] = b"\x20LVM2\x20x[5A%r0N*>";
const AREA_HEADER_BYTES: u64 = 512;
/// The area is no longer used by its group (`pvchange --metadataignore y`): its text is old.
const AREA_IGNORED: u32 = 1;
/// Largest text. The text wraps around at the end of its area, to behind the header.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Flag of volumes for users. Others are parts of these: the data of a thin pool, a leg of a
/// mirror.
const VISIBLE: &str = "VISIBLE";

/// A logical volume.
#[derive(Debug)]
pub struct LogicalVolume {
    pub name: String,
    pub volume: Volume,
}

/// Offsets in a physical volume.
struct PhysicalVolume {
    uuid: [u8; UUID_BYTES],
    area_start: u64,
    area_bytes: u64,
}

/// Returns the logical volumes on `disk`, a disk or a partition; `None` if it is not a physical
/// volume. Adds its definers to `layout`.
pub fn read(
    disk: &Volume,
    scan: &mut Scan<'_>,
    layout: &mut Builder,
) -> Option<Vec<LogicalVolume>> {
    let physical =
        (0..LABEL_SECTORS).find_map(|sector| label(disk, scan, sector * SECTOR_BYTES))?;
    layout.definer(disk, 0..LABEL_SECTORS * SECTOR_BYTES);
    let area = physical.area_start;
    layout.definer(disk, area..area.saturating_add(AREA_HEADER_BYTES));
    // A physical volume without a readable group is still one.
    let text = group_text(disk, scan, &physical).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    Some(text::parse(&text).and_then(|root| volumes(&root, &physical, disk)).unwrap_or_default())
}

fn label(disk: &Volume, scan: &mut Scan<'_>, at: u64) -> Option<PhysicalVolume> {
    let sector: [u8; 512] = disk.read_array(scan, at)?;
    if &sector[..8] != LABEL_MAGIC || &sector[24..32] != LABEL_TYPE {
        return None;
    }
    let header = sector.get(le32(&sector, 20) as usize..)?;
    let uuid = header.get(..UUID_BYTES)?.try_into().ok()?;
    // Device size, then data areas and metadata areas: two lists of (offset, size), terminated by
    // zeroes.
    let mut places = header.get(UUID_BYTES + 8..)?.chunks_exact(16);
    places.by_ref().find(|place| place.iter().all(|byte| *byte == 0))?;
    let area = places.next()?;
    Some(PhysicalVolume { uuid, area_start: le64(area, 0), area_bytes: le64(area, 8) })
}

fn group_text(disk: &Volume, scan: &mut Scan<'_>, physical: &PhysicalVolume) -> Option<Vec<u8>> {
    let PhysicalVolume { area_start, area_bytes, .. } = *physical;
    let header: [u8; 64] = disk.read_array(scan, area_start)?;
    if &header[4..20] != AREA_MAGIC || le32(&header, 60) & AREA_IGNORED != 0 {
        return None;
    }
    let (offset, bytes) = (le64(&header, 40), le64(&header, 48));
    if bytes > TEXT_BYTES_MAX || !(AREA_HEADER_BYTES..area_bytes).contains(&offset) {
        return None;
    }
    let mut text = vec![0; bytes as usize];
    let (to_end, wrapped) = text.split_at_mut(bytes.min(area_bytes - offset) as usize);
    disk.read(scan, area_start.checked_add(offset)?, to_end)?;
    disk.read(scan, area_start.checked_add(AREA_HEADER_BYTES)?, wrapped)?;
    Some(text)
}

fn volumes(
    root: &Node<'_>,
    physical: &PhysicalVolume,
    disk: &Volume,
) -> Option<Vec<LogicalVolume>> {
    let group = root.sections().find_map(|(_, node)| node.get("extent_size").map(|_| node))?;
    let extent_bytes = group.get("extent_size")?.number()?.checked_mul(SECTOR_BYTES)?;
    let (mine, node) = group.get("physical_volumes")?.sections().find(|(_, node)| {
        let id = node.get("id").and_then(Node::text).unwrap_or_default();
        id.bytes().filter(|byte| *byte != b'-').eq(physical.uuid)
    })?;
    let extents_at = node.get("pe_start")?.number()?.checked_mul(SECTOR_BYTES)?;
    let linear = |(name, node): (&str, &Node<'_>)| {
        let mut status = node.get("status")?.list()?.iter();
        if !status.any(|it| it.text() == Some(VISIBLE)) {
            return None;
        }
        let segments = node.sections().filter(|(name, _)| name.starts_with("segment"));
        let pieces = segments.filter_map(|(_, segment)| {
            let stripes = segment.get("stripes")?.list()?;
            let [on, first] = stripes else { return None };
            if segment.get("type")?.text()? != "striped" || on.text()? != mine {
                return None;
            }
            let bytes = |extents: &Node<'_>| extents.number()?.checked_mul(extent_bytes);
            Some(Piece {
                start: bytes(segment.get("start_extent")?)?,
                disk: extents_at.checked_add(bytes(first)?)?,
                bytes: bytes(segment.get("extent_count")?)?,
            })
        });
        let volume = Volume::new(pieces).within(disk);
        let name = name.replace(char::is_control, "?");
        (volume.bytes() > 0).then_some(LogicalVolume { name, volume })
    };
    Some(group.get("logical_volumes")?.sections().filter_map(linear).collect())
}
