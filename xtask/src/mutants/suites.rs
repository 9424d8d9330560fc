//! The test binaries that are run against mutants.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::source::Mutant;

/// Timeout: no test of these binaries takes nearly as long, even on a busy machine.
const HANG: Duration = Duration::from_secs(400);
/// Packages left out: real guests are not needed, and benches and tasks do not test data.
const LEFT_OUT: [&str; 5] = [
    "flowstone-vmtest",
    "flowstone-bench",
    "flowstone-evidence",
    "flowstone-experiment",
    "flowstone-xtask",
];
/// Packages with models. With the feature of models, nothing else of a binary runs.
const MODELLED: [&str; 6] = [
    "flowstone-reactor",
    "flowstone-cache",
    "flowstone-image",
    "flowstone-qcow2",
    "flowstone-log",
    "flowstone-runner",
];
const MODELS: &str = "models::";

/// The verdict of the tests on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A test fails.
    Killed(String),
    /// A test never ends.
    Hangs(String),
    /// No test can tell it from the original, for this reason.
    Equivalent(String),
    /// All tests pass.
    Survived,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(test) => write!(f, "killed by {test}"),
            Self::Hangs(test) => write!(f, "killed by {test}, which never ends"),
            Self::Equivalent(why) => write!(f, "equivalent: {why}"),
            Self::Survived => f.write_str("survived"),
        }
    }
}

/// Test binaries, in the order in which they are tried.
pub struct Suites {
    binaries: Vec<Binary>,
}

struct Binary {
    package: String,
    path: PathBuf,
    /// The folder of its package, which tests find their files from.
    folder: PathBuf,
    /// Its models are run, instead of its tests.
    is_model: bool,
}

impl Suites {
    /// Builds them with all mutants compiled in, in a separate target folder.
    pub fn build(workspace: &Path) -> Result<Self> {
        let left_out = LEFT_OUT.iter().flat_map(|package| ["--exclude", package]);
        let tests =
            ["--workspace", "--features", "flowstone-block/mutants,flowstone-memory/mutants"];
        let modelled = MODELLED.iter().flat_map(|package| ["--package", package]);
        let models = ["--lib", "--features", "model,flowstone-block/mutants"];
        let mut binaries = built(workspace, tests.into_iter().chain(left_out), false)?;
        binaries.extend(built(workspace, models.into_iter().chain(modelled), true)?);
        // The slow ones last: formats simulate crashes by the thousand, cli starts daemons.
        binaries.sort_by_key(|binary| match &*binary.package {
            _ if binary.is_model => 1,
            "image" | "raw" | "qcow2" | "log" | "formats" => 2,
            "cli" | "guest" => 3,
            _ => 0,
        });
        Ok(Self { binaries })
    }

    /// Runs tests until one fails: first those of the mutant's own area, then all.
    pub fn try_all(&self, mutant: Option<&Mutant>) -> Result<Verdict> {
        let area = mutant.map_or("", Mutant::area);
        let near = self.binaries.iter().filter(|binary| binary.package == area);
        for binary in near.chain(&self.binaries) {
            match binary.try_with(mutant)? {
                Verdict::Survived => {}
                verdict => return Ok(verdict),
            }
        }
        Ok(Verdict::Survived)
    }
}

/// Returns the test binaries that cargo builds with these arguments.
fn built<'a>(
    workspace: &Path,
    arguments: impl Iterator<Item = &'a str>,
    is_model: bool,
) -> Result<Vec<Binary>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--no-run", "--message-format", "json"]).args(arguments);
    command.env("CARGO_TARGET_DIR", workspace.join("target/mutants"));
    command.current_dir(workspace).stderr(Stdio::inherit());
    let built = command.output().context("run cargo")?;
    ensure!(built.status.success(), "the tests do not build");
    let messages = built.stdout.split(|byte| *byte == b'\n');
    let binaries: Vec<Binary> =
        messages.filter_map(|message| test_binary(message, is_model)).collect();
    ensure!(!binaries.is_empty(), "cargo built no tests");
    Ok(binaries)
}

fn test_binary(message: &[u8], is_model: bool) -> Option<Binary> {
    let message: Value = serde_json::from_slice(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    Some(Binary { package, path: message["executable"].as_str()?.into(), folder, is_model })
}

impl Binary {
    fn try_with(&self, mutant: Option<&Mutant>) -> Result<Verdict> {
        let mut command = Command::new(&self.path);
        command
            .args(self.is_model.then_some(MODELS))
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        match mutant {
            Some(mutant) => command.env("FLOWSTONE_MUTANT", &mutant.name),
            None => command.env_remove("FLOWSTONE_MUTANT"),
        };
        let mut tests = command.spawn().with_context(|| self.path.display().to_string())?;
        let lines = lines_of(&mut tests)?;
        let verdict = self.watch(&lines);
        if verdict != Verdict::Survived {
            // The verdict is known.
            let _ = tests.kill();
        }
        let status = tests.wait()?;
        match verdict {
            // It may abort, or exit, in the middle of a test.
            Verdict::Survived if !status.success() => {
                Ok(Verdict::Killed(format!("{}: {status}", self.package)))
            }
            verdict => Ok(verdict),
        }
    }

    /// Reads the output of the tests until one has failed, or all have ended.
    fn watch(&self, lines: &Receiver<String>) -> Verdict {
        let give_up = Instant::now() + HANG;
        let mut slow = String::from("a test");
        loop {
            let patience = give_up.saturating_duration_since(Instant::now());
            match lines.recv_timeout(patience) {
                Ok(line) => match line.strip_prefix("test ").map(|line| line.split_once(' ')) {
                    Some(Some((test, rest))) if rest.ends_with("FAILED") => {
                        return Verdict::Killed(format!("{} {test}", self.package));
                    }
                    Some(Some((test, rest))) if rest.starts_with("has been running") => {
                        slow = test.to_owned();
                    }
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Verdict::Hangs(format!("{} {slow}", self.package));
                }
                Err(RecvTimeoutError::Disconnected) => return Verdict::Survived,
            }
        }
    }
}

fn lines_of(tests: &mut Child) -> Result<Receiver<String>> {
    let Some(output) = tests.stdout.take() else { bail!("no output to read") };
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let _ = lines.map(|line| sender.send(line)).take_while(Result::is_ok).count();
    });
    Ok(receiver)
}
