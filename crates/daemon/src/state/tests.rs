//! Records in directories of the host, and in a simulated one whose power is cut.

mod power;

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flowstone_testkit::wait_for;

use super::*;

fn disk(name: &str) -> Subject {
    Subject::Disk(name.into())
}

fn names(state: &State) -> Vec<Subject> {
    state.all().iter().map(Record::subject).collect()
}

#[test]
fn records_are_there_again_whatever_their_disks_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let subjects = ["..", "a/b", "\"quoted\" = [", &"ü".repeat(64), ""].map(disk).to_vec();
    let state = State::open(&path).unwrap();
    for subject in &subjects {
        let added: toml::Table = [("queues".to_owned(), 4.into())].into_iter().collect();
        state.change(subject.clone(), |record| record.added = Some(added)).unwrap();
    }
    state.change(disk("a/b"), |record| record.added = None).unwrap();
    let group = Subject::Group("a/b".into());
    state.change(group.clone(), |record| record.set("limit", "off".into(), None)).unwrap();
    let before = state.all();
    assert_eq!(before.len(), subjects.len());
    assert!(State::open(&path).is_err_and(|it| it.to_string().contains("another daemon is using")));
    drop(state);
    // A process that another test starts holds the lock, too, until it executes its program.
    let state = wait_for("the folder is free", || State::open(&path));
    assert_eq!(state.all(), before);
    assert!(names(&state).contains(&group) && !names(&state).contains(&disk("a/b")));
}

#[test]
fn a_file_that_cannot_be_read_is_kept_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (broken, half) = (folder.path().join("0.toml"), folder.path().join("1.new"));
    fs::write(&broken, "disk = [").unwrap();
    fs::write(&half, "disk = 'half'").unwrap();
    let state = State::open(folder.path()).unwrap();
    let [error] = state.unreadable() else { panic!("one file") };
    assert!(error.to_string().contains("0.toml: "), "{error}");
    state.change(disk("a"), |record| record.set("weight", "7".into(), None)).unwrap();
    assert_eq!(fs::read_to_string(&broken).unwrap(), "disk = [");
    assert!(folder.path().join("1.toml").exists() && !half.exists());
}

/// Regression: the last file won, and one of them was removed with its disk.
#[test]
fn of_several_files_about_the_same_none_is_used_or_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |number: u64| folder.path().join(name(number));
    let text = |weight: u32| format!("disk = 'a'\n[set]\nweight = '{weight}'\n");
    for number in [10, 3, 0] {
        fs::write(file(number), text(number as u32)).unwrap();
    }
    fs::write(file(1), "disk = 'b'\n[set]\nweight = '9'\n").unwrap();
    let state = State::open(folder.path()).unwrap();
    assert_eq!(names(&state), [disk("b")]);
    assert!(state.unreadable().is_empty() && state.holds(&disk("a"), |_| None).is_empty());
    assert_eq!(state.disputed().collect::<Vec<_>>(), [&disk("a")]);
    state.check(&disk("b")).unwrap();
    for refused in [
        state.check(&disk("a")),
        state.change(disk("a"), |record| record.set("weight", "5".into(), None)),
        state.change(disk("a"), |record| record.forget("weight")),
    ] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains(": 0.toml, 3.toml, 10.toml are all about it"), "{why}");
    }
    state.change(disk("c"), |record| record.set("weight", "5".into(), None)).unwrap();
    for number in [0, 3, 10] {
        assert_eq!(fs::read_to_string(file(number)).unwrap(), text(number as u32));
    }
    assert!(file(2).exists());
}

