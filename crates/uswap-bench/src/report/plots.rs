//! SVG plots of a report: slowdown over fraction for each workload, percentiles of latency, the
//! build by N.

use std::path::Path;

use plotters::prelude::*;

use crate::report::results::Results;
use crate::report::{fractions_of, percentiles};

const SIZE: (u32, u32) = (720, 420);
/// Colours that colour-blind readers can tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

/// A line of a plot.
struct PlotLine {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The content of a plot.
struct Chart<'a> {
    title: String,
    across: &'a str,
    up: &'a str,
    /// Names of the places on the horizontal axis, if they are not numbers.
    places: Option<&'a [&'a str]>,
    legend: SeriesLabelPosition,
    lines: Vec<PlotLine>,
}

/// Writes all plots into the folder; returns their names.
///
/// # Errors
/// A sentence that names the plot that could not be written.
pub fn write(results: &Results, folder: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut draw = |name: String, chart: Chart<'_>| {
        if chart.lines.iter().all(|line| line.points.is_empty()) {
            return Ok(());
        }
        draw(&folder.join(&name), chart).map_err(|error| format!("{name}: {error}"))?;
        names.push(name);
        Ok::<_, String>(())
    };
    for workload in results.workloads.iter().map(|workload| workload.name.as_str()) {
        if fractions_of(results, workload).len() > 1 {
            draw(format!("slowdown-{workload}.svg"), slowdown(results, workload))?;
        }
    }
    for workload in ["random", "zipf-1.2", "random-t8"] {
        draw(format!("latency-{workload}.svg"), latency(results, workload))?;
    }
    draw("build.svg".into(), build(results))?;
    Ok(names)
}

fn limited(results: &Results) -> impl Iterator<Item = &String> {
    results.systems.iter().filter(|name| *name != "none")
}

fn slowdown<'a>(results: &Results, workload: &str) -> Chart<'a> {
    let none = results.median(workload, "none", 0, |sample| sample.seconds);
    let line = |system: &String| {
        let point = |fraction: u32| {
            let seconds = results.median(workload, system, fraction, |sample| sample.seconds)?;
            Some((f64::from(fraction), seconds / none?))
        };
        let points = fractions_of(results, workload).into_iter().filter_map(point).collect();
        PlotLine { name: system.clone(), points }
    };
    let (across, up) = ("memory, % of the working set", "time / time without a limit");
    let title = format!("{workload}: slowdown by memory");
    let lines = limited(results).map(line).collect();
    Chart { title, across, up, places: None, legend: SeriesLabelPosition::UpperRight, lines }
}

fn latency<'a>(results: &Results, workload: &str) -> Chart<'a> {
    let line = |system: &String| {
        let fraction = if system == "none" { 0 } else { 50 };
        let sample = results.good(workload, system, fraction).next();
        let three = sample.and_then(|sample| percentiles(&sample.told["latency"]));
        let points = three.into_iter().flatten().enumerate().map(|(at, us)| (at as f64, us)).collect();
        PlotLine { name: system.clone(), points }
    };
    let title = format!("{workload}: latency of a visit with half of the memory");
    let (across, up, places) = ("percentile", "us", Some(["p50", "p99", "p999"].as_slice()));
    let lines = results.systems.iter().map(line).collect();
    Chart { title, across, up, places, legend: SeriesLabelPosition::UpperLeft, lines }
}

fn build<'a>(results: &Results) -> Chart<'a> {
    let mut jobs = crate::workload::JOBS;
    jobs.sort_unstable();
    let line = |system: &String| {
        let point = |jobs: usize| {
            let name = format!("cbuild-j{jobs}");
            let fraction = if system == "none" { 0 } else { 50 };
            Some((jobs as f64, results.median(&name, system, fraction, |sample| sample.seconds)?))
        };
        PlotLine { name: system.clone(), points: jobs.into_iter().filter_map(point).collect() }
    };
    let lines = results.systems.iter().map(line).collect();
    let (title, legend) = ("C build with half of the memory".into(), SeriesLabelPosition::UpperLeft);
    Chart { title, across: "jobs", up: "seconds", places: None, legend, lines }
}

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic: for values that differ by more than a factor of ten.
    Log,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        if self == Self::Log { value.max(1e-3).log10() } else { value }
    }

    fn label(self, place: f64) -> String {
        let value = if self == Self::Log { 10f64.powf(place) } else { place };
        if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
    }
}

/// The ranges of both axes with some margin, never empty, and the scale of the vertical axis.
fn ranges(lines: &[PlotLine]) -> (std::ops::Range<f64>, std::ops::Range<f64>, Scale) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = |part: fn(&(f64, f64)) -> f64| points().map(part).fold(f64::INFINITY, f64::min);
    let most = |part: fn(&(f64, f64)) -> f64| points().map(part).fold(f64::NEG_INFINITY, f64::max);
    let (x0, x1, y0, y1) = (least(|p| p.0), most(|p| p.0), least(|p| p.1), most(|p| p.1));
    let scale = if y1 > 10.0 * y0 { Scale::Log } else { Scale::Linear };
    let room = ((x1 - x0) * 0.05).max(0.1);
    let low = if scale == Scale::Log { scale.place(y0) - 0.1 } else { 0.0 };
    let high = if scale == Scale::Log { scale.place(y1) + 0.2 } else { (y1 * 1.2).max(1e-3) };
    (x0 - room..x1 + room, low..high, scale)
}

fn draw(path: &Path, chart: Chart<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (across, up, scale) = ranges(&chart.lines);
    let mut context = ChartBuilder::on(&root)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(across, up)?;
    let place = |x: &f64| match chart.places {
        Some(places) if x.fract().abs() < 1e-6 => places.get(x.round() as usize).copied().unwrap_or("").to_string(),
        Some(_) => String::new(),
        None => format!("{x:.0}"),
    };
    let labels = chart.places.map_or(8, <[&str]>::len);
    context
        .configure_mesh()
        .x_desc(chart.across)
        .y_desc(chart.up)
        .x_labels(labels)
        .x_label_formatter(&place)
        .y_label_formatter(&|place| scale.label(*place))
        .light_line_style(WHITE)
        .draw()?;
    for (number, line) in chart.lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let points = line.points.iter().map(|(x, y)| (*x, scale.place(*y)));
        context
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    context
        .configure_series_labels()
        .position(chart.legend)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
