//! The class of a request, and the rule that decides it. Rules in order of trust: the on-disk
//! structures, the guest's hint on the request, the guest's behaviour.

use flowstone_block::{Class, Extent, IoPriority, mutated, named};

use crate::layout::{Layout, Place};

named! {
    /// The rule that decided the class of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(usize)]
    pub enum Rule {
        /// The on-disk structures.
        Layout = "layout",
        /// The request's priority word.
        Hint = "hint",
        /// The list of the file system's journal.
        Journal = "journal",
        /// The header of the written block.
        Header = "header",
        /// The pattern of earlier writes and flushes.
        Pattern = "pattern",
        /// No rule applied: it is data.
        None = "none",
    }
}

/// The result of classifying a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its class.
    pub class: Class,
    /// The rule that decided.
    pub rule: Rule,
}

impl Verdict {
    const fn new(class: Class, rule: Rule) -> Self {
        Self { class, rule }
    }
}

/// A request to be classified.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Its range.
    pub extent: Extent,
    /// It is a write.
    pub writes: bool,
    /// Its priority word.
    pub priority: IoPriority,
}

/// Classifies a request. `is_metadata`, for moving metadata, and `has_pattern` are called only if
/// no more trusted rule decides.
#[inline]
pub fn judge(
    layout: &Layout,
    journal_level: u8,
    asked: Asked,
    is_metadata: impl FnOnce() -> Option<Rule>,
    has_pattern: impl FnOnce() -> bool,
) -> Verdict {
    let says_metadata = asked.priority.hint() == IoPriority::METADATA_HINT;
    let reads_layout = mutated("classify.judge.hints-above-the-layout", true, !says_metadata);
    let place = if reads_layout { layout.place(asked.extent) } else { Place::Unknown };
    let writes = mutated("classify.judge.reads-have-the-journals-priority", asked.writes, true);
    match place {
        Place::Journal => Verdict::new(Class::Journal, Rule::Layout),
        Place::Metadata => Verdict::new(Class::Metadata, Rule::Layout),
        _ if says_metadata => Verdict::new(Class::Metadata, Rule::Hint),
        // A process may have the journal's priority; the journal itself is elsewhere.
        Place::FileSystem => is_metadata()
            .map_or(Verdict::new(Class::Data, Rule::Layout), |rule| {
                Verdict::new(Class::Metadata, rule)
            }),
        // Only recovery reads a journal, and it has no priority of its own.
        Place::Unknown if writes && asked.priority.is_best_effort(journal_level) => {
            Verdict::new(Class::Journal, Rule::Hint)
        }
        Place::Unknown if has_pattern() => Verdict::new(Class::Journal, Rule::Pattern),
        Place::Unknown => Verdict::new(Class::Data, Rule::None),
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::{SECTOR_BYTES, Sector, SectorCount};

    use super::*;
    use crate::layout::Builder;
    use crate::volume::{Piece, Volume};

    /// Sectors 0 to 999 are a file system, with a journal from 100 and metadata from 200 on; the
    /// rest is unknown.
    fn layout() -> Layout {
        let volume = Volume::new([Piece { start: 0, disk: 0, bytes: 1000 * SECTOR_BYTES }]);
        let mut builder = Builder::default();
        builder.file_system(&volume, 1000 * SECTOR_BYTES);
        builder.region(&volume, 100 * SECTOR_BYTES..150 * SECTOR_BYTES, Class::Journal);
        builder.region(&volume, 200 * SECTOR_BYTES..250 * SECTOR_BYTES, Class::Metadata);
        builder.finish()
    }

    fn verdict(sector: u64, writes: bool, priority: IoPriority, pattern: bool) -> (Class, Rule) {
        let extent = Extent::new(Sector::new(sector), SectorCount::new(8)).unwrap();
        let asked = Asked { extent, writes, priority };
        let verdict = judge(&layout(), 3, asked, || None, || pattern);
        (verdict.class, verdict.rule)
    }

    #[test]
    fn what_is_trusted_more_decides() {
        let plain = IoPriority::best_effort(4);
        let journal = IoPriority::best_effort(3);
        let metadata = plain.with_hint(IoPriority::METADATA_HINT);
        for (sector, priority, pattern, class, rule) in [
            (100, plain, false, Class::Journal, Rule::Layout),
            (100, metadata, false, Class::Journal, Rule::Layout),
            (200, journal, true, Class::Metadata, Rule::Layout),
            (300, journal, true, Class::Data, Rule::Layout),
            (300, metadata, false, Class::Metadata, Rule::Hint),
            (2000, metadata, true, Class::Metadata, Rule::Hint),
            (2000, journal, false, Class::Journal, Rule::Hint),
            (2000, plain, true, Class::Journal, Rule::Pattern),
            (2000, plain, false, Class::Data, Rule::None),
        ] {
            assert_eq!(verdict(sector, true, priority, pattern), (class, rule), "at {sector}");
        }
    }

    #[test]
    fn a_read_at_the_journals_priority_is_no_journal() {
        let journal = IoPriority::best_effort(3);
        assert_eq!(verdict(2000, false, journal, false), (Class::Data, Rule::None));
        assert_eq!(verdict(100, false, journal, false), (Class::Journal, Rule::Layout));
    }
}
