use std::collections::BTreeSet;

use flowstone_cache::{CacheSize, FreqThreshold, PolicyKind};
use flowstone_control::OPENAPI;
use flowstone_fileio::EngineChoice;
use flowstone_image::Format;
use flowstone_layers::DetectZeroes;
use flowstone_log::{ResortLimit, Streams};

use super::*;
use crate::stack::{Backend, Pdc, Source};
use flowstone_runner::PollerChoice;

fn read(text: &str) -> Result<Config> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flowstone.toml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path, &[])
}

/// Returns the error with which the file, or one of its disks, is refused.
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
    assert_eq!((disk.queues, disk.poll, disk.stack.readonly), (64, PollMode::Auto, false));
    assert!(matches!(disk.stack.source("vm1").unwrap(), Source::Image(_, Format::Raw)));
}

const EVERY_KEY: &str = r#"
    control = "/run/control.sock"
    guest-agent = "/run/guests.sock"
    cache = "1G"
    cache-min = "256M"
    cache-policy = "multicache"
    freq-threshold = "0.25"
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
    streams = "split"
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
"#;

#[test]
fn every_key_is_read() {
    let config = read(EVERY_KEY).unwrap();
    let cache = config.daemon.shared.cache;
    assert_eq!([cache.cache, cache.cache_min], [1 << 30, 1 << 28].map(|it| Some(CacheSize(it))));
    assert_eq!(cache.cache_policy, Some(PolicyKind::MultiCache));
    assert_eq!(cache.freq_threshold, Some(FreqThreshold(0.25)));
    let disk = &config.disks[0];
    let (cpus, stack) = (disk.cpus.as_ref().and_then(|it| it.for_thread(1)), &disk.stack);
    assert_eq!((cpus, stack.journals.pdc), (Some(3), Pdc::Off));
    assert_eq!(stack.opened.resort, Some(ResortLimit::Bytes(20 << 30)));
    assert_eq!(stack.opened.streams, Some(Streams::Class));
    let [group] = config.groups.all() else { panic!("{:?}", config.groups) };
    assert_eq!((&*group.name, disk.beside.group.as_deref()), ("web", Some("web")));
    assert_eq!(group.together.limit(), "iops=1000,bw=10M,burst=0.5s".parse());
    assert_eq!(stack.share.limit, "iops=300,burst=2s".parse().ok());
    assert_eq!(stack.share.weight.map(|weight| weight.get()), Some(250));
    assert_eq!(stack.file.engine, EngineChoice::Sync);
    assert_eq!(stack.layers.layers.len(), 2);
    let scratch = config.disks[1].stack.source("scratch").unwrap();
    assert!(matches!(scratch, Source::Mem(bytes) if bytes == 1 << 30));
}

