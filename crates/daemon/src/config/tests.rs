use flowstone_image::ResortLimit;

use super::*;
use crate::cache_config::{CacheSize, PolicyKind};

fn read(text: &str) -> Result<Config> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flowstone.toml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path)
}

/// Why the file, or one of its disks, is refused.
fn refusal(text: &str) -> String {
    let refused = match read(text) {
        Ok(config) => config.refused.into_iter().next().expect("a refusal"),
        Err(error) => error,
    };
    refused.to_string()
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
    assert!(matches!(disk.source().unwrap(), Source::Image(_, Format::Raw)));
}

#[test]
fn every_key_is_read() {
    let config = read(
        r#"
        control = "/run/control.sock"
        guest-agent = "/run/guests.sock"
        cache = "1G"
        cache-min = "256M"
        cache-policy = "lru"
        [[group]]
        name = "web"
        iops = 1000
        bw = "10M"
        burst = "500ms"
        [[disk]]
        name = "vm1"
        image = "/dev/sdb"
        format = "raw"
        socket = "/run/vm1.sock"
        queues = 4
        cpus = "2-5"
        poll = "never"
        discard = "ignore"
        serial = "WD-WX12A34"
        socket-group = "0"
        socket-mode = "0660"
        backing-dirs = ["/images"]
        detect-zeroes = "on"
        pdc = "off"
        resort = "20G"
        limit = "iops=300,burst=2s"
        group = "web"
        weight = 250
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
    let cache = CacheConfig::new(CacheSize(1 << 30), Some(CacheSize(1 << 28)), PolicyKind::Lru);
    assert_eq!(config.cache, Some(cache.unwrap()));
    let disk = &config.disks[0];
    assert_eq!((disk.cpus.for_thread(1), disk.pdc), (Some(3), Pdc::Off));
    assert_eq!(disk.resort, Resort(ResortLimit::Bytes(20 << 30)));
    let group =
        GroupConfig { name: "web".into(), limit: "iops=1000,bw=10M,burst=0.5s".parse().unwrap() };
    assert_eq!((config.groups, disk.group.as_deref()), (vec![group], Some("web")));
    assert_eq!((disk.limit, disk.weight.get()), ("iops=300,burst=2s".parse().unwrap(), 250));
    assert_eq!(config.disks[1].weight.get(), 100);
    assert_eq!(disk.engine, Choice(EngineChoice::Sync));
    assert_eq!(disk.layers.len(), 2);
    assert_eq!(disk.detect_zeroes, DetectZeroes::On);
    assert!(matches!(config.disks[1].source().unwrap(), Source::Mem(bytes) if bytes == 1 << 30));
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let disk = "[[disk]]\nname = 'a'\nimage = 'a.raw'\nsocket = 's'\n";
    let group = "[[group]]\nname = 'web'\niops = 5\n";
    for (text, expected) in [
        ("", "has no [[disk]]"),
        ("[[disk]]\nname = 'a'\nsokcet = 's'\n", "unknown field `sokcet`"),
        ("[[disk]]\nname = 'a'\n", "missing field `socket`"),
        (&format!("{disk}{disk}"), "two disks are called `a`"),
        (&format!("{disk}poll = 'often'\n"), "`often` is not a polling mode"),
        (&format!("{disk}poll = 'a|b'\n"), "`a|b` is not a polling mode"),
        (&format!("{disk}'a|b' = 1\n"), "unknown field `a|b`"),
        (&format!("{disk}layers = ['lag=1ms']\n"), "`lag=1ms` is not a layer"),
        (
            &format!("{disk}resort = '0'\n"),
            "`0` is not an amount for a day; use a size such as 20G, or off",
        ),
        (&format!("{disk}limit = 'iops=0'\n"), "`iops=0` is no rate; use 20000"),
        (&format!("{disk}weight = 0\n"), "a weight of 0; use one from 1 to 10000"),
        (&format!("{disk}group = 'web'\n"), "no [[group]] called `web`; add it"),
        (&format!("[[group]]\nname = 'web'\niosp = 3\n{disk}"), "unknown field `iosp`"),
        (&format!("[[group]]\nname = 'web'\nbw = '1x'\n{disk}"), "`bw=1x` is no rate"),
        (&format!("[[group]]\nname = ''\n{disk}"), "the name of a group is empty"),
        (&format!("{group}{group}{disk}"), "two groups are called `web`"),
        (&format!("{disk}pdc = 'no'\n"), "`no` is not a choice for journals"),
        (&format!("cache = '4K'\n{disk}"), "a cache of 4K; use a size from 1 MiB"),
        (&format!("cache = '2M'\ncache-min = '3M'\n{disk}"), "smallest size is larger"),
        (&format!("cache-min = '3M'\n{disk}"), "without a cache; add cache = SIZE"),
        (&format!("cache-policy = 'arc'\n{disk}"), "`arc` is not a cache policy"),
        ("control = 7\n", "invalid type"),
        (&format!("control = 's'\n{disk}"), "both a disk's socket and the control socket"),
        (&format!("guest-agent = 's'\n{disk}"), "both a disk's socket and that of guests' agents"),
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
}

#[test]
fn what_no_disk_can_be_is_refused() {
    let valid =
        DiskConfig { backend: Some(Backend::Null(1)), ..DiskConfig::new("a".into(), "s".into()) };
    for queues in [0, QUEUES_MAX + 1] {
        let disk = DiskConfig { queues, ..valid.clone() };
        assert!(
            Config::single(Config::default(), disk).unwrap_err().to_string().contains("1 to 128")
        );
    }
    let (detect_zeroes, discard) = (DetectZeroes::Unmap, DiscardMode::Keep);
    let disk = DiskConfig { detect_zeroes, discard, ..valid.clone() };
    assert!(
        Config::single(Config::default(), disk)
            .unwrap_err()
            .to_string()
            .contains("give space back")
    );
    assert!(Config::single(Config::default(), valid).is_ok());
}

/// A misspelt key of one disk kept the guests of all others without theirs.
#[test]
fn a_mistake_in_one_disk_costs_no_other() {
    let disk = |name: &str, more: &str| {
        format!("[[disk]]\nname = '{name}'\nbackend = 'mem:1M'\nsocket = '{name}.sock'\n{more}\n")
    };
    let text = ["poll = 'often'", "", "queues = 0", "sokcet = 's'", "socket = 1"];
    let text = ["a", "b", "c", "d"].iter().zip(text).map(|(name, more)| disk(name, more));
    let text = text.collect::<String>() + &disk("b", "") + &disk("e", "");
    let config = read(&text).unwrap();
    let names: Vec<&str> = config.disks.iter().map(|disk| &*disk.name).collect();
    assert_eq!(names, ["b", "e"]);
    let refused: Vec<String> = config.refused.iter().map(ToString::to_string).collect();
    let expected = [
        "disk 1 (line 1): `often` is not a polling mode",
        "disk 3 (line 11): 0 queues; use 1 to 128 queues",
        "disk 4 (line 16): unknown field `sokcet`",
        "disk 5 (line 21): two disks are called `b`",
    ];
    assert_eq!(refused.len(), expected.len(), "{refused:?}");
    for (line, expected) in refused.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
    assert!(read("[[disk]]\n[[dsik]]\n").is_err(), "a mistake that may be any disk's");
}

/// A name with a NUL made the daemon panic, and a long one was cut silently.
#[test]
fn names_that_a_guest_or_a_thread_cannot_have_are_refused() {
    let longest = "x".repeat(128);
    for (name, expected) in [
        ("", "is empty"),
        (&format!("{longest}y"), "is longer than 128 bytes"),
        ("nul\\u0000", "has control characters"),
        ("two\\nlines", "has control characters"),
    ] {
        let disk = format!("[[disk]]\nname = \"{name}\"\nbackend = 'mem:1M'\nsocket = 's'\n");
        let message = refusal(&disk);
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
    assert!(Config::single(Config::default(), DiskConfig::new("a\0".into(), "s".into())).is_err());
    assert!(Config::single(Config::default(), DiskConfig::new(longest, "s".into())).is_ok());
}

#[test]
fn a_name_made_from_an_image_is_one_that_a_disk_can_have() {
    let almost = "x".repeat(127);
    for (image, name) in [
        ("/images/vm1.raw", "vm1"),
        ("/images/an-image-with-a-long-name.raw", "an-image-with-a-long-name"),
        (&format!("/images/{almost}\u{e9}.raw"), &almost),
        ("/images/two\nlines.raw", "two_lines"),
        ("/", "disk"),
    ] {
        assert_eq!(DiskConfig::name_from(Path::new(image)), name);
    }
}

#[test]
fn a_serial_is_the_name_or_as_much_of_it_as_a_guest_reads() {
    for (name, serial) in [
        ("vm1", "vm1"),
        ("6a0a2b3c-8d1e-4f5a-9b6c-7d8e9f0a1b2c", "6a0a2b3c-8d1e-4f5a-9"),
        ("1234567890123456789\u{e9}", "1234567890123456789"),
    ] {
        assert_eq!(DiskConfig::new(name.into(), "s".into()).serial(), serial);
    }
}

/// `backing_dirs` stood beside `detect-zeroes`, and each was refused in the other's spelling.
#[test]
fn every_key_may_be_spelt_with_hyphens_or_underscores() {
    for keys in [keys::every_spelling::<ConfigFile>(), keys::every_spelling::<DiskConfig>()] {
        assert!(keys.contains(&"socket-group"), "{keys:?}");
        for key in keys {
            assert!(keys.contains(&&*key.replace('_', "-")), "{key} needs a hyphen");
            assert!(keys.contains(&&*key.replace('-', "_")), "{key} needs an alias");
        }
    }
    let disk = "[[disk]]\nname = 'a'\nbackend = 'mem:1M'\nsocket = 's'\n";
    type IsRead = fn(&DiskConfig) -> bool;
    let lines: [(&str, IsRead); 6] = [
        ("detect_zeroes = 'on'", |disk| disk.detect_zeroes == DetectZeroes::On),
        ("detect-zeroes = 'on'", |disk| disk.detect_zeroes == DetectZeroes::On),
        ("backing_dirs = ['/b']", |disk| disk.backing_dirs.len() == 1),
        ("backing-dirs = ['/b']", |disk| disk.backing_dirs.len() == 1),
        ("socket_mode = '0600'", |disk| disk.socket_mode.is_some()),
        ("socket-mode = '0600'", |disk| disk.socket_mode.is_some()),
    ];
    for (line, is_read) in lines {
        let config = read(&format!("{disk}{line}\n")).unwrap();
        assert!(is_read(&config.disks[0]), "{line}");
    }
}

#[test]
fn a_key_that_is_given_in_both_spellings_is_refused() {
    let disk = "[[disk]]\nname = 'a'\nbackend = 'mem:1M'\nsocket = 's'\n";
    let twice = "detect-zeroes = 'on'\ndetect_zeroes = 'off'\n";
    let message = refusal(&format!("{disk}{twice}"));
    assert!(message.contains("duplicate field `detect-zeroes`"), "{message}");
    let message = refusal(&format!("socket-mode = '0600'\nsocket_mode = '0600'\n{disk}"));
    assert!(message.contains("duplicate field `socket-mode`"), "{message}");
}

#[test]
fn sockets_are_as_the_file_says_where_their_disks_do_not() {
    let config = read(
        r#"
        socket-mode = "0600"
        socket-group = "7"
        [[disk]]
        name = "a"
        backend = "mem:1M"
        socket = "a.sock"
        [[disk]]
        name = "b"
        backend = "mem:1M"
        socket = "b.sock"
        socket-mode = "0666"
        "#,
    )
    .unwrap();
    for (disk, mode) in config.disks.iter().zip(["0600", "0666"]) {
        assert_eq!(disk.socket_group, Some("7".parse().unwrap()));
        assert_eq!(disk.socket_mode, Some(mode.parse().unwrap()));
    }
    let decimal = "[[disk]]\nname = 'a'\nbackend = 'mem:1M'\nsocket = 's'\nsocket-mode = 432\n";
    assert!(refusal(decimal).contains("expected a string"));
}
