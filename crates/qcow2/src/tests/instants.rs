//! The daemon is killed at any instant, mostly inside of commits. A thread observes it: if the redo
//! file is the same before and after it reads the disk's moment, that was its content at that
//! moment.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fastrand::Rng;
use flowstone_block::Op;
use flowstone_sim::{Fate, Moment, Schedule, SimDisk};

use super::fixture::{Guest, checked, contents, extent, new_disk};
use super::host::Host;

const SECTORS: u64 = 500;
const OPS: u8 = 70;

/// A captured instant: the state, the number of completed requests, and of begun ones.
struct Caught {
    moment: Moment,
    redo: Vec<u8>,
    done: usize,
    begun: usize,
}

/// Returns requests, and the content of the disk before the first one and after each.
fn history(random: &mut Rng) -> (Vec<(Op, u8)>, Vec<Vec<u8>>) {
    let mut models = vec![vec![0; SECTORS as usize * 512]];
    let ops = (1..=OPS).map(|stamp| {
        let start = random.u64(..SECTORS);
        let place = extent(start, random.u64(1..20).min(SECTORS - start));
        let (op, stamp) = match random.u8(..8) {
            0 | 1 => (Op::Flush, 0),
            2 => (Op::Discard(place), 0),
            3 => (Op::WriteZeroes { extent: place, unmap: random.bool() }, 0),
            _ => (Op::Write(place), stamp),
        };
        let mut model = models.last().unwrap().clone();
        if op != Op::Flush {
            model[start as usize * 512..][..place.bytes() as usize].fill(stamp);
        }
        models.push(model);
        (op, stamp)
    });
    (ops.collect(), models)
}

/// Runs the requests in sequence, and captures instants meanwhile.
fn run_and_catch(host: &Host, disk: &SimDisk, ops: &[(Op, u8)]) -> Vec<Caught> {
    let image = host.open(disk);
    let (done, begun, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let looks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let catcher = scope.spawn(|| {
            let mut caught: Vec<Caught> = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let done = done.load(Ordering::SeqCst);
                let (redo, moment) = (host.remembered(), disk.now());
                let is_one_instant = host.remembered() == redo;
                let begun = begun.load(Ordering::SeqCst);
                let is_new = caught.last().is_none_or(|last| last.moment != moment);
                if is_one_instant && is_new {
                    caught.push(Caught { moment, redo, done, begun });
                }
                looks.fetch_add(1, Ordering::SeqCst);
            }
            caught
        });
        let mut guest = Guest::new(&image);
        for (index, (op, stamp)) in ops.iter().enumerate() {
            // Lets the observer see the state between two requests.
            let before = looks.load(Ordering::SeqCst);
            while looks.load(Ordering::SeqCst) < before + 2 {
                std::thread::yield_now();
            }
            begun.store(index + 1, Ordering::SeqCst);
            guest.run(*op, *stamp).unwrap();
            done.store(index + 1, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
        catcher.join().unwrap()
    })
}

fn killed_at_any_instant(seed: u64, cluster_bytes: u64) -> usize {
    let (host, mut random) = (Host::new(), Rng::with_seed(seed));
    let disk = new_disk(SECTORS, cluster_bytes);
    disk.set_schedule(Schedule::Shuffled { seed });
    let (ops, models) = history(&mut random);
    let mut caught = run_and_catch(&host, &disk, &ops);
    random.shuffle(&mut caught);
    caught.truncate(40);
    caught.sort_by_key(|it| it.moment);
    for (index, it) in caught.iter().enumerate() {
        let told = format!(
            "seed {seed}, clusters of {cluster_bytes}, {:?}, {} done, {} begun",
            it.moment, it.done, it.begun
        );
        let killed = disk.kill_at(it.moment, &mut Fate::seeded(seed + index as u64));
        host.remember(&it.redo);
        assert_eq!(host.check(&killed, false).unwrap().errors, Vec::<String>::new(), "{told}");
        let seen = host.read(&killed);
        for sector in 0..SECTORS as usize {
            let range = sector * 512..(sector + 1) * 512;
            let mut allowed = models[it.done..=it.begun].iter();
            let fits = allowed.any(|model| model[range.clone()] == seen[range.clone()]);
            assert!(fits, "{told}: sector {sector} holds {}", seen[range.start]);
        }
        if index % 2 == 0 {
            let report = host.check(&killed, true).unwrap();
            assert_eq!((report.errors, report.leaked_bytes), (vec![], 0), "{told}");
        }
        let image = host.open(&killed);
        assert!(contents(&image) == seen, "{told}: after the restart");
        let mut guest = Guest::new(&image);
        guest.run(Op::Write(extent(7, 90)), 255).unwrap();
        drop((guest, image));
        assert_eq!(checked(&killed, false).errors, Vec::<String>::new(), "{told}");
    }
    caught.len()
}

#[test]
fn what_has_completed_survives_a_kill_at_any_instant() {
    let kills: usize =
        (0..12).map(|seed| killed_at_any_instant(seed, [512, 4096, 1024][seed as usize % 3])).sum();
    eprintln!("{kills} kills");
    assert!(kills >= 12 * 20, "the thread that looks on saw next to nothing: {kills}");
}
