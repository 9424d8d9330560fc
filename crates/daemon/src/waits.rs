//! The states in which a request, a queue or a command waits outside an image, and who ends each:
//! docs/durability.md, "What a request waits for", has the same table. `waits.rs` of `image` has
//! those inside of one. A state that a thread or another queue ends is ended by its death, too.
//!
//! In the cache a read waits for a read-ahead of its queue only: a block that another request fills
//! or writes is read below.

use std::fmt;

use flowstone_testkit::table::assert_rows;

/// What waits, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Turn,
    Limit,
    Device,
    Channel,
    Ahead,
    OtherHalf,
    Return,
    Start,
    Move,
    Form,
    Stop,
    Opening,
    Removal,
    Use,
    Recording,
    Change,
    Command,
    Report,
    Path,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Poller,
    Clock,
    OtherDisk,
    Image,
    BackHalf,
    FrontHalf,
    FormChanger,
    OpeningThread,
    RemovingThread,
    UsingThread,
    ClientThread,
    ProbeThread,
    PathThread,
}

impl fmt::Display for Owner {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Poller => "the poller's thread",
            Self::Clock => "the poller's thread, by the clock; a disk of its group gives way",
            Self::OtherDisk => "the queue of the disk that has the slots",
            Self::Image => "the image (the table above)",
            Self::BackHalf => "the half that completes",
            Self::FrontHalf => "the half that takes requests",
            Self::FormChanger => "the thread that changes forms",
            Self::OpeningThread => "the thread that opens the disk",
            Self::RemovingThread => "the thread that stops the disk",
            Self::UsingThread => {
                "the thread that uses it: of a command, a report, the monitor of resources"
            }
            Self::ClientThread => "the thread of the client",
            Self::ProbeThread => "the thread that asks the image",
            Self::PathThread => "the thread that looks at a path",
        })
    }
}

impl Wait {
    const ALL: [Self; 19] = [
        Self::Turn,
        Self::Limit,
        Self::Device,
        Self::Channel,
        Self::Ahead,
        Self::OtherHalf,
        Self::Return,
        Self::Start,
        Self::Move,
        Self::Form,
        Self::Stop,
        Self::Opening,
        Self::Removal,
        Self::Use,
        Self::Recording,
        Self::Change,
        Self::Command,
        Self::Report,
        Self::Path,
    ];

