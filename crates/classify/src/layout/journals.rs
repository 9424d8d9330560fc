//! The journals of a disk whose lists of metadata are read.

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Extent, Request, mutated};

use crate::listed::List;
use crate::listed::journal::Journal;

/// The most pieces, of volumes and of journals, of all journals: 96 KiB. Journals beyond are not
/// read.
const PIECES_MAX: usize = 4096;

/// Journals, and the blocks that they have listed.
#[derive(Clone, Default)]
pub struct Journals {
    journals: Box<[Journal]>,
    /// Pieces of journals, sorted and disjoint, with the journal's number.
    pieces: Box<[(Range<u64>, u16)]>,
    /// `None` if there is no journal.
    list: Option<Arc<List>>,
}

impl Journals {
    /// Makes the journals of a newly read layout.
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
        // In consistent file systems no two journals share a piece.
        pieces.dedup_by(|next, piece| next.0.start < piece.0.end);
        let list = (!journals.is_empty()).then(Arc::default);
        Self { journals: journals.into(), pieces: pieces.into(), list }
    }

    /// Takes over the list of the same journals in an earlier layout. Otherwise the list starts
    /// empty: a list of a journal at another place, or from before mkfs, is invalid. Returns
    /// whether the journals are the same.
    pub fn keep_list_of(&mut self, before: &Self) -> bool {
        let Some(list) = &before.list else { return self.list.is_none() };
        let pairs = (0..).zip(self.journals.iter().zip(&before.journals));
        let are_same = self.journals.len() == before.journals.len()
            && pairs.into_iter().all(|(number, (journal, before))| {
                // The disk may have been read before the guest changed the format.
                let is_known = list.knows_format_of(number) || journal.kind == before.kind;
                journal.is_same(before) && is_known
            });
        let are_same = mutated("classify.journals.keeps-the-list-of-others", are_same, true);
        if are_same {
            self.list = Some(Arc::clone(list));
        }
        are_same
    }

    /// Returns whether all of `extent` is metadata listed by a journal.
    pub fn have_listed(&self, extent: Extent) -> bool {
        self.list.as_ref().is_some_and(|list| list.contains(extent))
    }

    /// Passes a guest's write to the journal that it touches, if any.
    pub fn are_written(&self, extent: Extent, request: &Request) {
        let Some(list) = &self.list else { return };
        let (start, end) = (extent.start().get(), extent.end().get());
        let next = self.pieces.partition_point(|(piece, _)| piece.end <= start);
        let touched = self.pieces.get(next).filter(|(piece, _)| piece.start < end);
        // A journal that is not read, or is on a device of its own.
        let Some((_, number)) = touched else { return };
        let journal = &self.journals[usize::from(*number)];
        if journal.holds(extent) {
            list.journal_is_written((*number, journal), request);
        } else {
            list.journal_is_unreadable();
        }
    }
}

/// The listed blocks are not compared.
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
