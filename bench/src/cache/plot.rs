//! Hit ratio over size, as a picture.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Line;

const PIXELS: (u32, u32) = (720, 440);

/// Draws one line for each policy.
pub fn draw(path: &Path, lines: &[Line]) -> Result<()> {
    try_to_draw(path, lines).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_to_draw(path: &Path, lines: &[Line]) -> std::result::Result<(), Box<dyn Error>> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let sizes = lines.iter().map(|line| mib(line.bytes));
    let (least, most) = sizes.fold((f64::MAX, 0.0f64), |(min, max), it| (min.min(it), max.max(it)));
    let highest = lines.iter().map(|line| line.hit_ratio).fold(0.1, f64::max);
    let mut policies: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for line in lines {
        policies.entry(line.policy).or_default().push((mib(line.bytes), line.hit_ratio));
    }
    let root = SVGBackend::new(path, PIXELS).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d((least * 0.9..most * 1.1).log_scale(), 0.0..highest * 1.1)?;
    chart.configure_mesh().x_desc("cache, MiB").y_desc("hit ratio").draw()?;
    for (index, (policy, mut points)) in policies.into_iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperLeft);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    root.present()?;
    Ok(())
}
