//! The states in which a request waits inside an image. The table below, which docs/durability.md
//! has too ("What a request waits for"), names the owner that ends each. A state without an owner
//! whose death ends it is a request that never completes, and a disk that cannot be stopped.
//!
//! Channels report to tests what they wait for (`waits`). They destructure themselves for that
//! field by field, so that a new place where requests are kept does not compile without an answer.

use flowstone_block::named;

named! {
    /// Why a request has not completed yet. Its name says in which formats it occurs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Wait {
        /// For a call of the host.
        Host = "all: a call of the host's for it, or for what it needs",
        /// For a sync that others share.
        Sync = "all: a sync of the image that others share",
        /// For the discard thread.
        Discard = "raw, qcow2: a discard that is handed over",
        /// For a record before its own.
        Commit = "log: its record is in the file, one before it is not",
        /// For a record that holds its block.
        Conflict = "log: its block is in a record that is being written",
        /// For room for its record.
        Room = "log: no place for its record",
        /// For new heads.
        Restart = "log: a record has failed, and no new heads are started yet",
        /// For a commit of the map.
        MapCommit = "qcow2: a flush of changes of the map",
        /// For the slow path.
        SlowPath = "qcow2: it is handed over to the slow path",
        /// For a claim on its cluster.
        Claim = "qcow2, slow path: another request changes the place of its cluster",
        /// For free clusters.
        Clusters = "qcow2, slow path: no free clusters, or no room in the redo file",
        /// For a resize or compact.
        Command = "log, qcow2: a resize or compact",
    }
}

#[cfg(test)]
mod tests {
    use flowstone_testkit::table::assert_rows;

    use super::*;

    const MAINTENANCE: &str = "the maintenance worker";
    const COMES_BACK: &str =
        "what is dropped unanswered comes back with EIO (`HandedOver`); the thread goes on";
    const LOG_STOPS: &str =
        "the log stops (`Log::retire`), and all that wait try again and are refused";
    const GIVEN_UP: &str = "commits are given up (`Commits::abandon`)";

    /// A wait, the owner that ends it, how the owner's death ends it, and the tests that kill the
    /// owner.
    type Row = (Wait, &'static str, &'static str, &'static [&'static str]);

    const ROWS: [Row; 12] = [
        (
            Wait::Host,
            "the host's kernel",
            "it fails the call",
            &["no_single_failure_of_the_host_costs_what_was_promised"],
        ),
        (
            Wait::Sync,
            "the queue, maintenance worker or resize that leads it",
            "a queue that goes waits for its sync and leaves the lead to one that waits; a sync in \
             which its leader dies has failed",
            &[
                "a_queue_that_goes_away_finishes_the_sync_that_it_leads",
                "a_queue_that_goes_leaves_the_lead_to_one_that_waits",
                "a_sync_in_which_its_leader_dies_has_failed",
            ],
        ),
        (
            Wait::Discard,
            "the thread for discards",
            COMES_BACK,
            &[
                "a_discard_comes_back_when_the_thread_for_discards_has_panicked",
                "a_discard_comes_back_when_the_thread_that_has_it_panics",
            ],
        ),
        (
            Wait::Commit,
            "the queue of the record before",
            "its drop waits for its own records",
            &["a_write_goes_on_when_the_queue_of_the_record_before_it_is_dropped"],
        ),
        (
            Wait::Conflict,
            MAINTENANCE,
            LOG_STOPS,
            &[
                "a_write_that_waits_for_another_record_comes_back_when_the_maintenance_worker_is_gone",
            ],
        ),
        (
            Wait::Room,
            MAINTENANCE,
            LOG_STOPS,
            &["a_write_without_room_comes_back_when_the_maintenance_worker_panics"],
        ),
        (
            Wait::Restart,
            MAINTENANCE,
            LOG_STOPS,
            &["a_write_behind_a_failed_record_comes_back_when_the_maintenance_worker_is_gone"],
        ),
        (
            Wait::MapCommit,
            MAINTENANCE,
            GIVEN_UP,
            &["all_that_wait_for_the_maintenance_worker_come_back_when_it_panics"],
        ),
        (
            Wait::SlowPath,
            "the thread of the slow path that has it",
            COMES_BACK,
            &["a_request_comes_back_when_the_thread_of_the_slow_path_that_has_it_panics"],
        ),
        (
            Wait::Claim,
            "the thread of the slow path, or the queue, that has the claim",
            "the claim is dropped (`Claim`); a queue's drop waits for its writes",
            &[
                "a_request_comes_back_when_the_thread_of_the_slow_path_that_has_it_panics",
                "a_request_goes_on_when_the_queue_that_fills_its_cluster_is_dropped",
            ],
        ),
        (
            Wait::Clusters,
            MAINTENANCE,
            GIVEN_UP,
            &["all_that_wait_fail_when_the_maintenance_worker_ends"],
        ),
        (
            Wait::Command,
            MAINTENANCE,
            "the inbox is closed, and its replies are EIO",
            &["a_worker_that_ends_fails_those_who_wait_and_those_who_come_later"],
        ),
    ];

    #[test]
    fn each_state_has_an_owner() {
        assert_eq!(ROWS.map(|(wait, ..)| wait), Wait::ALL);
    }

    /// The table of the document matches the code.
    #[test]
    fn the_document_names_each_state_its_owner_and_its_test() {
        let mark = "<!-- crates/image/src/waits.rs -->\n";
        let document = include_str!("../../../docs/durability.md");
        let rows = ROWS.map(|(wait, owner, ends, tests)| {
            let (what, tests) = (wait.name(), tests.join(", "));
            format!("| `{wait:?}` | {what} | {owner} | {ends} | {tests} |")
        });
        assert_rows(document, mark, &rows);
    }
}
