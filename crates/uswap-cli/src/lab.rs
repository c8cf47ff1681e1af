//! `uswap lab`: eviction policies compared on traces.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use uswap_engine::config::exit;
use uswap_lab::report::Report;
use uswap_lab::{Kind, Ram, plot, replay};

use crate::table::Table;

#[derive(Args, Debug)]
pub struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Replay traces under several policies and sizes of memory
    Replay(ReplayArguments),
}

#[derive(Args, Debug)]
struct ReplayArguments {
    /// Files of page numbers, one a line, decimal or 0x; gzip or not
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// The policies; without it all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    policy: Vec<Kind>,
    /// Memory: percent of the trace's distinct pages, or a count of pages
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10%,25%,50%,75%")]
    ram: Vec<Ram>,
    /// Print a line for each trace, policy and size, separated by commas
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print the same as JSON
    #[arg(long)]
    json: bool,
    /// Write the miss-ratio curve
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Returns the exit status.
pub fn run(arguments: &LabArguments) -> i32 {
    let done = match &arguments.command {
        LabCommand::Replay(arguments) => replay_traces(arguments),
    };
    match done {
        Ok(text) => {
            crate::print(&text);
            0
        }
        Err(error) => {
            eprintln!("uswap: {error}");
            exit::REFUSED
        }
    }
}

fn replay_traces(arguments: &ReplayArguments) -> Result<String, String> {
    if arguments.svg.is_some() {
        plot::in_percent(&arguments.ram)?;
    }
    let policies = without_repeats(if arguments.policy.is_empty() { &Kind::ALL } else { &arguments.policy });
    let sizes = without_repeats(&arguments.ram);
    let traces = arguments.traces.iter().map(|path| replay::replay(path, &policies, &sizes));
    let traces = traces.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let report = Report { policies, sizes, traces };
    if let Some(path) = &arguments.svg {
        plot::write(&report, path)?;
    }
    Ok(match arguments {
        ReplayArguments { csv: true, .. } => report.csv(),
        ReplayArguments { json: true, .. } => format!("{:#}\n", report.json()),
        _ => in_tables(&report),
    })
}

fn without_repeats<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut seen = Vec::with_capacity(list.len());
    list.iter().for_each(|item| {
        if !seen.contains(item) {
            seen.push(*item);
        }
    });
    seen
}

fn in_tables(report: &Report) -> String {
    let mut text = String::from("misses, soft faults and activations, % of accesses, by memory\n\n");
    for trace in &report.traces {
        text += &format!("{}: {} accesses, {} pages\n", trace.path.display(), trace.accesses, trace.distinct);
        text += &lines(&of_trace(report, trace));
    }
    let number = report.traces.len();
    text += &format!("mean of {number} {}\n", if number == 1 { "trace" } else { "traces" });
    text + lines(&means(report)).trim_end() + "\n"
}

fn lines(table: &Table) -> String {
    table.lines().iter().map(|line| format!("  {line}\n")).chain(["\n".into()]).collect()
}

fn of_trace(report: &Report, trace: &replay::Replayed) -> Table {
    let of_size = |ram: &Ram| [ram.to_string(), "SOFT".into(), "ACT".into()];
    let headings: Vec<String> =
        std::iter::once("<POLICY".into()).chain(report.sizes.iter().flat_map(of_size)).collect();
    let mut table = Table::new(&headings);
    for policy in &report.policies {
        let cells = trace.cells.iter().filter(|cell| cell.policy == *policy).flat_map(|cell| {
            let counts = &cell.counts;
            [counts.misses, counts.soft_faults, counts.activations]
                .map(|count| percent(count as f64 / counts.accesses as f64))
        });
        table.row(std::iter::once(policy.to_string()).chain(cells));
    }
    table
}

fn means(report: &Report) -> Table {
    let sizes = report.sizes.iter().map(ToString::to_string);
    let headings: Vec<String> = std::iter::once("<POLICY".into()).chain(sizes).chain(["ALL".into()]).collect();
    let mut table = Table::new(&headings);
    for policy in &report.policies {
        let sizes = report.sizes.iter().map(|ram| Some(*ram)).chain([None]);
        let cells = sizes.map(|ram| percent(report.mean(*policy, ram)));
        table.row(std::iter::once(policy.to_string()).chain(cells));
    }
    table
}

fn percent(ratio: f64) -> String {
    format!("{:.2}", 100.0 * ratio)
}
