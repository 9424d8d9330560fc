//! Extended attributes: those of the source, or none at all.

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::fixture::Mount;

const NAME: &str = "user.flowstone-test";

#[test]
fn extended_attributes_are_those_of_the_source() {
    let Some(fixture) = Mount::start(&["--xattrs"]) else { return };
    fixture.write_source("file", "text");
    let (here, there) = (fixture.at("file"), fixture.source("file"));
    if setxattr(&there, NAME, b"one", XattrFlags::empty()) == Err(Errno::OPNOTSUPP) {
        flowstone_testkit::skip("the file system of temporary files has no extended attributes");
        return;
    }
    let mut value = [0; 16];
    assert_eq!(getxattr(&here, NAME, &mut value[..]), Ok(3));
    assert_eq!(&value[..3], b"one");
    setxattr(&here, NAME, b"other", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&there, NAME, &mut value[..]), Ok(5));
}

/// `ls -l` asks for two per file, each of which took a call of the daemon.
#[test]
fn a_mount_without_extended_attributes_has_none_and_takes_none() {
    let Some(fixture) = Mount::start(&[]) else { return };
    fixture.write_source("file", "text");
    let (here, there) = (fixture.at("file"), fixture.source("file"));
    let _ = setxattr(&there, NAME, b"one", XattrFlags::empty());
    let mut value = [0; 16];
    assert_eq!(getxattr(&here, NAME, &mut value[..]), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(&here, NAME, b"two", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(fixture.read("file"), "text");
}
