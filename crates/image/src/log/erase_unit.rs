//! What a drive erases as one, which segments follow. A segment that shares its erase blocks with
//! others has to be copied by the drive when those die; of a segment of several blocks only the two
//! at its ends are shared.

use std::ops::RangeInclusive;

use flowstone_block::format_size;

/// What is assumed of a drive that does not tell: what an SSD erases at once, all its channels
/// together.
const DEFAULT_BYTES: u64 = 32 << 20;
/// An erase unit is a number of 4 KiB blocks between these.
pub const ERASE_UNIT_BYTES: RangeInclusive<u64> = 4096..=1 << 30;
/// A segment has so many of them at least, if the disk is large enough.
const UNITS_PER_SEGMENT: u64 = 4;

/// How it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitSource {
    /// It was asked for.
    Option,
    /// The drive says so.
    Device,
    /// Nothing says so.
    Default,
}

impl UnitSource {
    /// The name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Option => "option",
            Self::Device => "device",
            Self::Default => "default",
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EraseUnit {
    /// Bytes of it.
    pub bytes: u64,
    /// How it is known.
    pub source: UnitSource,
}

impl EraseUnit {
    /// What was asked for, or what the drive says, or what most drives have.
    pub fn choose(asked: Option<u64>, device: Option<u64>) -> Self {
        let of = |source| move |bytes| Self { bytes, source };
        let known = asked.map(of(UnitSource::Option)).or(device.map(of(UnitSource::Device)));
        known.unwrap_or(Self { bytes: DEFAULT_BYTES, source: UnitSource::Default })
    }

    /// Bytes of a segment that has enough of them: a power of two.
    pub const fn segment_bytes(&self) -> u64 {
        (UNITS_PER_SEGMENT * self.bytes).next_power_of_two()
    }

    /// What a segment that has fewer of them costs, if this one has.
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

    /// As it stands in the superblock: 4 KiB blocks, and how they are known in the high half; 0 if
    /// they are not.
    pub fn encode(unit: Option<Self>) -> u64 {
        let Some(Self { bytes, source }) = unit else { return 0 };
        let source = match source {
            UnitSource::Option => 1,
            UnitSource::Device => 2,
            UnitSource::Default => 3,
        };
        (bytes / 4096) | (source << 32)
    }

    /// The same read back. What a later version says is not known here.
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
