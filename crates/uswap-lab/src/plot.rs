//! The miss-ratio curve as SVG: misses over memory, one line per policy, the mean over the traces.

use std::path::Path;

use plotters::prelude::*;

use crate::policies::Kind;
use crate::report::Report;
use crate::size::MemoryShareOf;

const SIZE: (u32, u32) = (800, 480);
/// Colours that colour-blind readers can tell apart: those of Okabe and Ito, then of Tol.
const COLORS: [RGBColor; 12] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(130, 130, 130),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(51, 34, 136),
    RGBColor(102, 51, 0),
];

/// Writes the curve to a file.
///
/// # Errors
/// A sentence: the sizes are not of one kind, or the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<(), String> {
    let in_percent = in_percent(&report.sizes)?;
    draw(report, path, in_percent).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether memory is given in percent rather than in pages.
///
/// # Errors
/// A sentence: both percent and pages were given, but the curve has one axis.
pub fn in_percent(sizes: &[MemoryShareOf]) -> Result<bool, String> {
    let percents = sizes.iter().filter(|ram| matches!(ram, MemoryShareOf::Percent(_))).count();
    if percents != 0 && percents != sizes.len() {
        return Err("a curve needs all sizes in percent or all in pages".into());
    }
    Ok(percents != 0)
}

/// The points of a policy: memory, and miss ratio in percent, by rising memory.
fn line(report: &Report, policy: Kind) -> Vec<(f64, f64)> {
    let place = |ram: MemoryShareOf| match ram {
        MemoryShareOf::Percent(percent) => percent,
        MemoryShareOf::Pages(pages) => pages as f64,
    };
    let mut points: Vec<(f64, f64)> =
        report.sizes.iter().map(|ram| (place(*ram), 100.0 * report.mean(policy, Some(*ram)))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn title(report: &Report) -> String {
    match report.traces.as_slice() {
        [trace] => trace.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        traces => format!("mean of {} traces", traces.len()),
    }
}

fn draw(report: &Report, path: &Path, in_percent: bool) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<_> = report.policies.iter().map(|policy| (*policy, line(report, *policy))).collect();
    let places = || lines.iter().flat_map(|(_, points)| points).map(|(place, _)| *place);
    let most = places().fold(0.0, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    // Space at the right for the names.
    let mut context = ChartBuilder::on(&root)
        .caption(title(report), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most * 1.25, 0.0..100.0)?;
    let memory = if in_percent { "memory, % of the trace's pages" } else { "memory, pages" };
    context
        .configure_mesh()
        .x_desc(memory)
        .y_desc("misses, % of accesses")
        .x_label_formatter(&|place| if *place <= most { format!("{place:.0}") } else { String::new() })
        .y_label_formatter(&|place| format!("{place:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (number, (policy, points)) in lines.into_iter().enumerate() {
        // If there are more policies than colours, the lines of the others are thin.
        let style = COLORS[number % COLORS.len()].stroke_width(if number < COLORS.len() { 2 } else { 1 });
        let name = policy.name();
        context
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