#[test]
fn the_document_of_the_control_socket_has_the_keys_of_disks_and_groups() {
    let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
    let groups = keys_of::<flowstone_qos::GroupArgs>();
    for (schema, command) in [("DiskKeys", keys_of::<DiskTable>()), ("GroupKeys", groups)] {
        let keys: BTreeSet<String> = command.get_arguments().map(key_of).collect();
        let documented = document["components"]["schemas"][schema]["properties"].as_object();
        assert_eq!(documented.unwrap().keys().cloned().collect::<BTreeSet<_>>(), keys, "{schema}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let disk = "[[disk]]\nname = 'a'\nimage = 'a.raw'\nsocket = 's'\n";
    let group = "[[group]]\nname = 'web'\niops = 5\n";
    for (text, expected) in [
        ("", "has no [[disk]]"),
        ("[[disk]]\nname = 'a'\nsokcet = 's'\n", "unknown key `sokcet`; did you mean `socket`?"),
        ("[[disk]]\nname = 'a'\n", "`socket` is missing"),
        (&format!("{disk}{disk}"), "two disks are called `a`"),
        (&format!("{disk}poll = 'often'\n"), "`often` is no choice for `poll`; use one of auto, "),
        (&format!("{disk}poll = 'a|b'\n"), "`a|b` is no choice for `poll`"),
        (&format!("{disk}'a|b' = 1\n"), "unknown key `a|b`"),
        (&format!("{disk}layers = ['lag=1ms']\n"), "`lag=1ms` is not a layer"),
        (
            &format!("{disk}resort = '0'\n"),
            "`0` is not an amount for a day; use a size such as 20G, or off",
        ),
        (&format!("{disk}limit = 'iops=0'\n"), "`iops=0` is no rate; use 20000"),
        (&format!("{disk}weight = 0\n"), "a weight of 0; use one from 1 to 10000"),
        (&format!("{disk}group = 'web'\n"), "no [[group]] called `web`; add it"),
        (
            &format!("[[group]]\nname = 'web'\niosp = 3\n{disk}"),
            "group 1 (line 1): unknown key `iosp`; did you mean `iops`?",
        ),
        (&format!("[[group]]\nname = 'web'\nbw = '1x'\n{disk}"), "`bw=1x` is no rate"),
        (&format!("[[group]]\nname = ''\n{disk}"), "the name of a group is empty"),
        (&format!("{group}{group}{disk}"), "two groups are called `web`"),
        (&format!("{disk}pdc = 'no'\n"), "`no` is no choice for `pdc`; use one of on, off"),
        (&format!("cache = '4K'\n{disk}"), "a cache of 4K; use a size from 1 MiB"),
        (&format!("cache = '2M'\ncache-min = '3M'\n{disk}"), "smallest size is larger"),
        (&format!("cache-min = '3M'\n{disk}"), "without a cache; give --cache"),
        (
            &format!("cache-policy = 'arc'\n{disk}"),
            "`arc` is no choice for `cache-policy`; use one of default, multicache-count, multicache-weight",
        ),
        ("control = [7]\n", "`control` is [7]; write a string"),
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
    let mut stack = DiskConfig::new("a", Path::new("s")).stack;
    assert!(stack.source("a").is_err());
    stack.backend = Some(Backend::Null(1 << 30));
    assert!(stack.source("a").is_ok());
    stack.image = Some("a.raw".into());
    assert!(stack.source("a").is_err());
}

#[test]
fn what_no_disk_can_be_is_refused() {
    let disk = "[[disk]]\nname = 'a'\nbackend = 'null:1M'\nsocket = 's'\n";
    for (more, expected) in [
        ("queues = 0", "`queues` is `0`: 0 is not in 1..=128"),
        ("queues = 129", "`queues` is `129`: 129 is not in 1..=128"),
        ("journal-ioprio = 8", "`journal-ioprio` is `8`: 8 is not in 0..=7"),
        ("detect-zeroes = 'unmap'\ndiscard = 'keep'", "give space back"),
        ("readonly = 1", "`readonly` is 1; write true or false"),
        ("layers = 'stats'", "write a list of strings"),
        ("image = ''", "`image` is empty; write something"),
        ("backing-dirs = ['']", "`backing-dirs` is empty"),
        ("queues = 1.5", "`queues` is 1.5; write a string or a whole number"),
        ("cpus = 3", "`cpus` is 3; write a string"),
        ("serial = 16", "`serial` is 16; write a string"),
        ("backing-dirz = []", "unknown key `backing-dirz`; did you mean `backing-dirs`?"),
        ("layer = []", "unknown key `layer`; did you mean `layers`?"),
        ("pollers = 2", "unknown key `pollers`; write it before the first [[disk]]"),
        ("limit = 'a; b'", "`limit`: `a; b` is no part of a limit; use iops=N"),
    ] {
        let message = refusal(&format!("{disk}{more}\n"));
        assert!(message.contains(expected), "{message}");
    }
    assert!(read(disk).is_ok());
}

#[test]
fn the_file_of_the_manual_is_served() {
    let manual = include_str!("../../../../docs/operating.md");
    let (_, rest) = manual.split_once("## Several disks: `serve --config FILE.toml`").unwrap();
    let file = rest.split("```").nth(1).unwrap().trim_start_matches("toml");
    let file = file.replace("libvirt-qemu", "0");
    let config = read(&file).unwrap();
    assert_eq!((config.disks.len(), config.refused.len()), (1, 0), "{:?}", config.refused);
}

#[test]
fn what_is_typed_wins_over_the_keys_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flowstone.toml");
    let file = "pollers = 4\ncache = '1G'\n[[disk]]\nbackend = 'null:1M'\nsocket = 's'\n";
    std::fs::write(&path, file).unwrap();
    let typed = ["--pollers=2", "--cache-policy=multicache"].map(OsString::from);
    let config = Config::read(&path, &typed).unwrap();
    assert_eq!(config.daemon.pollers.choice, PollerChoice::Count(2));
    let cache = config.daemon.shared.cache;
    assert_eq!(cache.cache, Some(CacheSize(1 << 30)));
    assert_eq!(cache.cache_policy, Some(PolicyKind::MultiCache));
}

/// Regression: a misspelt key of one disk left the guests of all others without their disks.
#[test]
fn a_mistake_in_one_disk_costs_no_other() {
    let disk = |name: &str, more: &str| {
        format!("[[disk]]\nname = '{name}'\nbackend = 'mem:1M'\nsocket = '{name}.sock'\n{more}\n")
    };
    let text = ["poll = 'often'", "", "queues = 0", "sokcet = 's'", "socket = 1"];
    let text = ["a", "b", "c", "d"].iter().zip(text).map(|(name, more)| disk(name, more));
    let text = text.collect::<String>() + &disk("b", "") + &disk("e", "");
    let config = read(&text).unwrap();
    let names: Vec<String> = config.disks.iter().map(DiskConfig::name).collect();
    assert_eq!(names, ["b", "e"]);
    let refused: Vec<String> = config.refused.iter().map(ToString::to_string).collect();
    let expected = [
        "disk 1 (line 1): `often` is no choice for `poll`",
        "disk 3 (line 11): `queues` is `0`: 0 is not in 1..=128",
        "disk 4 (line 16): unknown key `sokcet`",
        "disk 5 (line 21): two disks are called `b`",
    ];
    assert_eq!(refused.len(), expected.len(), "{refused:?}");
    for (line, expected) in refused.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
    assert!(read("[[disk]]\n[[dsik]]\n").is_err(), "a mistake that may be any disk's");
}

/// Regression: a name with a NUL made the daemon panic, and a long one was cut silently.
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
    let single = |name: &str| {
        Config::typed(DaemonConfig::default(), Some(DiskConfig::new(name, Path::new("s"))))
    };
    assert!(single("a\0").is_err());
    assert!(single(&longest).is_ok());
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
        let mut disk = DiskConfig::new("", Path::new("s"));
        (disk.name, disk.stack.image) = (None, Some(image.into()));
        assert_eq!(disk.name(), name);
    }
}

