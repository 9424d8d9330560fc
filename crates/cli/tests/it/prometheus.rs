//! Checks `contrib/prometheus` with Prometheus' own programs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use flowstone_testkit::{HANG, wait_for};
use serde_json::Value;

use crate::fixture::{Place, stop};
use crate::metrics::of_prometheus;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus");

fn text(file: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(file)).unwrap()
}

/// Runs promtool in the folder; it must succeed.
fn promtool(program: &Path, args: &[&str]) {
    let output = Command::new(program).args(args).current_dir(FOLDER).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said));
}

/// Returns the alerts of the rules.
fn alerts() -> Vec<String> {
    let rules = text("flowstone.rules.yml");
    let name = |line: &str| line.trim().strip_prefix("- alert: ").map(str::to_owned);
    rules.lines().filter_map(name).collect()
}

#[test]
fn each_alert_fires_when_it_should_and_at_no_other_time() {
    let tests = text("flowstone.test.yml");
    assert_eq!(alerts().len(), 5);
    for alert in alerts() {
        let mut cases = tests.split("alertname: ").filter(|case| case.starts_with(&*alert));
        let fires = cases.clone().any(|case| case.contains("exp_alerts"));
        let is_silent = cases.any(|case| !case.contains("exp_alerts"));
        assert!(fires && is_silent, "{alert} is not tested both ways");
    }
    let Some(program) = of_prometheus("promtool") else { return };
    promtool(&program, &["check", "rules", "flowstone.rules.yml"]);
    promtool(&program, &["test", "rules", "flowstone.test.yml"]);
}

/// Returns the expressions of the dashboard.
fn expressions() -> Vec<String> {
    let board: Value = serde_json::from_str(&text("flowstone-dashboard.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Returns the names of metrics in a text, without the suffixes of histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let ours = words.filter(|word| word.starts_with("flowstone_") || word.starts_with("process_"));
    let base = |word: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    };
    ours.map(base).collect()
}

#[test]
fn rules_and_dashboard_ask_for_what_there_is_in_expressions_that_can_be_read() {
    let page = include_str!("../../../../docs/metrics.md");
    let rules = text("flowstone.rules.yml");
    let expressions = expressions();
    for name in names(&(rules + &expressions.join(" "))) {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is no metric");
    }
    let Some(program) = of_prometheus("promtool") else { return };
    let place = Place::new();
    let mut file = "groups: [{name: all, rules: [".to_owned();
    for (number, expression) in expressions.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "1m");
        file += &format!("{{record: \"r{number}\", expr: {}}},", Value::from(expression));
    }
    fs::write(place.path("rules.yml"), file + "]}]").unwrap();
    promtool(&program, &["check", "rules", &place.text("rules.yml")]);
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a port that is free now; another process may take it meanwhile.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns Prometheus' answer to this request, if it answers.
fn ask(port: u16, target: &str) -> Option<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.write_all(format!("GET {target} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Returns the value of the first matching series.
fn query(port: u16, expression: &str) -> Option<f64> {
    let answer = ask(port, &format!("/api/v1/query?query={expression}"))?;
    answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

#[test]
fn a_prometheus_scrapes_the_daemon_and_evaluates_the_rules() {
    const SCRAPES: f64 = 10.0;
    let Some(program) = of_prometheus("prometheus") else { return };
    let place = Place::new();
    let (daemon, metrics) = wait_for("a port", || {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let args = ["--metrics-listen", &address, "--backend", "null:1M", "--name", "a"];
        place.serve_command(&args).spawn().map(|daemon| (daemon, port))
    });
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [{FOLDER}/flowstone.rules.yml]\n\
         scrape_configs: [{{job_name: flowstone, static_configs: \
         [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    );
    fs::write(place.path("prometheus.yml"), config).unwrap();
    let (_running, port) = wait_for("a Prometheus that listens", || {
        let port = free_port();
        let child = Command::new(&program)
            .arg(format!("--config.file={}", place.text("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", place.text("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut running = Running(child);
        let begin = Instant::now();
        while begin.elapsed() < HANG && running.0.try_wait().unwrap().is_none() {
            if ask(port, "/api/v1/status/runtimeinfo").is_some() {
                return Ok((running, port));
            }
            sleep(Duration::from_millis(100));
        }
        Err("its port was taken, or it does not answer")
    });
    let disk = "flowstone_disk_up%7Bdisk=%22a%22%7D%5B1h%5D";
    wait_for("ten scrapes", || {
        let scrapes = query(port, &format!("count_over_time({disk})")).unwrap_or_default();
        if scrapes >= SCRAPES { Ok(()) } else { Err(scrapes) }
    });
    assert_eq!(query(port, &format!("min_over_time({disk})")), Some(1.0));
    wait_for("the rules have been evaluated", || {
        let rules = ask(port, "/api/v1/rules").unwrap_or_default();
        let rules = rules["data"]["groups"][0]["rules"].clone();
        let all = rules.as_array().map_or(&[][..], Vec::as_slice);
        let are_well = all.len() == 5 && all.iter().all(|rule| rule["health"] == "ok");
        if are_well { Ok(()) } else { Err(rules) }
    });
    stop(daemon);
}
