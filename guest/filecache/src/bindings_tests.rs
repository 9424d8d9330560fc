//! Tests of bindings that need no kernel.

use std::ffi::OsStr;

use flowstone_policy::{Link, PolicyKind, Use};

use super::*;
use crate::budget::Budget;
use crate::copies::Copies;
use crate::nodes::{Nodes, ROOT};
use crate::open_mode::Modes;
use crate::source::{self, Source};
use crate::store::Store;

#[test]
fn a_copy_that_a_writer_has_spoilt_since_it_was_looked_at_is_not_bound() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("it"), "text").unwrap();
    let source = Source::open(folder.path()).unwrap();
    let seen = source::look(source.root(), OsStr::new("it")).unwrap();
    let node = &Nodes::new(&source).unwrap().found(&seen, ROOT, OsStr::new("it"));
    let copies = Copies::new(
        Store::memory(),
        Budget { bytes: 1 << 20, by: "memory" },
        PolicyKind::Lru.build(1 << 20, Link::default()),
        1,
        2,
    );
    copies.used(node.identity, Use::Read, 4);
    let fill = copies.begin_fill(node.identity).unwrap();
    assert!(copies.end_fill(&fill, Some((copies.new_file().unwrap(), seen))));

    let caller = &Caller { uid: 0, gid: 0, groups: Some(Box::default()) };
    let ask = &Ask { allowed: Modes::ALL, ..Ask::default() };
    let mut has = Prepared { copy: copies.get(node.identity), ..Prepared::default() };
    let bindings = Bindings::default();
    assert!(matches!(bindings.bind(node, caller, ask, &mut has), Bound::Needs(Mode::Copy)));
    copies.writer_opens(node.identity);
    assert!(matches!(bindings.bind(node, caller, ask, &mut has), Bound::Needs(Mode::Source)));
}
