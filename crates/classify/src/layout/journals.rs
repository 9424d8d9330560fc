//! The journals of a disk whose lists of metadata are read.

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Extent, Request, mutant};

use crate::listed::List;
use crate::listed::journal::Journal;

/// The most pieces, of volumes and of journals, that all journals may consist of: 96 KiB. Those
/// beyond are not read.
const PIECES_MAX: usize = 4096;

/// Journals, and what they have listed.
#[derive(Clone, Default)]
pub struct Journals {
    journals: Box<[Journal]>,
    /// By start, without overlaps: whose it is.
    pieces: Box<[(Range<u64>, u16)]>,
    /// `None` if there is no journal.
    list: Option<Arc<List>>,
}

impl Journals {
    /// Of a layout that has just been read.
    pub fn new(mut journals: Vec<Journal>) -> Self {
        let mut left = PIECES_MAX;
        journals.retain(|it| {
            let needed = it.volume.pieces() + it.pieces.len();
            let fits = needed <= left;
            left -= if fits { needed } else { 0 };
            fits
        });
        let mut pieces: Vec<_> = (0..)
            .zip(&journals)
            .flat_map(|(nth, it)| it.pieces.iter().map(move |piece| (piece.clone(), nth)))
            .collect();
        pieces.sort_unstable_by_key(|(piece, _)| piece.start);
        // No sound file systems share a piece.
        pieces.dedup_by(|next, piece| next.0.start < piece.0.end);
        let list = (!journals.is_empty()).then(Arc::default);
        Self { journals: journals.into(), pieces: pieces.into(), list }
    }

    /// Takes over what the same journals have listed before. Others have listed nothing: what is
    /// known of a journal at another place, or of one from before mkfs, is void. Returns whether
    /// there is nothing new.
    pub fn keep_list_of(&mut self, before: &Self) -> bool {
        let Some(list) = &before.list else { return self.list.is_none() };
        let pairs = (0..).zip(self.journals.iter().zip(&before.journals));
        let are_same = self.journals.len() == before.journals.len()
            && pairs.into_iter().all(|(number, (journal, before))| {
                // The disk may have been read before the guest has changed the format.
                let is_known = list.knows_format_of(number) || journal.kind == before.kind;
                journal.is_same(before) && is_known
            });
        let keeps = are_same || mutant("classify.journals.keeps-the-list-of-others");
        if keeps {
            self.list = Some(Arc::clone(list));
        }
        keeps
    }

    /// Returns whether all of this is metadata that a journal has listed.
    pub fn have_listed(&self, extent: Extent) -> bool {
        self.list.as_ref().is_some_and(|list| list.contains(extent))
    }

    /// The guest writes there, which may be to a journal.
    pub fn are_written(&self, extent: Extent, request: &Request) {
        let Some(list) = &self.list else { return };
        let (start, end) = (extent.start().get(), extent.end().get());
        let next = self.pieces.partition_point(|(piece, _)| piece.end <= start);
        let touched = self.pieces.get(next).filter(|(piece, _)| piece.start < end);
        // One that is not read, or lies on a device of its own.
        let Some((_, number)) = touched else { return };
        let journal = &self.journals[usize::from(*number)];
        if journal.holds(extent) {
            list.journal_is_written((*number, journal), request);
        } else {
            list.journal_is_unreadable();
        }
    }
}

/// What they have listed is no part of what they are.
impl PartialEq for Journals {
    fn eq(&self, other: &Self) -> bool {
        self.journals == other.journals
    }
}

impl Eq for Journals {}

impl std::fmt::Debug for Journals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.journals.fmt(f)
    }
}