#[test]
fn a_serial_is_the_name_or_as_much_of_it_as_a_guest_reads() {
    for (name, serial) in [
        ("vm1", "vm1"),
        ("6a0a2b3c-8d1e-4f5a-9b6c-7d8e9f0a1b2c", "6a0a2b3c-8d1e-4f5a-9"),
        ("1234567890123456789\u{e9}", "1234567890123456789"),
    ] {
        assert_eq!(DiskConfig::new(name, Path::new("s")).serial(), serial);
    }
}

/// Regression: `backing_dirs` and `detect-zeroes` were each refused in the other's spelling.
#[test]
fn every_key_may_be_spelt_with_hyphens_or_underscores() {
    let disk = "[[disk]]\nname = 'a'\nbackend = 'mem:1M'\nsocket = 's'\n";
    type IsRead = fn(&DiskConfig) -> bool;
    let lines: [(&str, IsRead); 6] = [
        ("detect_zeroes = 'on'", |disk| disk.stack.zeroes.detect_zeroes == DetectZeroes::On),
        ("detect-zeroes = 'on'", |disk| disk.stack.zeroes.detect_zeroes == DetectZeroes::On),
        ("backing_dirs = ['/b']", |disk| disk.stack.opened.backing_dirs.len() == 1),
        ("backing-dirs = ['/b']", |disk| disk.stack.opened.backing_dirs.len() == 1),
        ("socket_mode = '0600'", |disk| disk.beside.access.mode.is_some()),
        ("socket-mode = '0600'", |disk| disk.beside.access.mode.is_some()),
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
    assert!(message.contains("is there in two spellings"), "{message}");
    let message = refusal(&format!("socket-mode = '0600'\nsocket_mode = '0600'\n{disk}"));
    assert!(message.contains("is there in two spellings"), "{message}");
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
        assert_eq!(disk.beside.access.group, Some("7".parse().unwrap()));
        assert_eq!(disk.beside.access.mode, Some(mode.parse().unwrap()));
    }
    let decimal = "[[disk]]\nname = 'a'\nbackend = 'mem:1M'\nsocket = 's'\nsocket-mode = 432\n";
    assert!(refusal(decimal).contains("`socket-mode` is 432; write a string"));
}

