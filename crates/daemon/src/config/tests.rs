use super::*;

fn read(text: &str) -> Result<Config> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flowstone.toml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path)
}

fn refusal(text: &str) -> String {
    read(text).expect_err("a refusal").to_string()
}

#[test]
fn a_disk_needs_three_keys_and_the_rest_has_defaults() {
    let config = read(
        r#"
        [[disk]]
        name = "vm1"
        image = "/images/vm1.raw"
        socket = "/run/vm1.sock"
        "#,
    )
    .unwrap();
    let disk = &config.disks[0];
    assert_eq!((disk.queues, disk.poll, disk.readonly), (QUEUES_DEFAULT, PollMode::Auto, false));
    assert!(matches!(disk.source().unwrap(), Source::Image { format: Format::Raw, .. }));
}

#[test]
fn every_key_is_read() {
    let config = read(
        r#"
        control = "/run/control.sock"
        [[disk]]
        name = "vm1"
        image = "/dev/sdb"
        format = "raw"
        socket = "/run/vm1.sock"
        queues = 4
        cpus = "2-5"
        poll = "never"
        discard = "ignore"
        detect-zeroes = "on"
        engine = "sync"
        direct = "off"
        readonly = true
        layers = ["verify", "delay=0-5ms"]
        [[disk]]
        name = "scratch"
        backend = "mem:1G"
        socket = "/run/scratch.sock"
        "#,
    )
    .unwrap();
    let disk = &config.disks[0];
    assert_eq!(disk.cpus.for_queue(1), Some(3));
    assert_eq!(disk.engine, Choice(EngineChoice::Sync));
    assert_eq!(disk.layers.len(), 2);
    assert_eq!(disk.detect_zeroes, DetectZeroes::On);
    assert!(matches!(config.disks[1].source().unwrap(), Source::Mem(bytes) if bytes == 1 << 30));
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let disk = "[[disk]]\nname = 'a'\nimage = 'a.raw'\nsocket = 's'\n";
    for (text, expected) in [
        ("", "has no [[disk]]"),
        ("[[disk]]\nname = 'a'\nsokcet = 's'\n", "unknown field `sokcet`"),
        ("[[disk]]\nname = 'a'\n", "missing field `socket`"),
        (&format!("{disk}{disk}"), "two disks are called `a`"),
        (&format!("{disk}poll = 'often'\n"), "`often` is not a polling mode"),
        (&format!("{disk}layers = ['lag=1ms']\n"), "`lag=1ms` is not a layer"),
        ("control = 7\n", "invalid type"),
        (&format!("control = 's'\n{disk}"), "both a disk's socket and the control socket"),
    ] {
        let message = refusal(text);
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_disk_has_an_image_or_a_backend() {
    let mut disk = DiskConfig::new("a".into(), "s".into());
    assert!(disk.source().is_err());
    disk.backend = Some(Backend::Null(1 << 30));
    assert!(disk.source().is_ok());
    disk.image = Some("a.raw".into());
    assert!(disk.source().is_err());
    disk.backend = None;
    disk.queues = 0;
    assert!(disk.source().is_err());
}

/// A name with a NUL made the daemon panic, and a long one was cut silently.
#[test]
fn names_that_a_guest_or_a_thread_cannot_have_are_refused() {
    let longest = "x".repeat(20);
    for (name, expected) in [
        ("", "is empty"),
        (&format!("{longest}y"), "is longer than 20 bytes"),
        ("nul\\u0000", "has control characters"),
        ("two\\nlines", "has control characters"),
    ] {
        let disk = format!("[[disk]]\nname = \"{name}\"\nbackend = 'mem:1M'\nsocket = 's'\n");
        let message = refusal(&disk);
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
    assert!(Config::single(None, DiskConfig::new("a\0".into(), "s".into())).is_err());
    assert!(Config::single(None, DiskConfig::new(longest, "s".into())).is_ok());
}

#[test]
fn a_name_made_from_an_image_is_one_that_a_disk_can_have() {
    for (image, name) in [
        ("/images/vm1.raw", "vm1"),
        ("/images/an-image-with-a-long-name.raw", "an-image-with-a-long"),
        ("/images/1234567890123456789\u{e9}.raw", "1234567890123456789"),
        ("/images/two\nlines.raw", "two_lines"),
        ("/", "disk"),
    ] {
        assert_eq!(DiskConfig::name_from(Path::new(image)), name);
    }
}
