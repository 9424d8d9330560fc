//! The states in which a request waits inside an image, and the owner that ends each:
//! docs/durability.md, "What a request waits for", has the same table. A state without an owner
//! whose death ends it is a request that never completes, and a disk that cannot be stopped.
//!
//! Channels report to tests what they wait for (`waits`). They destructure themselves for that
//! field by field, so that a new place where requests are kept does not compile without an answer.

use std::fmt;

/// Why a request has not completed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// For a call of the host.
    Host,
    /// For a sync that others share.
    Sync,
    /// For the discard thread.
    Discard,
    /// For a record before its own.
    Commit,
    /// For a record that holds its block.
    Conflict,
    /// For room for its record.
    Room,
    /// For new heads.
    Restart,
    /// For a commit of the map.
    MapCommit,
    /// For the slow path.
    SlowPath,
    /// For a claim on its cluster.
    Claim,
    /// For free clusters.
    Clusters,
    /// For a resize or compact.
    Command,
}

/// The owner that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host's kernel.
    Kernel,
    /// The queue, worker or resize that leads the sync.
    LeadingQueue,
    /// The queue of the record before.
    OtherQueue,
    /// The maintenance worker.
    Maintenance,
    /// The discard thread.
    DiscardThread,
    /// A thread of the slow path.
    SlowPathThread,
    /// The owner of a claim on a cluster.
    Claimant,
}

impl fmt::Display for Owner {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Kernel => "the host's kernel",
            Self::LeadingQueue => "the queue, maintenance worker or resize that leads it",
            Self::OtherQueue => "the queue of the record before",
            Self::Maintenance => "the maintenance worker",
            Self::DiscardThread => "the thread for discards",
            Self::SlowPathThread => "the thread of the slow path that has it",
            Self::Claimant => "the thread of the slow path, or the queue, that has the claim",
        })
    }
}

impl Wait {
    /// All waits.
    pub const ALL: [Self; 12] = [
        Self::Host,
        Self::Sync,
        Self::Discard,
        Self::Commit,
        Self::Conflict,
        Self::Room,
        Self::Restart,
        Self::MapCommit,
        Self::SlowPath,
        Self::Claim,
        Self::Clusters,
        Self::Command,
    ];

    /// Describes the wait, and in which formats it occurs.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Host => "all: a call of the host's for it, or for what it needs",
            Self::Sync => "all: a sync of the image that others share",
            Self::Discard => "raw, qcow2: a discard that is handed over",
            Self::Commit => "log: its record is in the file, one before it is not",
            Self::Conflict => "log: its block is in a record that is being written",
            Self::Room => "log: no place for its record",
            Self::Restart => "log: a record has failed, and no new heads are started yet",
            Self::MapCommit => "qcow2: a flush of changes of the map",
            Self::SlowPath => "qcow2: it is handed over to the slow path",
            Self::Claim => "qcow2, slow path: another request changes the place of its cluster",
            Self::Clusters => "qcow2, slow path: no free clusters, or no room in the redo file",
            Self::Command => "log, qcow2: a resize or compact",
        }
    }

    /// Returns the owner that ends it.
    pub const fn owner(self) -> Owner {
        match self {
            Self::Host => Owner::Kernel,
            Self::Sync => Owner::LeadingQueue,
            Self::Commit => Owner::OtherQueue,
            Self::Discard => Owner::DiscardThread,
            Self::SlowPath => Owner::SlowPathThread,
            Self::Claim => Owner::Claimant,
            Self::Conflict
            | Self::Room
            | Self::Restart
            | Self::MapCommit
            | Self::Clusters
            | Self::Command => Owner::Maintenance,
        }
    }

    /// Describes how the owner's death ends the wait.
    pub const fn ends(self) -> &'static str {
        match self {
            Self::Host => "it fails the call",
            Self::Sync => {
                "a queue that goes waits for its sync and leaves the lead to one that waits; a sync in which its leader dies has failed"
            }
            Self::Discard | Self::SlowPath => {
                "what is dropped unanswered comes back with EIO (`HandedOver`); the thread goes on"
            }
            Self::Commit => "its drop waits for its own records",
            Self::Conflict | Self::Room | Self::Restart => {
                "the log stops (`Log::retire`), and all that wait try again and are refused"
            }
            Self::MapCommit | Self::Clusters => "commits are given up (`Commits::abandon`)",
            Self::Claim => "the claim is dropped (`Claim`); a queue's drop waits for its writes",
            Self::Command => "the inbox is closed, and its replies are EIO",
        }
    }

    /// Names the tests that kill the owner.
    pub const fn shown_by(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["no_single_failure_of_the_host_costs_what_was_promised"],
            Self::Sync => &[
                "a_queue_that_goes_away_finishes_the_sync_that_it_leads",
                "a_queue_that_goes_leaves_the_lead_to_one_that_waits",
                "a_sync_in_which_its_leader_dies_has_failed",
            ],
            Self::Discard => &[
                "a_discard_comes_back_when_the_thread_for_discards_has_panicked",
                "a_discard_comes_back_when_the_thread_that_has_it_panics",
            ],
            Self::Commit => &["a_write_goes_on_when_the_queue_of_the_record_before_it_is_dropped"],
            Self::Conflict => &[
                "a_write_that_waits_for_another_record_comes_back_when_the_maintenance_worker_is_gone",
            ],
            Self::Room => &["a_write_without_room_comes_back_when_the_maintenance_worker_panics"],
            Self::Restart => {
                &["a_write_behind_a_failed_record_comes_back_when_the_maintenance_worker_is_gone"]
            }
            Self::MapCommit => {
                &["all_that_wait_for_the_maintenance_worker_come_back_when_it_panics"]
            }
            Self::SlowPath => {
                &["a_request_comes_back_when_the_thread_of_the_slow_path_that_has_it_panics"]
            }
            Self::Claim => &[
                "a_request_comes_back_when_the_thread_of_the_slow_path_that_has_it_panics",
                "a_request_goes_on_when_the_queue_that_fills_its_cluster_is_dropped",
            ],
            Self::Clusters => &["all_that_wait_fail_when_the_maintenance_worker_ends"],
            Self::Command => &["a_worker_that_ends_fails_those_who_wait_and_those_who_come_later"],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use flowstone_testkit::table::{assert_rows, assert_tests};

    use super::*;

    /// Returns the row of the table.
    fn row(wait: Wait) -> String {
        let tests: Vec<&str> = wait.shown_by().to_vec();
        let (what, owner, ends, tests) = (wait.what(), wait.owner(), wait.ends(), tests.join(", "));
        format!("| `{wait:?}` | {what} | {owner} | {ends} | {tests} |")
    }

    /// The table of the document matches the code.
    #[test]
    fn the_document_names_each_state_its_owner_and_its_test() {
        let mark = "<!-- crates/image/src/waits.rs -->\n";
        let document = include_str!("../../../docs/durability.md");
        assert_rows(document, mark, &Wait::ALL.map(row));
    }

    #[test]
    fn each_state_names_tests_that_there_are() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folders = ["image", "raw", "qcow2", "log", "formats"].map(|it| crates.join(it));
        assert_tests(
            &folders.each_ref().map(PathBuf::as_path),
            Wait::ALL.iter().flat_map(|wait| wait.shown_by()),
        );
    }
}
