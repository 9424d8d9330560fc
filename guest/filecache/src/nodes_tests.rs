//! Tests of the table of nodes.
