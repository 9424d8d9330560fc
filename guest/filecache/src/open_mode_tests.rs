//! A test for each cell of the table.

use super::Answer::{As, Elsewhere};
use super::*;

/// A closed node of a file that has no copy, opened for reading.
const CLOSED: Ask = Ask {
    bound: None,
    is_split: false,
    other_is_open: false,
    writes: false,
    has_fresh_copy: false,
    is_kept_back: false,
    is_new: false,
    ids_fit: true,
    is_set_id: false,
    allowed: Modes::ALL,
};

fn open(mode: Mode) -> Ask {
    Ask { bound: Some(mode), ..CLOSED }
}

fn writing(ask: Ask) -> Ask {
    Ask { writes: true, ..ask }
}

fn with_copy(ask: Ask) -> Ask {
    Ask { has_fresh_copy: true, ..ask }
}

#[test]
fn a_closed_node_is_read_from_a_fresh_copy_and_else_from_the_source() {
    assert_eq!(answer(&with_copy(CLOSED)), As(Mode::Copy));
    assert_eq!(answer(&CLOSED), As(Mode::Source));
}

#[test]
fn a_closed_node_is_written_to_the_source_whether_there_is_a_copy_or_not() {
    assert_eq!(answer(&writing(CLOSED)), As(Mode::Source));
    assert_eq!(answer(&writing(with_copy(CLOSED))), As(Mode::Source));
}

#[test]
fn a_closed_node_whose_writes_are_kept_back_goes_through_the_daemon() {
    let ask = Ask { is_kept_back: true, ..with_copy(CLOSED) };
    assert_eq!(answer(&ask), As(Mode::Plain));
    assert_eq!(answer(&writing(ask)), As(Mode::Plain));
}

#[test]
fn a_file_that_is_made_at_a_server_is_not_opened_there_once_more() {
    let ask = Ask { is_new: true, ..CLOSED };
    assert_eq!(answer(&ask), As(Mode::Plain));
    assert_eq!(answer(&writing(ask)), As(Mode::Plain));
    assert_eq!(answer(&Ask { bound: Some(Mode::Source), ..writing(ask) }), As(Mode::Source));
}

#[test]
fn a_closed_node_whose_split_node_is_open_leads_there() {
    let ask = Ask { other_is_open: true, ..with_copy(CLOSED) };
    assert_eq!(answer(&ask), Elsewhere);
    assert_eq!(answer(&writing(ask)), Elsewhere);
}

#[test]
fn a_copy_is_shared_by_readers_alone_and_only_while_it_is_fresh() {
    assert_eq!(answer(&with_copy(open(Mode::Copy))), As(Mode::Copy));
    assert_eq!(answer(&open(Mode::Copy)), Elsewhere);
    assert_eq!(answer(&writing(with_copy(open(Mode::Copy)))), Elsewhere);
    assert_eq!(answer(&writing(open(Mode::Copy))), Elsewhere);
}

#[test]
fn the_source_is_shared_by_callers_with_the_same_ids() {
    for ask in [open(Mode::Source), with_copy(open(Mode::Source))] {
        assert_eq!(answer(&ask), As(Mode::Source));
        assert_eq!(answer(&writing(ask)), As(Mode::Source));
        let other = Ask { ids_fit: false, ..ask };
        assert_eq!(answer(&other), Elsewhere);
        assert_eq!(answer(&writing(other)), Elsewhere);
    }
}

#[test]
fn a_plain_node_stays_plain_until_its_last_close() {
    for ask in [open(Mode::Plain), with_copy(open(Mode::Plain))] {
        assert_eq!(answer(&ask), As(Mode::Plain));
        assert_eq!(answer(&writing(ask)), As(Mode::Plain));
    }
}

#[test]
fn a_split_node_keeps_no_pages() {
    for bound in [None, Some(Mode::Direct)] {
        for other_is_open in [false, true] {
            let ask = Ask { bound, is_split: true, other_is_open, ..with_copy(CLOSED) };
            assert_eq!(answer(&ask), As(Mode::Direct));
            assert_eq!(answer(&writing(ask)), As(Mode::Direct));
        }
    }
}

#[test]
fn a_caller_whose_ids_cannot_be_known_goes_through_the_daemon() {
    let ask = Ask { ids_fit: false, ..CLOSED };
    assert_eq!(answer(&ask), As(Mode::Plain));
    assert_eq!(answer(&writing(ask)), As(Mode::Plain));
}

#[test]
fn a_write_that_takes_a_bit_of_the_mode_away_goes_through_the_daemon() {
    let set_id = |ask| Ask { is_set_id: true, ..ask };
    assert_eq!(answer(&writing(set_id(CLOSED))), As(Mode::Plain));
    assert_eq!(answer(&writing(set_id(open(Mode::Source)))), Elsewhere);
    assert_eq!(answer(&set_id(CLOSED)), As(Mode::Source));
    assert_eq!(answer(&set_id(open(Mode::Source))), As(Mode::Source));
}

#[test]
fn what_is_not_allowed_is_plain() {
    let plain = |ask| Ask { allowed: Modes::PLAIN, ..ask };
    assert_eq!(answer(&plain(with_copy(CLOSED))), As(Mode::Plain));
    assert_eq!(answer(&plain(writing(CLOSED))), As(Mode::Plain));
    let no_copy = Ask { allowed: Modes { copy: false, source: true }, ..with_copy(CLOSED) };
    assert_eq!(answer(&no_copy), As(Mode::Source));
    let no_source = Ask { allowed: Modes { copy: true, source: false }, ..CLOSED };
    assert_eq!(answer(&no_source), As(Mode::Plain));
    assert_eq!(answer(&with_copy(no_source)), As(Mode::Copy));
}