/// Regression: the records of another daemon that created a directory of that name were replaced.
#[test]
fn a_folder_that_has_taken_the_name_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let [path, away] = ["state", "away"].map(|name| place.path().join(name));
    let state = State::open(&path).unwrap();
    let set = |state: &State, weight: &str| {
        state.change(disk("a"), |record| record.set("weight", weight.into(), None))
    };
    set(&state, "1").unwrap();
    fs::rename(&path, &away).unwrap();
    let forget = |state: &State| state.change(disk("a"), |record| record.forget("weight"));
    let refused = forget(&state).unwrap_err().to_string();
    assert!(refused.contains("it has another name now; "), "{refused}");
    let other = State::open(&path).unwrap();
    set(&other, "2").unwrap();
    let refused = set(&state, "3").unwrap_err().to_string();
    assert!(refused.contains("another folder has its name"), "{refused}");
    assert!(forget(&state).is_err());
    let kept = fs::read_to_string(path.join("0.toml")).unwrap();
    assert_eq!(Record::read(&kept).unwrap().set["weight"], "2");
    assert_eq!(state.get(&disk("a")).unwrap().set["weight"], "1");
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    set(&state, "3").unwrap();
}

/// The configuration wins from the moment that its text changes, and the setting does not come
/// back.
#[test]
fn what_was_set_holds_until_the_configuration_changes() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::open(folder.path()).unwrap();
    let set = |record: &mut Record| {
        record.set("weight", "7".into(), Some("100".into()));
        record.set("limit", "off".into(), None);
    };
    state.change(disk("a"), set).unwrap();
    let says = |weight: &str| {
        let weight = weight.to_owned();
        state.holds(&disk("a"), move |key| (key == "weight").then(|| weight.clone()))
    };
    assert_eq!(says("100").len(), 2);
    assert_eq!(says("200").keys().collect::<Vec<_>>(), ["limit"]);
    assert_eq!(says("100").keys().collect::<Vec<_>>(), ["limit"]);
}

thread_local! {
    /// What the next sync of the folder does.
    static NEXT_SYNC: Cell<fn() -> io::Result<()>> = const { Cell::new(|| Ok(())) };
}

/// A folder whose syncs fail and panic when they are told to.
struct Failing(HostFolder);

impl Folder for Failing {
    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn read(&self, name: &str) -> io::Result<String> {
        self.0.read(name)
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        self.0.write(name, text)
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.0.sync_file(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        NEXT_SYNC.replace(|| Ok(()))().and_then(|()| self.0.sync())
    }
}

/// Regression: the next change made another file about the disk, and after a restart neither was
/// used.
#[test]
fn after_a_change_that_failed_or_panicked_at_its_end_the_next_one_has_the_same_file() {
    let place = tempfile::tempdir().unwrap();
    let folder = HostFolder::open(place.path()).unwrap();
    let state = State::read(place.path(), Box::new(Failing(folder))).unwrap();
    let set = |name: &str, weight: &str| {
        let set = |record: &mut Record| record.set("weight", weight.into(), None);
        catch_unwind(AssertUnwindSafe(|| state.change(disk(name), set)))
    };
    NEXT_SYNC.set(|| Err(io::ErrorKind::StorageFull.into()));
    assert!(set("failed", "1").unwrap().is_err());
    NEXT_SYNC.set(|| panic!("the mistake"));
    assert!(set("died", "2").is_err());
    set("died", "3").unwrap().unwrap();
    set("failed", "4").unwrap().unwrap();
    let again = State::open(place.path()).unwrap();
    assert_eq!((again.disputed().count(), again.all().len()), (0, 2));
    assert_eq!(again.get(&disk("died")).unwrap().set["weight"], "3");
    assert_eq!(again.get(&disk("failed")).unwrap().set["weight"], "4");
}

/// Names of disks that could not be kept do not pile up.
#[test]
fn nothing_stays_of_a_change_that_left_no_file() {
    let place = tempfile::tempdir().unwrap();
    let state = State::open(place.path()).unwrap();
    // Its temporary file cannot be written.
    fs::create_dir(place.path().join("0.new")).unwrap();
    state.change(disk("a"), |record| record.set("weight", "7".into(), None)).unwrap_err();
    assert!(state.all().is_empty());
}
