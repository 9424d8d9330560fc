//! Plots lines over a logarithmic axis.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const PIXELS: (u32, u32) = (720, 440);

/// Titles of the axes.
pub struct Axes {
    pub x: &'static str,
    pub y: &'static str,
}

/// Draws one line per name.
pub fn draw(path: &Path, axes: &Axes, lines: &BTreeMap<&str, Vec<(f64, f64)>>) -> Result<()> {
    try_to_draw(path, axes, lines).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_to_draw(
    path: &Path,
    axes: &Axes,
    lines: &BTreeMap<&str, Vec<(f64, f64)>>,
) -> std::result::Result<(), Box<dyn Error>> {
    let points = || lines.values().flatten();
    let (least, most) =
        points().fold((f64::MAX, 0.0f64), |(min, max), (x, _)| (min.min(*x), max.max(*x)));
    let highest = points().map(|(_, y)| *y).fold(0.1, f64::max);
    let root = SVGBackend::new(path, PIXELS).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d((least * 0.9..most * 1.1).log_scale(), 0.0..highest * 1.1)?;
    chart.configure_mesh().x_desc(axes.x).y_desc(axes.y).draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let mut points = points.clone();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperLeft);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    root.present()?;
    Ok(())
}
