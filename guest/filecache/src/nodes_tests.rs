//! Tests of the node that a name leads to.

use std::fs;

use super::*;

struct Shared {
    folder: tempfile::TempDir,
    source: Source,
    nodes: Nodes,
}

impl Shared {
    fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let source = Source::open(folder.path()).unwrap();
        let nodes = Nodes::new(&source).unwrap();
        Self { folder, source, nodes }
    }

    fn look_up(&self, name: &str) -> Arc<Node> {
        let seen = source::look(self.source.root(), OsStr::new(name)).unwrap();
        self.nodes.found(&seen, ROOT, OsStr::new(name))
    }
}

#[test]
fn a_node_has_the_number_of_its_file() {
    let shared = Shared::new(&["a"]);
    let node = shared.look_up("a");
    assert_eq!(node.id, node.identity.inode);
    assert_eq!(shared.look_up("a").id, node.id);
    assert_eq!(shared.nodes.get(node.id).unwrap().id, node.id);
}

/// Removing a name scanned all nodes: 1 ms at 30,000 of them, for each file of `rm -r`.
#[test]
fn a_name_that_goes_is_looked_for_at_its_place_alone() {
    let names: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let shared = Shared::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    names.iter().for_each(|name| drop(shared.look_up(name)));
    let looked_at =
        |name: &str| lock(&shared.nodes.table).places.at(ROOT, OsStr::new(name)).count();
    for name in &names {
        assert_eq!(looked_at(name), 1);
        shared.nodes.gone(ROOT, OsStr::new(name));
        assert_eq!(looked_at(name), 0);
        assert!(shared.nodes.known_at(ROOT, OsStr::new(name)).is_none());
    }
}

#[test]
fn a_node_is_found_where_it_is_and_nowhere_else() {
    let shared = Shared::new(&["a", "b"]);
    let known_at = |name: &str| shared.nodes.known_at(ROOT, OsStr::new(name)).map(|it| it.id);
    let (a, b) = (shared.look_up("a"), shared.look_up("b"));
    assert_eq!((known_at("a"), known_at("b")), (Some(a.id), Some(b.id)));
    shared.nodes.moved(a.identity, ROOT, OsStr::new("c"));
    assert_eq!((known_at("a"), known_at("c")), (None, Some(a.id)));
    // It was replaced at the source, which is noticed at its next lookup.
    fs::rename(shared.folder.path().join("a"), shared.folder.path().join("b")).unwrap();
    shared.look_up("b");
    assert_eq!((known_at("b"), known_at("c")), (Some(a.id), None), "the one that came last");
    shared.nodes.forget(a.id, 2);
    assert_eq!(known_at("b"), Some(b.id));
    shared.nodes.forget(b.id, 1);
    assert_eq!(known_at("b"), None);
    assert_eq!(lock(&shared.nodes.table).places.at(ROOT, OsStr::new("b")).count(), 0);
}

#[test]
fn a_node_is_known_until_the_kernel_forgets_all_lookups() {
    let shared = Shared::new(&["a"]);
    let id = shared.look_up("a").id;
    shared.look_up("a");
    shared.nodes.forget(id, 1);
    assert!(shared.nodes.get(id).is_ok());
    shared.nodes.forget(id, 1);
    assert!(shared.nodes.get(id).is_err());
    shared.nodes.forget(ROOT, 100);
    assert!(shared.nodes.get(ROOT).is_ok(), "the root stays");
}

#[test]
fn names_lead_to_the_split_node_until_it_is_joined() {
    let shared = Shared::new(&["a"]);
    let main = shared.look_up("a");
    shared.nodes.split(main.identity);
    let split = shared.look_up("a");
    assert_ne!(split.id, main.id);
    assert!(shared.nodes.is_split(&split) && !shared.nodes.is_split(&main));
    // The kernel forgets it while it looks the name up again.
    shared.nodes.forget(split.id, 1);
    assert_eq!(shared.look_up("a").id, split.id);
    shared.nodes.join(main.identity);
    assert_eq!(shared.look_up("a").id, split.id, "an open may be under way");
    lock(&shared.nodes.table).splits.get_mut(&main.identity).unwrap().sent -= UNDER_WAY;
    // A file that is opened repeatedly returns to its main node all the same.
    shared.nodes.arrived(main.identity);
    assert_eq!(shared.look_up("a").id, split.id);
    shared.nodes.join(main.identity);
    assert_eq!(shared.look_up("a").id, main.id);
    assert!(shared.nodes.is_split(&split), "the kernel may still know it");
}

#[test]
fn a_file_with_two_names_is_one_node() {
    let shared = Shared::new(&["a"]);
    fs::hard_link(shared.folder.path().join("a"), shared.folder.path().join("b")).unwrap();
    let node = shared.look_up("a");
    assert_eq!(shared.look_up("b").id, node.id);
    fs::remove_file(shared.folder.path().join("a")).unwrap();
    assert!(shared.nodes.anchor(&node).is_ok(), "it is held by the name that was used last");
}

#[test]
fn a_name_that_leads_to_another_file_is_stale() {
    let shared = Shared::new(&["a", "b"]);
    let node = shared.look_up("a");
    fs::rename(shared.folder.path().join("b"), shared.folder.path().join("a")).unwrap();
    assert_eq!(shared.nodes.anchor(&node).unwrap_err(), Errno::STALE);
    assert_eq!(shared.nodes.look(&node).unwrap_err(), Errno::STALE);
    fs::remove_file(shared.folder.path().join("a")).unwrap();
    assert_eq!(shared.nodes.anchor(&node).unwrap_err(), Errno::STALE);
}

#[test]
fn a_change_is_news_once_and_its_pages_are_not_good() {
    let shared = Shared::new(&["a"]);
    let node = shared.look_up("a");
    let seen = shared.nodes.look(&node).unwrap();
    assert!(!node.told(seen.stamp).changed);
    node.pages(true);
    assert!(node.told(seen.stamp).pages_are_good);
    let other = Stamp { size: 99, ..seen.stamp };
    let news = node.told(other);
    assert!(news.changed && !news.pages_are_good && !news.is_settled);
    assert!(!node.told(other).changed);
}

#[test]
fn a_stamp_of_long_ago_is_settled() {
    let shared = Shared::new(&["a"]);
    let node = shared.look_up("a");
    let changed = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    assert!(node.told(Stamp { changed, ..Stamp::default() }).is_settled);
    let changed = rustix::fs::Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    assert!(!node.told(Stamp { changed, ..Stamp::default() }).is_settled, "of the future");
}
