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
/// Minimum erase units per run of copies: with four a log image programs 2 % less flash than a raw
/// one under zipf writes, with two 14 % more (docs/evidence/wear.md).
const UNITS_PER_RUN: u64 = 4;
/// Most bytes of a run of copies with the default `--copy-memory`.
const RUN_BYTES: u64 = 4 << 20;

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

    /// Returns whether a raw image with TRIM is gentler on such a drive under zipf writes: erase
    /// blocks hold records of guests beside copies, which die at other times. On a drive with write
    /// streams they do only where a segment is shorter than two of them.
    pub fn is_coarse_for(&self, segment_bytes: u64, has_write_streams: bool) -> bool {
        let run_bytes = RUN_BYTES.min(segment_bytes / 2);
        match has_write_streams {
            true => segment_bytes < 2 * self.bytes,
            false => run_bytes < UNITS_PER_RUN * self.bytes,
        }
    }

    /// Returns a warning for a drive on which a raw image is gentler, with the cost.
    pub fn warning(&self, segment_bytes: u64, has_write_streams: bool) -> Option<String> {
        let (segment, unit) = (format_size(segment_bytes), format_size(self.bytes));
        let known = if self.source == UnitSource::Default { ", assumed" } else { "" };
        let times = if segment_bytes < 2 * self.bytes { "1.5 to 3" } else { "1.1 to 1.8" };
        self.is_coarse_for(segment_bytes, has_write_streams).then(|| {
            format!(
                "raw with TRIM is gentler on this drive (erase units of {unit}{known}; segments of \
                 {segment}): a log image programs {times} times as much flash under zipf writes: \
                 docs/evidence/wear.md"
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
    fn segments_have_four_or_more() {
        assert_eq!(EraseUnit::choose(Some(24 * MIB), None).segment_bytes(), 128 * MIB);
    }

    /// The points of docs/evidence/wear.md and decisions.md under zipf .99: erase unit and segment
    /// in KiB, whether a log image programs more than raw with TRIM, without write streams and with
    /// one, if that was replayed.
    #[test]
    fn the_warning_says_what_the_replays_say() {
        for (unit, segment, more, more_with_streams) in [
            (512, 8 << 10, false, Some(false)),
            (1 << 10, 8 << 10, false, None),
            (512, 1 << 10, true, None),
            (512, 2 << 10, true, None),
            (2 << 10, 8 << 10, true, Some(false)),
            (8 << 10, 16 << 10, true, Some(false)),
            (8 << 10, 8 << 10, true, None),
            (8 << 10, 32 << 10, true, None),
            (32 << 10, 16 << 10, true, Some(true)),
            (32 << 10, 128 << 10, true, Some(false)),
            (128 << 10, 256 << 10, true, Some(false)),
        ] {
            let unit = EraseUnit::choose(Some(unit << 10), None);
            let is_said = |streams| unit.warning(segment << 10, streams).is_some();
            assert_eq!(is_said(false), more, "{unit:?}, segments of {segment} KiB");
            assert!(more_with_streams.is_none_or(|more| is_said(true) == more), "{unit:?}");
        }
    }

    #[test]
    fn the_warning_names_the_unit_and_the_cost() {
        let unit = EraseUnit::choose(None, None);
        let [fits, small] = [128, 16].map(|it| unit.warning(it * MIB, false).unwrap());
        assert!(fits.contains("32 MiB, assumed; segments of 128 MiB"), "{fits}");
        assert!(fits.contains("1.1 to 1.8 times") && small.contains("1.5 to 3 times"), "{small}");
    }
}
