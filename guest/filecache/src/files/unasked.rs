//! Answers from local state while the source is down: names and attributes of folders that were
//! used, and of files that have a copy.

use std::ffi::OsStr;

use rustix::io::Result;

use super::names::Found;
use crate::files::Files;
use crate::nodes::Node;
use crate::source;
use crate::stamp::Attributes;

impl Files {
    /// Looks a name up by its last known file.
    pub fn look_up_unasked(&self, folder: u64, name: &OsStr) -> Option<Result<Found>> {
        let node = self.nodes.known_at(folder, name)?;
        let seen = self.known(&node)?;
        Some(Ok((self.nodes.found(&seen, folder, name), seen)))
    }

    /// Returns the last known attributes of a node.
    pub fn attributes_unasked(&self, id: u64) -> Option<Result<Attributes>> {
        let node = self.nodes.get(id).ok()?;
        self.known(&node).map(Ok)
    }

    fn known(&self, node: &Node) -> Option<Attributes> {
        if let Some(dirty) = self.write_back.of(node.identity) {
            return source::known(&*dirty.file).ok().map(|seen| dirty.shown(seen));
        }
        let copy = self.copies.get(node.identity).and_then(|copy| copy.attributes());
        let held = || node.held().or_else(|| self.bindings.anchor(node));
        copy.or_else(|| source::known(held()?).ok())
    }
}