    const fn what(self) -> &'static str {
        match self {
            Self::Turn => "a request in the ring: a turn of its queue, beside others of the thread",
            Self::Limit => "a request in the ring: the limit of its disk or group",
            Self::Device => "a request below the image: a slot at the device",
            Self::Channel => {
                "a request with the disk; one in the ring while those in flight weigh too much"
            }
            Self::Ahead => "a read in the cache: the read-ahead of its block",
            Self::OtherHalf => "a request that is handed over: the other thread of its queue",
            Self::Return => "the stop of the half that completes: the order to leave of the other",
            Self::Start => "a queue that is handed over to a poller: that it runs",
            Self::Move => "a queue that moves to another poller",
            Self::Form => "the stop of a queue whose form changes, or is tried",
            Self::Stop => "a stop or a change of form: that nothing of the queue is in flight",
            Self::Opening => "the end of the daemon: a disk that starts",
            Self::Removal => "a removal of a disk that leaves: that it has gone, for 10 s",
            Self::Use => "a removal: that nothing else uses the disk, which is stopped",
            Self::Recording => "the stop of a disk: the ends of its recordings, for 3 s",
            Self::Change => "a command that adds, changes or removes: the one before it, for 10 s",
            Self::Command => "a client of the control socket: its answer, or a place",
            Self::Report => "`stats`, the stop of a disk: what its image says of itself",
            Self::Path => "a command that names a path: the look at another one",
        }
    }

    const fn owner(self) -> Owner {
        match self {
            Self::Turn | Self::Start | Self::Move | Self::Stop => Owner::Poller,
            Self::Limit => Owner::Clock,
            Self::Device => Owner::OtherDisk,
            Self::Channel | Self::Ahead => Owner::Image,
            Self::OtherHalf => Owner::BackHalf,
            Self::Return => Owner::FrontHalf,
            Self::Form => Owner::FormChanger,
            Self::Opening => Owner::OpeningThread,
            Self::Removal => Owner::RemovingThread,
            Self::Use => Owner::UsingThread,
            Self::Recording | Self::Change | Self::Command => Owner::ClientThread,
            Self::Report => Owner::ProbeThread,
            Self::Path => Owner::PathThread,
        }
    }

    /// How the owner's death ends it.
    const fn ends(self) -> &'static str {
        match self {
            Self::Turn => "a panic in a turn ends its queue alone (`Task::guard`)",
            Self::Limit => "its place in the line is given up (`Admission`)",
            Self::Device => "its slots are given back (`SharedChannel`)",
            Self::Channel => "what the disk has comes back before the queue is dropped (`retire`)",
            Self::Ahead => "a read-ahead that fails ends the wait, and the read goes below",
            Self::OtherHalf => "its ring is abandoned, and the front is woken (`BackLink`)",
            Self::Return => "the other half is stopped all the same",
            Self::Start | Self::Move => "what is posted to it comes back, or ends (`EndsInbox`)",
            Self::Form => "the queue is over",
            Self::Stop => "the queue's channel of ends is closed, and it is not given back",
            Self::Opening => "the disk is given up (`Disks::open`)",
            Self::Removal => "the disk has gone all the same (`Disks::end`)",
            Self::Use => "it lets go of the disk",
            Self::Recording => "its recording has ended (`Recording`)",
            Self::Change => {
                "the next one is made (`Changes`), and has the same file (`State::change`)"
            }
            Self::Command => "its connection is closed, its place is free",
            Self::Report => "the question ends without an answer (`Question`)",
            Self::Path => "the next one looks (`Looks`)",
        }
    }

    /// The tests that kill the owner.
    const fn shown_by(self) -> &'static [&'static str] {
        match self {
            Self::Turn | Self::Stop => &["a_queue_that_panics_takes_no_other_one_with_it"],
            Self::Limit => &["a_disk_that_goes_leaves_its_group_to_the_others"],
            Self::Device => &[
                "slots_of_a_channel_that_goes_are_given_to_others",
                "what_waits_when_a_channel_goes_is_carried_out",
            ],
            Self::Channel => {
                &["a_queue_that_has_panicked_is_dropped_when_its_disk_has_nothing_of_it_any_more"]
            }
            Self::Ahead => &["a_read_that_waits_for_a_read_ahead_is_read_by_itself_if_that_fails"],
            Self::OtherHalf => &[
                "a_front_stops_whose_other_half_has_panicked",
                "a_front_whose_other_half_has_panicked_sleeps_until_it_is_to_leave",
            ],
            Self::Return => &["a_queue_whose_front_has_panicked_stops_when_nothing_is_in_flight"],
            Self::Start => &["what_is_posted_runs_or_comes_back"],
            Self::Move => &["a_queue_that_moves_to_a_poller_that_ends_is_not_waited_for"],
            Self::Form => &["a_queue_stops_when_the_thread_that_changes_its_form_panics"],
            Self::Opening => &["a_disk_whose_opening_panics_is_not_waited_for"],
            Self::Removal => &["a_disk_whose_stop_panics_is_gone"],
            Self::Use => &["a_removal_does_not_wait_for_a_thread_that_has_panicked_with_the_disk"],
            Self::Recording => &["a_recording_whose_client_panics_is_not_waited_for"],
            Self::Change => &[
                "a_change_whose_thread_panics_does_not_hold_up_the_next_one",
                "after_a_change_that_failed_or_panicked_at_its_end_the_next_one_has_the_same_file",
            ],
            Self::Command => &["a_command_that_panics_ends_its_client_alone"],
            Self::Report => &["an_image_that_panics_when_it_is_asked_is_not_waited_for"],
            Self::Path => &["a_look_at_a_path_that_panics_lets_the_next_one_look"],
        }
    }

    /// Its row of the table.
    fn row(self) -> String {
        let (what, owner, ends) = (self.what(), self.owner(), self.ends());
        format!("| `{self:?}` | {what} | {owner} | {ends} | {} |", self.shown_by().join(", "))
    }
}

#[test]
fn the_document_names_each_state_its_owner_and_its_test() {
    let mark = "<!-- crates/daemon/src/waits.rs -->\n";
    let document = include_str!("../../../docs/durability.md");
    assert_rows(document, mark, &Wait::ALL.map(Wait::row));
}
