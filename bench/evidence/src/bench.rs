//! A table of another command of `flowstone-bench`.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::Experiment;

use super::RESULTS;

/// Draws a picture into a file.
pub type Plot = fn(&Path, &Experiment) -> Result<()>;

/// See the module.
pub struct Bench {
    /// Name of the markers on its page.
    pub name: &'static str,
    /// Name of its data, which several tables may share.
    pub data: &'static str,
    /// The command, without the option that writes the data.
    pub command: &'static str,
    /// Estimated duration of the command.
    pub minutes: u32,
    /// The command's requirement that a machine with the peers installed lacks; empty if none.
    pub needs: &'static str,
    /// Makes the table from its data.
    pub render: fn(&Experiment) -> String,
    /// Draws a picture of its data into a file of the project.
    pub plot: Option<(&'static str, Plot)>,
}

impl Bench {
    fn read(&self, root: &Path) -> Result<Option<Experiment>> {
        let path = root.join(self.file());
        path.exists().then(|| Experiment::read(&path)).transpose()
    }

    /// Returns the file of its data in the project.
    pub fn file(&self) -> String {
        format!("{RESULTS}/{}.json", self.data)
    }

    /// Returns its text, if there is data.
    pub fn rendered(&self, root: &Path) -> Result<Option<String>> {
        Ok(self.read(root)?.map(|it| it.page(&(self.render)(&it))))
    }

    /// Draws its picture below `to`, if it has one, from the data below `root`.
    pub fn draw(&self, root: &Path, to: &Path) -> Result<()> {
        match (self.plot, self.read(root)?) {
            (Some((file, plot)), Some(experiment)) => plot(&to.join(file), &experiment),
            _ => Ok(()),
        }
    }
}
