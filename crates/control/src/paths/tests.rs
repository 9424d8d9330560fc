use std::collections::BTreeSet;

use super::*;
use crate::OPENAPI;
use crate::fuzzing::request;

fn sent(command: &Command) -> Command {
    let Asked { method, target, body } = command.request();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    Command::of(&method, &target.parse().unwrap(), body.as_bytes()).unwrap()
}

/// Returns one command of each kind.
fn commands(name: &str) -> Vec<Command> {
    let disk = DiskWord { name: name.into(), path: Some(PathBuf::from("/a folder/ä+%&")) };
    let size = Some(SizeChange::Grow(512));
    let change = DiskChange { size, limit: Some("off".into()), weight: Some(7) };
    vec![
        Command::OpenApi,
        Command::Stats { buckets: true },
        Command::Metrics,
        Command::Numa,
        Command::Events,
        Command::Reload,
        Command::Disks,
        Command::Show(name.into()),
        Command::Add(name.into(), [("image".into(), "/x".into())].into_iter().collect()),
        Command::Remove { name: name.into(), force: true },
        Command::Change(disk.clone(), change),
        Command::Layout(disk.clone()),
        Command::Record { disk, coarse: true },
        Command::Groups,
        Command::AddGroup(name.into(), [("iops".into(), 7.into())].into_iter().collect()),
        Command::RemoveGroup(name.into()),
        Command::SetGroup { group: name.into(), limit: "iops=1".into() },
    ]
}

/// Forces a place in the list above for each new command.
fn place(command: &Command) -> usize {
    match command {
        Command::OpenApi => 0,
        Command::Stats { .. } => 1,
        Command::Metrics => 2,
        Command::Numa => 3,
        Command::Events => 4,
        Command::Reload => 5,
        Command::Disks => 6,
        Command::Show(_) => 7,
        Command::Add(..) => 8,
        Command::Remove { .. } => 9,
        Command::Change(..) => 10,
        Command::Layout(_) => 11,
        Command::Record { .. } => 12,
        Command::Groups => 13,
        Command::AddGroup(..) => 14,
        Command::RemoveGroup(_) => 15,
        Command::SetGroup { .. } => 16,
    }
}

#[test]
fn a_command_comes_out_as_it_went_in_whatever_its_disk_is_called() {
    for name in ["vm1", "a/b", "..", "%2F?#&=+ ", &"ü".repeat(64)] {
        for (number, command) in commands(name).into_iter().enumerate() {
            assert_eq!(place(&command), number);
            assert_eq!(format!("{:?}", sent(&command)), format!("{command:?}"));
        }
    }
}

#[test]
fn the_document_has_all_requests_and_no_other() {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let method = method.to_uppercase();
            documented.insert((method.clone(), path.clone()));
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let keys: Vec<&str> = parameters.map(|it| it["name"].as_str().unwrap()).collect();
            let value =
                |key: &str| if key == "path" { "path=/x".into() } else { format!("{key}=1") };
            let query: Vec<String> = keys.iter().map(|key| value(key)).collect();
            let target = format!("{}?{}", path.replace("{name}", "x"), query.join("&"));
            let body = if method == "PATCH" { &br#"{"limit":"off"}"#[..] } else { b"{}" };
            let method: Method = method.parse().unwrap();
            let command = Command::of(&method, &target.parse().unwrap(), body);
            assert!(command.is_ok(), "{target}: {command:?}");
        }
    }
    let template = |command: Command| {
        let Asked { method, target, .. } = command.request();
        let path = target.split('?').next().unwrap().replace("/NAME", "/{name}");
        (method.to_string(), path)
    };
    let asked: BTreeSet<_> = commands("NAME").into_iter().map(template).collect();
    assert_eq!(documented, asked);
}

#[test]
fn what_is_not_understood_is_refused() {
    let asked = |method: &str, target: &str, body: &str| {
        let method = method.parse().unwrap();
        let refused = Command::of(&method, &target.parse().unwrap(), body.as_bytes());
        let refused = refused.expect_err("a refusal");
        (refused.status().as_u16(), refused.error.to_string())
    };
    for (method, target, body, status, why) in [
        ("GET", "/v2/stats", "", 404, "there is no such request"),
        ("PUT", "/v1/stats", "", 404, "there is no such request"),
        ("GET", "/v1/stats?all=1", "", 400, "unknown `all` in the query"),
        ("PATCH", "/v1/disks/vm1", "{", 400, "send an object of JSON"),
        ("PATCH", "/v1/disks/vm1", "[]", 400, "send an object of JSON"),
        ("PATCH", "/v1/disks/vm1", r#"{"wieght":7}"#, 400, "unknown key `wieght`"),
        ("PATCH", "/v1/disks/vm1", r#"{"weight":-7}"#, 400, "`weight` is no weight"),
        ("PATCH", "/v1/disks/vm1", r#"{"size":"1GB"}"#, 400, "write e.g. 16G or +1G"),
        ("PATCH", "/v1/disks/%ff", "{}", 400, "the name is not UTF-8"),
        ("PATCH", "/v1/groups/web", "{}", 400, "`limit` is missing"),
        ("PUT", "/v1/groups/web", "[]", 400, "send the keys of a [[group]]"),
        ("GET", "/v1/disks/vm1/layout?path=vm1.raw", "", 400, "is relative"),
    ] {
        let (got, line) = asked(method, target, body);
        assert!(got == status && line.contains(why), "{target} {body}: {got} {line}");
    }
}

/// Changes a request as a client of another version, or a hostile one, may send it.
fn distort(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(..4) {
        let at = random.usize(..=bytes.len());
        match random.u8(..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.u8(..)),
            2 if at < bytes.len() => {
                let marks = b"\"\\{}[]%/?&=+-0.,:";
                bytes[at] = marks[random.usize(..marks.len())];
            }
            _ => {
                let again = bytes[at / 2..at].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
}

#[test]
fn whatever_is_asked_is_refused_or_is_a_command_that_can_be_asked_for() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let all = commands("a/b \"ä\"");
    let mut done = [0; 2];
    for _ in 0..20_000 {
        let Asked { method, target, body } = all[random.usize(..all.len())].request();
        let mut target = target.into_bytes();
        let mut body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        distort(&mut random, &mut target);
        distort(&mut random, &mut body);
        if let Some(command) = request(method.as_str(), &target, &body) {
            done[usize::from(command.is_some())] += 1;
        }
    }
    assert!(done.iter().all(|count| *count > 1000), "{done:?}");
}
