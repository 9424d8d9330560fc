//! Plots rates over the number of disks.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const PIXELS: (u32, u32) = (720, 440);

/// Draws one line per name: disks on the x axis, requests per second on the y axis.
pub fn draw(path: &Path, points: &[(String, f64, f64)]) -> Result<()> {
    try_to_draw(path, points).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_to_draw(
    path: &Path,
    points: &[(String, f64, f64)],
) -> std::result::Result<(), Box<dyn Error>> {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let (mut most, mut highest) = (1.0f64, 1.0f64);
    for (name, disks, rate) in points {
        lines.entry(name).or_default().push((*disks, rate / 1e3));
        (most, highest) = (most.max(*disks), highest.max(rate / 1e3));
    }
    let root = SVGBackend::new(path, PIXELS).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d(0.8..most + 0.2, 0.0..highest * 1.3)?;
    chart.configure_mesh().x_desc("disks").y_desc("thousand requests per second").draw()?;
    for (index, (name, points)) in lines.into_iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperLeft);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    root.present()?;
    Ok(())
}
