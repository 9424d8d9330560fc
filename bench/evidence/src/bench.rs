//! A table of another command of `flowstone-bench`.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::Experiment;

/// See the module.
pub struct Bench {
    /// Name of the markers on its page.
    pub name: &'static str,
    /// Name of its data, which several tables may share.
    pub data: &'static str,
    /// The command, without the option that writes the data.
    pub command: &'static str,
    /// Makes the table from its data.
    pub render: fn(&Experiment) -> String,
    /// Draws a picture of its data, which has the table's name, into a file.
    pub plot: Option<fn(&Path, &Experiment) -> Result<()>>,
}

impl Bench {
    fn read(&self, folder: &Path) -> Result<Option<Experiment>> {
        let path = folder.join("data").join(format!("{}.json", self.data));
        path.exists().then(|| Experiment::read(&path)).transpose()
    }

    /// Returns its text, if there is data.
    pub fn rendered(&self, folder: &Path) -> Result<Option<String>> {
        let text = |it: Experiment| format!("{}\n{}", (self.render)(&it), it.origin());
        Ok(self.read(folder)?.map(text))
    }

    /// Draws its picture into `to`, if it has one, from the data in `folder`.
    pub fn draw(&self, folder: &Path, to: &Path) -> Result<()> {
        match (self.plot, self.read(folder)?) {
            (Some(plot), Some(experiment)) => {
                plot(&to.join(format!("{}.svg", self.name)), &experiment)
            }
            _ => Ok(()),
        }
    }
}

/// Prints the commands, each once.
pub fn list(benches: &[Bench]) {
    let mut last = "";
    println!("of other commands; then --render:");
    for Bench { data, command, .. } in benches {
        if *data != last {
            println!("    flowstone-bench {command} --json docs/evidence/data/{data}.json");
        }
        last = data;
    }
}
