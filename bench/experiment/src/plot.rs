//! Plots lines.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Width and height of a panel.
const PIXELS: (u32, u32) = (720, 440);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn Error>>;

/// Titles of the axes, and whether the x axis is logarithmic.
pub struct Axes {
    /// Label of the x axis.
    pub x: &'static str,
    /// Label of the y axis.
    pub y: &'static str,
    /// Whether the x axis is logarithmic.
    pub is_log: bool,
    /// Text below the picture: how it is made.
    pub below: String,
}

/// Points by the name of their line.
pub type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// Draws one line per name.
pub fn draw(path: &Path, axes: &Axes, lines: &Lines) -> Result<()> {
    draw_panels(path, &[(axes, lines)])
}

/// Draws panels, one below the other.
pub fn draw_panels(path: &Path, panels: &[(&Axes, &Lines)]) -> Result<()> {
    let drawn = || -> Drawn {
        let pixels = (PIXELS.0, PIXELS.1 * panels.len() as u32);
        let root = SVGBackend::new(path, pixels).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, (axes, lines)) in root.split_evenly((panels.len(), 1)).iter().zip(panels) {
            draw_panel(area, axes, lines)?;
        }
        Ok(root.present()?)
    };
    drawn().map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn draw_panel(area: &Area<'_>, axes: &Axes, lines: &Lines) -> Drawn {
    let points = || lines.values().flatten();
    let (least, most) =
        points().fold((f64::MAX, 0.0f64), |(min, max), (x, _)| (min.min(*x), max.max(*x)));
    if axes.is_log {
        draw_lines(area, axes, lines, (least * 0.9..most * 1.1).log_scale())
    } else {
        draw_lines(area, axes, lines, least - 0.2..most + 0.2)
    }
}

fn draw_lines<X>(area: &Area<'_>, axes: &Axes, lines: &Lines, x: X) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let highest = lines.values().flatten().map(|(_, y)| *y).fold(0.1, f64::max);
    let below = if axes.below.is_empty() { 0 } else { 24 };
    let (upper, lower) = area.split_vertically(PIXELS.1 - below);
    lower.draw(&Text::new(axes.below.as_str(), (12, 2), ("sans-serif", 12).into_font()))?;
    let mut chart = ChartBuilder::on(&upper)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d(x, 0.0..highest * if axes.is_log { 1.1 } else { 1.3 })?;
    chart.configure_mesh().x_desc(axes.x).y_desc(axes.y).draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let mut points = points.clone();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut labels = chart.configure_series_labels();
    let labels = labels.position(SeriesLabelPosition::UpperLeft);
    labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}
