//! A table of another command of `flowstone-bench`.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::Experiment;

/// See the module.
pub struct Bench {
    /// The page that shows it.
    pub page: &'static str,
    /// Name of its markers.
    pub name: &'static str,
    /// Name of its data, which several tables may share.
    pub data: &'static str,
    /// The command, without the option that writes the data.
    pub command: &'static str,
    /// Makes the table from its data.
    pub render: fn(&Experiment) -> String,
}

impl Bench {
    /// Returns its text, if there is data.
    pub fn rendered(&self, folder: &Path) -> Result<Option<String>> {
        let path = folder.join("data").join(format!("{}.json", self.data));
        if !path.exists() {
            return Ok(None);
        }
        let experiment = Experiment::read(&path)?;
        Ok(Some(format!("{}\n{}", (self.render)(&experiment), experiment.origin())))
    }
}

/// Prints the commands, each once.
pub fn list(benches: &[Bench]) {
    let mut last = "";
    for Bench { page, data, command, .. } in benches {
        if *data != last {
            println!("{page}, then --render:");
            println!("    flowstone-bench {command} --json docs/evidence/data/{data}.json");
        }
        last = data;
    }
}