#[test]
fn a_disk_has_the_defaults_that_it_does_not_say_itself() {
    let disk = |name: &str, line: &str| {
        format!(
            "[[disk]]\nname = '{name}'\nimage = '/{name}.raw'\nsocket = '/{name}.sock'\n{line}\n"
        )
    };
    let defaults = "[defaults]\nqueues = 2\njournal-ioprio = 3\nreadonly = true\n";
    let own = "queues = 7\njournal_ioprio = 5\nreadonly = false";
    let config = read(&[defaults, &disk("a", ""), &disk("b", own)].concat()).unwrap();
    let said = |disk: &DiskConfig| {
        (disk.queues, disk.stack.readonly, disk.keys.get("journal-ioprio").cloned())
    };
    assert_eq!(said(&config.disks[0]), (2, true, Some(vec!["3".into()])));
    assert_eq!(said(&config.disks[1]), (7, false, Some(vec!["5".into()])));
    let why = refusal(&["[defaults]\nquues = 2\n", &disk("a", "")].concat());
    assert!(why.contains("unknown key `quues`; did you mean `queues`?"), "{why}");
}

#[test]
fn a_folder_is_read_as_one_file_in_the_order_of_names() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let disk = |name: &str| {
        format!(
            "[[disk]]\nname = '{name}'\nbackend = 'null:1M'\nsocket = '/{name}.sock'\ngroup = 'g'\n"
        )
    };
    write("20-b.toml", &disk("b"));
    write("10-a.toml", &disk("a"));
    write("30-all.toml", "control = '/c.sock'\n[[group]]\nname = 'g'\niops = 9\n");
    write("40-no.txt", "nonsense");
    let config = Config::read(dir.path(), &[]).unwrap();
    assert_eq!(config.disks.iter().map(DiskConfig::name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(config.daemon.control, Some("/c.sock".into()));
    // Each error with its file and line.
    write("50-twice.toml", &format!("\n{}", disk("a")));
    let config = Config::read(dir.path(), &[]).unwrap();
    let line = config.refused[0].to_string();
    assert!(line.contains("50-twice.toml: disk 1 (line 2): two disks are called `a`"), "{line}");
    write("60-again.toml", "control = '/d.sock'\n");
    let line = Config::read(dir.path(), &[]).unwrap_err().to_string();
    assert!(line.contains("60-again.toml: another file has `control`, too; remove one"), "{line}");
}
