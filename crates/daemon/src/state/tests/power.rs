//! A simulated directory whose power may be cut at any moment.

use std::sync::{Arc, MutexGuard};

use super::*;

/// A file: its current content, and the content after a power cut.
#[derive(Clone, Default)]
struct Content {
    now: String,
    /// `None` until it has been synced.
    durable: Option<String>,
}

type Names = BTreeMap<String, usize>;

/// The state of the simulated disk, durable and not.
#[derive(Clone, Default)]
struct Disk {
    files: Vec<Content>,
    names: Names,
    durable: Names,
    /// The state after each step.
    steps: Vec<(Vec<Content>, [Names; 2])>,
}

#[derive(Clone, Default)]
struct Simulated(Arc<Mutex<Disk>>);

impl Simulated {
    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    fn step<T>(&self, act: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.lock();
        let done = act(&mut disk);
        let now = (disk.files.clone(), [disk.names.clone(), disk.durable.clone()]);
        disk.steps.push(now);
        done
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Folder for Simulated {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let disk = self.lock();
        let file = *disk.names.get(name).ok_or_else(missing)?;
        Ok(disk.files[file].now.clone())
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        self.step(|disk| {
            let file = disk.files.len();
            disk.files.push(Content { now: text.into(), durable: None });
            disk.names.insert(name.into(), file);
            Ok(())
        })
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.step(|disk| {
            let file = *disk.names.get(name).ok_or_else(missing)?;
            disk.files[file].durable = Some(disk.files[file].now.clone());
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step(|disk| {
            let file = disk.names.remove(from).ok_or_else(missing)?;
            disk.names.insert(to.into(), file);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(|disk| disk.names.remove(name).map(drop).ok_or_else(missing))
    }

    fn sync(&self) -> io::Result<()> {
        self.step(|disk| {
            disk.durable = disk.names.clone();
            Ok(())
        })
    }
}

fn open(folder: &Simulated) -> State {
    State::read(Path::new("/simulated"), Box::new(folder.clone())).unwrap()
}

/// Returns the weight of each recorded disk.
fn weights(state: &State) -> BTreeMap<String, String> {
    let weight = |record: Record| (record.subject().to_string(), record.set["weight"].clone());
    state.all().into_iter().map(weight).collect()
}

/// Returns the states that may follow a power cut at this step: with the durable names, and with
/// the pending ones, since a host may write names at any time; files that were not synced are
/// empty.
fn after_a_cut((files, names): &(Vec<Content>, [Names; 2])) -> [Simulated; 2] {
    let mut left = files.clone();
    left.iter_mut().for_each(|file| file.now = file.durable.clone().unwrap_or_default());
    names.clone().map(|names| {
        let (files, durable) = (left.clone(), names.clone());
        Simulated(Arc::new(Mutex::new(Disk { files, names, durable, steps: Vec::new() })))
    })
}

/// After a power cut, answered changes are present, and the one in progress is present as a whole
/// or not at all.
#[test]
fn a_power_cut_at_any_step_loses_nothing_that_was_answered() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = Simulated::default();
    let state = open(&folder);
    let mut cuts = 0;
    for turn in 0..100 {
        let before = weights(&state);
        folder.lock().steps.clear();
        let name = ["a", "b", "c"][random.usize(..3)];
        let is_forgotten = random.u8(..4) == 0;
        let change = |record: &mut Record| match is_forgotten {
            true => record.forget("weight"),
            false => record.set("weight", turn.to_string(), None),
        };
        state.change(disk(name), change).unwrap();
        let after = weights(&state);
        let steps = folder.lock().steps.clone();
        for (number, step) in steps.iter().enumerate() {
            let is_answered = number + 1 == steps.len();
            for left in after_a_cut(step) {
                let kept = open(&left);
                let has = weights(&kept);
                let is_right = has == after || (!is_answered && has == before);
                let lost = kept.unreadable().is_empty() && is_right;
                assert!(
                    lost,
                    "seed {seed}, turn {turn}, step {number}: {before:?} {has:?} {after:?}"
                );
                cuts += 1;
            }
        }
    }
    assert!(cuts > 200, "{cuts}");
}
