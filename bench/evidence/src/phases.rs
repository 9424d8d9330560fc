//! Tables with a line for each phase of a trace.

use anyhow::{Context, Result};
use flowstone_experiment::command::number;
use serde_json::{Map, Value, json};

use super::data::Data;

/// Fields that are kept of a phase.
const KEPT: [&str; 6] =
    ["guest_blocks", "host_blocks", "device_blocks", "device_seconds", "punches", "discards"];
/// Phases of preparation by a guest.
const BEFORE: [&str; 2] = ["make", "fill"];

/// The figure shown for a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPhase {
    /// The total WAF.
    Waf,
    /// Seconds of the drive's busy time.
    Seconds,
}

/// Merges phases of the same name, keeping the fields that tables show.
pub fn condense(report: &mut Value) {
    let Some(phases) = report.get_mut("phases") else { return };
    let mut by_name: Vec<(String, Map<String, Value>)> = Vec::new();
    for phase in phases.as_array().into_iter().flatten() {
        let name = phase["name"].as_str().unwrap_or_default();
        let at = by_name.iter().position(|(it, _)| it == name).unwrap_or(by_name.len());
        if at == by_name.len() {
            by_name.push((name.to_owned(), Map::new()));
        }
        let sums = &mut by_name[at].1;
        for figure in KEPT {
            let sum = sums.get(figure).and_then(Value::as_f64).unwrap_or(0.0);
            sums.insert(figure.into(), json!(sum + phase[figure].as_f64().unwrap_or(0.0)));
        }
    }
    let condensed = by_name.into_iter().map(|(name, mut sums)| {
        sums.insert("name".into(), json!(name));
        Value::Object(sums)
    });
    *phases = condensed.collect();
}

/// Returns the rows of the table. Each column is a replay of the same trace.
pub fn rows(data: &Data, what: OfPhase) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    let phases = |at: usize| data.cells[at].report["phases"].as_array().context("no phases");
    for (line, phase) in phases(0)?.iter().enumerate() {
        let name = phase["name"].as_str().unwrap_or_default();
        if BEFORE.contains(&name) {
            continue;
        }
        let mut row = vec![name.to_owned()];
        for column in 0..data.cells.len() {
            row.push(shown(&phases(column)?[line], what)?);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the total WAF of a phase.
pub fn waf(phase: &Value) -> Result<f64> {
    Ok(number(phase, "device_blocks")? / number(phase, "guest_blocks")?)
}

fn shown(phase: &Value, what: OfPhase) -> Result<String> {
    Ok(match what {
        OfPhase::Waf => format!("{:.2}", waf(phase)?),
        OfPhase::Seconds => {
            let seconds = number(phase, "device_seconds")?;
            if seconds < 10.0 { format!("{seconds:.2}") } else { format!("{seconds:.1}") }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_one_name_are_one() {
        let phase = |name: &str, blocks: f64| json!({"name": name, "guest_blocks": blocks});
        let mut report = json!({"phases": [phase("a", 1.0), phase("b", 2.0), phase("a", 3.0)]});
        condense(&mut report);
        let phases = report["phases"].as_array().unwrap();
        let of = |at: usize| (phases[at]["name"].as_str(), phases[at]["guest_blocks"].as_f64());
        assert_eq!(
            (phases.len(), of(0), of(1)),
            (2, (Some("a"), Some(4.0)), (Some("b"), Some(2.0)))
        );
    }
}
