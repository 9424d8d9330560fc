//! The erase unit of a drive, which determines the segment size. A drive has to copy data of an
//! erase block that several segments share when one of them dies; of a segment of several erase
//! blocks only the two at its ends are shared.

use std::ops::RangeInclusive;

use flowstone_block::{format_size, named};

/// Erase unit assumed of a drive that reports none: an SSD's erase blocks across all its channels.
const DEFAULT_BYTES: u64 = 32 << 20;
/// Valid sizes of an erase unit, a multiple of 4 KiB.
pub const ERASE_UNIT_BYTES: RangeInclusive<u64> = 4096..=1 << 30;
/// Minimum erase units per segment, if the disk is large enough.
const UNITS_PER_SEGMENT: u64 = 4;

named! {
    /// Source of an erase unit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum UnitSource {
        /// Given by the operator.
        Option = "option",
        /// Reported by the drive.
        Device = "device",
        /// Assumed.
        Default = "default",
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EraseUnit {
    /// Size in bytes.
    pub bytes: u64,
    /// Source of the size.
    pub source: UnitSource,
}

impl EraseUnit {
    /// Chooses the given unit, else the one that the drive reports, else the default.
    pub fn choose(asked: Option<u64>, device: Option<u64>) -> Self {
        let of = |source| move |bytes| Self { bytes, source };
        let known = asked.map(of(UnitSource::Option)).or(device.map(of(UnitSource::Device)));
        known.unwrap_or(Self { bytes: DEFAULT_BYTES, source: UnitSource::Default })
    }

    /// Returns the bytes of a segment of enough erase units: a power of two.
    pub const fn segment_bytes(&self) -> u64 {
        (UNITS_PER_SEGMENT * self.bytes).next_power_of_two()
    }

    /// Returns a warning about segments of fewer erase units.
    pub fn warning(&self, segment_bytes: u64) -> Option<String> {
        let (segment, unit) = (format_size(segment_bytes), format_size(self.bytes));
        let known = if self.source == UnitSource::Default { " (assumed)" } else { "" };
        (segment_bytes < UNITS_PER_SEGMENT * self.bytes).then(|| {
            format!(
                "segments of {segment} hold less than four of the drive's erase units of \
                 {unit}{known}; such a drive copies more for this image than for a raw one with \
                 TRIM: docs/evidence/wear.md says how much"
            )
        })
    }

    /// Encodes the unit for the superblock: the size in 4 KiB blocks, and its source in the high
    /// half; 0 if unknown.
    pub fn encode(unit: Option<Self>) -> u64 {
        let Some(Self { bytes, source }) = unit else { return 0 };
        let source = match source {
            UnitSource::Option => 1,
            UnitSource::Device => 2,
            UnitSource::Default => 3,
        };
        (bytes / 4096) | (source << 32)
    }

    /// Decodes the superblock field; `None` for a source that a later version has added.
    pub fn decode(word: u64) -> Option<Self> {
        let source = match word >> 32 {
            1 => UnitSource::Option,
            2 => UnitSource::Device,
            3 => UnitSource::Default,
            _ => return None,
        };
        let blocks = word & u64::from(u32::MAX);
        (blocks > 0).then_some(Self { bytes: blocks * 4096, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_was_asked_for_wins_over_what_the_drive_says() {
        let chosen = |asked, device| {
            let unit = EraseUnit::choose(asked, device);
            (unit.bytes, unit.source)
        };
        assert_eq!(chosen(Some(MIB), Some(4 * MIB)), (MIB, UnitSource::Option));
        assert_eq!(chosen(None, Some(4 * MIB)), (4 * MIB, UnitSource::Device));
        assert_eq!(chosen(None, None), (32 * MIB, UnitSource::Default));
    }

    #[test]
    fn it_comes_back_from_the_superblock() {
        for source in [UnitSource::Option, UnitSource::Device, UnitSource::Default] {
            let unit = Some(EraseUnit { bytes: 24 * MIB, source });
            assert_eq!(EraseUnit::decode(EraseUnit::encode(unit)), unit);
        }
        assert_eq!(EraseUnit::encode(None), 0);
        assert_eq!([0, 1, 1 << 32, 1 | 9 << 32].map(EraseUnit::decode), [None; 4]);
    }

    #[test]
    fn a_segment_of_fewer_than_four_is_warned_of() {
        let unit = EraseUnit::choose(Some(24 * MIB), None);
        assert_eq!(unit.segment_bytes(), 128 * MIB);
        assert_eq!(unit.warning(128 * MIB), None);
        let warning = unit.warning(64 * MIB).expect("too small");
        assert!(warning.contains("64 MiB") && warning.contains("24 MiB"), "{warning}");
    }
}
