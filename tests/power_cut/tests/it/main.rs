//! What a power cut leaves of a disk, seen by a driver; and that the product has no part of this.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

use flowstone_testkit::process::{flowstone_binary, temp_dir};
use flowstone_testkit::{Client, ClientOptions, DaemonCommand, Status};

const POWER_CUT: &str = env!("CARGO_BIN_EXE_flowstone-power-cut");

#[test]
fn detected_zeroes_of_a_write_through_disk_are_durable() {
    let folder = temp_dir().unwrap();
    let (image, socket) = (folder.path().join("disk.raw"), folder.path().join("disk.sock"));
    std::fs::File::create_new(&image).unwrap().set_len(1 << 20).unwrap();
    let command = DaemonCommand::new(POWER_CUT).args(["serve", "--detect-zeroes", "unmap"]);
    let mut daemon = command.arg("--socket").arg(&socket).arg(&image).spawn().unwrap();
    let mut client = Client::connect(ClientOptions::new(&socket)).unwrap();
    client.set_wce(false).unwrap();
    assert_eq!(client.write(0, &[1; 8192]).unwrap(), Status::Ok);
    assert_eq!(client.write(0, &[0; 4096]).unwrap(), Status::Ok);
    daemon.kill().unwrap();
    let bytes = std::fs::read(&image).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 0), "a durable write was lost");
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 1));
}

/// Texts of the test machinery that a build with it has.
const TEST_MACHINERY: [&str; 2] = ["volatile file, seed", "when killed, loses what was not"];

fn has(binary: &Path, text: &str) -> bool {
    let bytes = std::fs::read(binary).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The product of the same workspace build: what tests depend on is not unified into it.
#[test]
fn the_product_has_no_volatile_engine() {
    let product = flowstone_binary().unwrap();
    for text in TEST_MACHINERY {
        assert!(has(Path::new(POWER_CUT), text), "{text:?} tells nothing any more");
        assert!(!has(&product, text), "{} has {text:?}", product.display());
    }
    let asked = Command::new(&product)
        .args(["serve", "--socket", "s.sock", "--engine", "volatile", "disk.raw"])
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(2), "a usage error");
    let help = Command::new(&product).args(["serve", "--help"]).output().unwrap();
    assert!(help.status.success() && !help.stdout.is_empty());
    assert!(!String::from_utf8_lossy(&help.stdout).contains("volatile"));
}
