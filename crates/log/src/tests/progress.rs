//! Progress of a recovery, as observers see it.

use flowstone_image::Progress;

use super::fixture::Setup;
use crate::load::load;

/// Each segment is read once, for guests' records to replay or as one that no seal leads to; those
/// of copies too.
#[test]
fn a_recovery_tells_of_each_segment_once() {
    let mut fixture = Setup::default().fixture(7);
    let (mut replayed, mut copies) = (0, 0);
    for _ in 0..40 {
        fixture.run(60);
        fixture.drain();
        let progress = Progress::default();
        assert_eq!(progress.segments(), None);
        let loaded = load(&fixture.disk, Some(&progress)).unwrap();
        let (read, segments) = progress.segments().expect("it was not closed");
        assert_eq!(read, segments);
        assert!(segments > 8, "{segments}");
        replayed = replayed.max(loaded.replay.records);
        copies = copies.max(fixture.log.append_state().accounting().totals().relocated_blocks);
    }
    assert!(replayed > 20 && copies > 0, "{replayed} {copies}");
    let (disk, _) = fixture.close();
    let progress = Progress::default();
    load(&disk, Some(&progress)).unwrap();
    assert_eq!(progress.segments(), None, "it was closed, and is not recovered");
}
