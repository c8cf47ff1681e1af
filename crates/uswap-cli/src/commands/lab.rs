//! `uswap lab`: compares eviction policies on traces.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use uswap_lab::generate::{self, TraceFormat, TracePattern, TraceRecipe};
use uswap_lab::report::Report;
use uswap_lab::{Kind, MemoryShareOf, plot, replay};
use uswap_run::config::exit;

use crate::commands::record;
use crate::ui::table::Table;

#[derive(Args, Debug)]
pub struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Replay traces under several policies and sizes of memory
    Replay(ReplayArguments),
    /// Run a command and record what it touches, as a trace
    #[command(override_usage = "uswap lab record -o FILE [OPTIONS] -- CMD [ARG...]")]
    Record(record::RecordArguments),
    /// Make a trace by rule, the same for the same seed
    Generate(GenerateArguments),
}

#[derive(Args, Debug)]
struct ReplayArguments {
    /// Files of page numbers, one a line, decimal or 0x, or in the compact format; gzip or not
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// The policies; without it all
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = policies())]
    policy: Vec<Kind>,
    /// Memory: percent of the trace's distinct pages, or a count of pages
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10%,25%,50%,75%")]
    ram: Vec<MemoryShareOf>,
    /// Print a line for each trace, policy and size, separated by commas
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print the same as JSON
    #[arg(long)]
    json: bool,
    /// Write the miss-ratio curve: misses over memory, the mean of the traces
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct GenerateArguments {
    /// What the accesses follow
    #[arg(value_name = "KIND", value_parser = patterns())]
    kind: TracePattern,
    /// Pages, numbered from 0
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pages: u32,
    /// Accesses
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    length: u64,
    /// Of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Of the zipf distribution: 0 is uniform, and the larger it is, the fewer pages get most
    /// accesses
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    exponent: f64,
    /// As text, a page a line, or compact, about a byte an access
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = formats())]
    format: TraceFormat,
    /// Write to a new file, gzip if its name ends in .gz; else to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A parser for one value of a list, by name.
fn one_of<T: Copy + Send + Sync + 'static>(
    list: impl IntoIterator<Item = (T, &'static str, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let list: Vec<_> = list.into_iter().collect();
    let values = list.iter().map(|(_, name, about)| PossibleValue::new(*name).help(*about));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).try_map(move |word| {
        let item = list.iter().find(|(_, name, _)| *name == word);
        item.map(|(item, ..)| *item).ok_or("not in the list")
    })
}

fn policies() -> impl TypedValueParser<Value = Kind> {
    one_of(Kind::ALL.map(|kind| (kind, kind.name(), kind.about())))
}

fn patterns() -> impl TypedValueParser<Value = TracePattern> {
    one_of(TracePattern::ALL)
}

fn formats() -> impl TypedValueParser<Value = TraceFormat> {
    one_of([
        (TraceFormat::Text, "text", "a page number a line"),
        (TraceFormat::Compact, "compact", "binary, about a byte an access"),
    ])
}

/// Executes the command; returns the exit status.
pub fn run(arguments: &LabArguments) -> i32 {
    let done = match &arguments.command {
        LabCommand::Record(arguments) => return record::run(arguments),
        LabCommand::Replay(arguments) => replay_traces(arguments),
        LabCommand::Generate(arguments) => make_trace(arguments).map(|()| String::new()),
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

fn make_trace(arguments: &GenerateArguments) -> Result<(), String> {
    let GenerateArguments { kind: pattern, pages, length, seed, exponent, format, ref output } = *arguments;
    let recipe = TraceRecipe { pattern, pages, length, seed, exponent };
    if let Some(path) = output {
        return generate::write_file(&recipe, format, path).map_err(|error| format!("{}: {error}", path.display()));
    }
    if format == TraceFormat::Compact && io::stdout().is_terminal() {
        return Err("the compact format is not for terminals: name a file with -o, or pipe it".into());
    }
    match generate::write(&recipe, format, io::stdout().lock()) {
        // A reader that has ended early (`| head`) is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map(drop).map_err(|error| error.to_string()),
    }
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
    let of_size = |ram: &MemoryShareOf| [ram.to_string(), "SOFT".into(), "ACT".into()];
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
