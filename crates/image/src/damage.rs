//! Damage of an image: an image found damaged at open is refused; damage met while serving is
//! recorded.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use flowstone_block::{Damage, LogBudget, Metric, Sector};
use flowstone_fileio::FileOffset;
use tracing::error;

/// Damage of an image whose name is not known where the damage is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Damaged part, and its defect.
    pub what: String,
    lba: Option<Sector>,
    offset: Option<u64>,
}

impl Flaw {
    /// Names the part of the image and its defect.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), lba: None, offset: None }
    }

    /// Sets the offset in the host file.
    pub fn at(self, offset: FileOffset) -> Self {
        Self { offset: Some(offset.get()), ..self }
    }

    /// Sets the first lost LBA of the disk.
    pub fn of(self, lba: Sector) -> Self {
        Self { lba: Some(lba), ..self }
    }

    /// Adds the path of the image.
    pub fn in_image(self, image: &str) -> Damage {
        Damage { image: image.to_owned(), what: self.what, lba: self.lba, offset: self.offset }
    }
}

/// Damage met while an image is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damages {
    /// Times that a request, or maintenance, met damage.
    pub met: u64,
    /// Damaged places, each once, the newest last.
    pub recent: Vec<Damage>,
}

impl Damages {
    /// Metrics of damage.
    pub const METRICS: &[Metric<Self>] = &[Metric::counter(
        "flowstone_damage_total",
        "Times that a request or maintenance found damage",
        |it| it.met as f64,
    )];
}

/// Maximum number of remembered places.
const RECENT_MAX: usize = 16;

/// Known damage of one open image. Bounded: a guest may read a damaged block over and over.
#[derive(Default)]
pub struct DamageList {
    list: Mutex<List>,
    watcher: OnceLock<DamageWatcher>,
}

/// Callback for newly found damage.
pub type DamageWatcher = Box<dyn Fn(&Damage) + Send + Sync>;

#[derive(Default)]
struct List {
    known: Damages,
    budget: LogBudget,
}

impl DamageList {
    /// Records a flaw and logs it, each place once.
    pub fn add(&self, image: &str, flaw: Flaw) {
        let damage = flaw.in_image(image);
        let mut list = self.lock();
        list.known.met += 1;
        let recent = &mut list.known.recent;
        if recent.iter().any(|it| (it.lba, it.offset) == (damage.lba, damage.offset)) {
            return;
        }
        if recent.len() == RECENT_MAX {
            recent.remove(0);
        }
        recent.push(damage.clone());
        let line = list.budget.spend();
        drop(list);
        self.watcher.get().into_iter().for_each(|watcher| watcher(&damage));
        if let Some(unsaid) = line {
            error!(unsaid, "{image}: {damage}; see `flowstone check`");
        }
    }

    /// Returns the known damage.
    pub fn get(&self) -> Damages {
        self.lock().known.clone()
    }

    /// Calls `watcher` with each newly damaged place from now on.
    pub fn watch(&self, watcher: DamageWatcher) {
        let _ = self.watcher.set(watcher);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(lba: u64) -> Flaw {
        Flaw::new("a checksum does not fit").of(Sector::new(lba)).at(FileOffset::new(4096))
    }

    #[test]
    fn a_place_that_is_read_over_and_over_is_listed_once_and_counted() {
        let list = DamageList::default();
        for _ in 0..1000 {
            list.add("a.flow", flaw(8));
        }
        let Damages { met, recent } = list.get();
        assert_eq!((met, recent), (1000, vec![flaw(8).in_image("a.flow")]));
    }

    #[test]
    fn the_list_is_bounded_and_keeps_the_newest() {
        let list = DamageList::default();
        (0..1000).for_each(|lba| list.add("a.flow", flaw(lba)));
        let Damages { met, recent } = list.get();
        let lbas: Vec<u64> = recent.iter().filter_map(|it| it.lba).map(Sector::get).collect();
        assert_eq!((met, lbas), (1000, (984..1000).collect()));
    }
}
