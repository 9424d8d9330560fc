//! Figures as the cells of a Markdown table.

use crate::Experiment;
use crate::interval::{interval, median, shown, spread};

/// The figures of a contender at a point.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    experiment: &'a Experiment,
    point: &'a str,
    contender: &'a str,
}

impl Experiment {
    /// Returns the figures of a contender at a point.
    pub fn at<'a>(&'a self, point: &'a str, contender: &'a str) -> Of<'a> {
        Of { experiment: self, point, contender }
    }
}

impl Of<'_> {
    fn rounds(&self, figure: &str) -> &[Option<f64>] {
        self.experiment.of(self.point, self.contender, figure)
    }

    /// Returns the figures of all rounds.
    pub fn all(&self, figure: &str) -> Vec<f64> {
        self.rounds(figure).iter().copied().flatten().collect()
    }

    /// Returns the number of all rounds, also of those without a figure.
    pub fn all_rounds(&self, figure: &str) -> usize {
        self.rounds(figure).len()
    }

    /// Returns the median, if there are figures.
    pub fn median(&self, figure: &str) -> Option<f64> {
        median(self.all(figure))
    }

    /// Returns the ratios to another one's figure, round by round.
    pub fn ratios(&self, to: Of<'_>, figure: &str) -> Vec<f64> {
        self.ratios_of(figure, to, figure)
    }

    /// Returns the ratios to another figure of another one.
    pub fn ratios_of(&self, figure: &str, to: Of<'_>, its: &str) -> Vec<f64> {
        let rounds = self.rounds(figure).iter().zip(to.rounds(its));
        let ratios = rounds.filter_map(|(one, other)| Some((*one)? / (*other)?));
        ratios.filter(|ratio| ratio.is_finite()).collect()
    }

    /// Shows the median.
    pub fn cell(&self, figure: &str, digits: usize) -> String {
        self.median(figure).map_or("-".to_owned(), |median| format!("{median:.digits$}"))
    }

    /// Shows the median with its interval.
    pub fn spread(&self, figure: &str, digits: usize) -> String {
        shown(self.all(figure), "-", |value| format!("{value:.digits$}"))
    }

    /// Shows the median of a count, with its interval.
    pub fn count(&self, figure: &str) -> String {
        spread(self.all(figure))
    }

    /// Shows the ratio to another one's figure, with its interval.
    pub fn ratio(&self, to: Of<'_>, figure: &str) -> String {
        interval(self.ratios(to, figure))
    }
}

/// Renders a table with these titles, which ` | ` divides. Columns of numbers are aligned to the
/// right; a row may lack its last cells.
pub fn table(titles: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let is_number = |cell: &String| {
        cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c))
    };
    let right = |at: usize| rows.iter().all(|row| row.get(at).is_none_or(is_number));
    let rule = |at| if at > 0 && right(at) { "---:" } else { "---" };
    let titles: Vec<_> = titles.split(" | ").map(str::to_owned).collect();
    let rules: String = (0..titles.len()).map(|at| format!("{}|", rule(at))).collect();
    let line = |cells: &Vec<String>| {
        let cell = |at: usize| match cells.get(at) {
            Some(cell) if !cell.is_empty() => format!("| {cell} "),
            _ => "| ".to_owned(),
        };
        (0..titles.len()).map(cell).collect::<String>() + "|\n"
    };
    format!("{}|{rules}\n{}", line(&titles), rows.iter().map(line).collect::<String>())
}
