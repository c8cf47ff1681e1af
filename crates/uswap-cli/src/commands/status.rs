//! `uswap status`: shows one run in tables, or several runs in a list.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use uswap_core::util::size::human;
use uswap_device::ConnectionState;
use uswap_run::config::exit;
use uswap_run::control::protocol::status::{MountFigures, ProcessFigures, RunFigures, RunStatus};

use crate::client::{self, RunningRun};
use crate::ui::table::{Table, printable};

/// Maximum number of processes in the table.
const MAX_PROCESSES: usize = 10;

#[derive(Args, Debug)]
pub struct StatusArguments {
    /// Name of the run; without it the only one, or a list of all
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print everything the run tells, as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the status; returns the exit status.
pub fn run(arguments: &StatusArguments) -> i32 {
    let printed = match &arguments.name {
        Some(name) => client::find(name).and_then(|run| one(&run, arguments.json)),
        None => all(arguments.json),
    };
    match printed {
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

fn one(run: &RunningRun, json: bool) -> Result<String, String> {
    Ok(match json {
        true => format!("{:#}\n", client::status_as_told(run)?),
        false => in_tables(&client::status(run)?, None),
    })
}

fn all(json: bool) -> Result<String, String> {
    let runs = client::runs();
    if let ([run], false) = (&runs[..], json) {
        return one(run, false);
    }
    // A run that ends during the query does not count.
    if json {
        let answers: Vec<Value> = runs.iter().filter_map(|run| client::status_as_told(run).ok()).collect();
        return Ok(format!("{:#}\n", Value::from(answers)));
    }
    let answers: Vec<RunStatus> = runs.iter().filter_map(|run| client::status(run).ok()).collect();
    if answers.is_empty() {
        return Err(
            "nothing runs under uswap here (runs of other users and in other network namespaces are not seen)".into()
        );
    }
    Ok(joined(&[list(&answers)]))
}

fn list(answers: &[RunStatus]) -> Table {
    let mut table =
        Table::new(&["<NAME", "PID", "UPTIME", "USED", "LIMIT", "PEAK", "POOL", "SWAP", "PROCESSES", "<COMMAND"]);
    for answer in answers {
        let figures = &answer.figures;
        let swap: u64 = figures.devices.iter().map(|device| device.used_bytes).sum();
        table.row([
            printable(&answer.name),
            answer.pid.to_string(),
            duration(answer.uptime_ms),
            human(figures.ram_bytes),
            human(figures.ram_limit_bytes),
            human(figures.ram_peak_bytes),
            human(figures.pool_bytes),
            human(swap),
            figures.processes.len().to_string(),
            command(answer),
        ]);
    }
    table
}

/// All tables of one run; with the status before it, also the rates since then.
pub fn in_tables(status: &RunStatus, before: Option<&RunStatus>) -> String {
    let figures = &status.figures;
    let title = format!(
        "{} (process {}, up {}): {}\n\n",
        printable(&status.name),
        status.pid,
        duration(status.uptime_ms),
        command(status)
    );
    if let Some(mount) = &status.mount {
        let old = before.and_then(|before| Some((before.mount.as_ref()?, status.uptime_ms - before.uptime_ms)));
        let pages = mounted(mount, old);
        let tables = [budget(figures), held(mount), pages, pool(figures), devices(figures), connections(figures)];
        return title + &warnings(mount) + &joined(&tables);
    }
    let mut tables = vec![
        budget(figures),
        pool(figures),
        devices(figures),
        connections(figures),
        traffic(status, before),
        faults(figures),
    ];
    if figures.groups.len() > 1 {
        tables.push(crate::commands::groups::table(&figures.groups));
    }
    tables.extend([processes(figures), unmanaged(figures)]);
    title + &joined(&tables)
}

fn joined(tables: &[Table]) -> String {
    let filled = tables.iter().filter(|table| !table.is_empty());
    let texts: Vec<String> = filled.map(|table| table.lines().join("\n") + "\n").collect();
    texts.join("\n")
}

fn budget(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["<MEMORY", "USED", "LIMIT", "PEAK"]);
    let mut row = |label: String, bytes: [u64; 3]| table.row(std::iter::once(label).chain(bytes.map(human)));
    row("budget".into(), [figures.ram_bytes, figures.ram_limit_bytes, figures.ram_peak_bytes]);
    let share = match figures.pool_share.as_str() {
        "" => "pool".into(),
        share => format!("pool ({share})"),
    };
    row(share, [figures.pool_bytes, figures.pool_limit_bytes, figures.mm_stat.mem_used_max]);
    let reserve = &figures.reserve;
    row("reserve".into(), [reserve.used_bytes, reserve.size_bytes, reserve.peak_bytes]);
    table
}

/// The warnings of a mount, and an empty line if there are any.
fn warnings(mount: &MountFigures) -> String {
    let lines: String = mount.warnings.iter().map(|text| format!("warning: {}\n", printable(text))).collect();
    if lines.is_empty() { lines } else { lines + "\n" }
}

/// The pages that a mount holds.
fn held(mount: &MountFigures) -> Table {
    let mut table = Table::new(&["<CACHED", "SIZE"]);
    let rows = [
        ("in memory", mount.resident_pages << 12),
        ("of that active", mount.active_pages << 12),
        ("in pool and swap", mount.stored_pages << 12),
        ("kept for the next mount", mount.kept_pages << 12),
        ("tables", mount.table_bytes),
    ];
    rows.into_iter().for_each(|(label, bytes)| table.row([label.to_string(), human(bytes)]));
    table.row(["files".to_string(), mount.files.to_string()]);
    table
}

/// A figure of a mount, as a function of its figures.
type MountFigureOf = fn(&MountFigures) -> u64;

/// Pages of a mount: so far, and a second since the figures before.
fn mounted(mount: &MountFigures, before: Option<(&MountFigures, u64)>) -> Table {
    let headings: &[&str] = if before.is_some() { &["<PAGES", "TOTAL", "PER SECOND"] } else { &["<PAGES", "TOTAL"] };
    let mut table = Table::new(headings);
    let rows: [(&str, MountFigureOf); 11] = [
        ("asked for", |mount| mount.asked_pages),
        ("found in memory", |mount| mount.hit_pages),
        ("found in pool or swap", |mount| mount.store_hit_pages),
        ("read from the source", |mount| mount.source_pages),
        ("kept by an earlier mount", |mount| mount.found_pages),
        ("written", |mount| mount.written_pages),
        ("evicted", |mount| mount.evicted_pages),
        ("refaults", |mount| mount.refault_pages),
        ("activated by a refault", |mount| mount.activated_pages),
        ("files changed by others", |mount| mount.invalidations),
        ("lost in the store", |mount| mount.store_errors),
    ];
    for (label, figure) in rows {
        let total = figure(mount);
        let rate = before
            .map(|(old, ms)| format!("{:.0}", total.saturating_sub(figure(old)) as f64 * 1000.0 / ms.max(1) as f64));
        table.row([label.to_string(), total.to_string()].into_iter().chain(rate));
    }
    table
}

/// The compressed tier: uncompressed bytes per compressed byte (ratio), bytes of its memory per
/// compressed byte (density), and the memory that it saves.
fn pool(figures: &RunFigures) -> Table {
    let mut table =
        Table::new(&["<POOL", "<ALLOCATOR", "PAGES", "SAME-FILLED", "COMPRESSED", "RATIO", "DENSITY", "SAVED"]);
    let (stored, compressed) = (figures.stored_pages, figures.pool_stored_bytes);
    let (filled, used) = (figures.same_filled_pages, figures.pool_bytes);
    let plain = stored.saturating_sub(filled) << 12;
    let over = |a: u64, digits: usize| match compressed {
        0 => "-".into(),
        _ => format!("{:.digits$}", a as f64 / compressed as f64),
    };
    table.row([
        printable(&figures.compressor),
        printable(&figures.pool_allocator),
        stored.to_string(),
        filled.to_string(),
        human(compressed),
        over(plain, 1),
        over(used, 2),
        human((stored << 12).saturating_sub(used)),
    ]);
    table
}

fn devices(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["<SWAP", "USED", "SIZE", "PRIO", "ERRORS", "<STATE"]);
    for device in &figures.devices {
        let errors = device.read_errors + device.write_errors;
        let note = device.note.as_ref().map(|note| format!("; {}", printable(note))).unwrap_or_default();
        let state = match [device.draining, device.latched_off, device.out_of_room] {
            [true, ..] => "being emptied",
            [_, true, _] => "off after write errors",
            [.., true] => "no room on its file system",
            _ => "in use",
        };
        let (used, size) = (human(device.used_bytes), human(device.size_bytes));
        let priority = device.priority.to_string();
        table.row([printable(&device.name), used, size, priority, errors.to_string(), format!("{state}{note}")]);
    }
    table
}

/// Connections of devices on the network.
fn connections(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["<CONNECTION", "<STATE", "IN FLIGHT", "ROUND TRIP", "RECONNECTS", "<LAST ERROR"]);
    for device in &figures.devices {
        for (connection, index) in device.connections.iter().zip(1..) {
            let state = match connection.state {
                ConnectionState::Up => "up",
                ConnectionState::Down => "down",
            };
            table.row([
                format!("{} {index}", printable(&device.name)),
                state.to_string(),
                connection.in_flight.to_string(),
                time(connection.round_trip_us * 1000),
                connection.reconnects.to_string(),
                connection.error.as_ref().map_or("-".into(), |error| printable(error)),
            ]);
        }
    }
    table
}

/// A figure of a run, as a function of its figures.
type FigureOf = fn(&RunFigures) -> u64;

fn traffic(status: &RunStatus, before: Option<&RunStatus>) -> Table {
    // A single answer gives no rates.
    let headings: &[&str] = if before.is_some() { &["<PAGES", "TOTAL", "PER SECOND"] } else { &["<PAGES", "TOTAL"] };
    let mut table = Table::new(headings);
    let seconds = before.map(|old| status.uptime_ms.saturating_sub(old.uptime_ms).max(1) as f64 / 1000.0);
    let rows: [(&str, FigureOf); 11] = [
        ("evicted", |figures| figures.counters.pgsteal),
        ("soft faults", |figures| figures.counters.soft_faults),
        ("out to pool", |figures| figures.zswpout),
        ("in from pool", |figures| figures.zswpin),
        ("out to swap", |figures| figures.pswpout),
        ("in from swap", |figures| figures.pswpin),
        ("refaults", |figures| figures.counters.workingset_refault_anon),
        ("read ahead, touched", |figures| figures.counters.swap_ra_hit),
        ("throttled", |figures| figures.counters.throttled),
        ("throttled, us", |figures| figures.counters.throttled_us),
        ("held for a turn", |figures| figures.counters.held_faults),
    ];
    for (label, figure) in rows {
        let total = figure(&status.figures);
        let rate = seconds.zip(before).map(|(seconds, old)| {
            let grown = total.saturating_sub(figure(&old.figures));
            format!("{:.0}", grown as f64 / seconds)
        });
        table.row([label.to_string(), total.to_string()].into_iter().chain(rate));
    }
    table
}

fn faults(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["<FAULTS", "COUNT", "MEAN", "P50", "P99", "P99.9", "MAX"]);
    let tiers = &figures.fault_latency;
    for (label, took) in
        [("zero", &tiers.zero), ("staged", &tiers.staged), ("pool", &tiers.pool), ("device", &tiers.device)]
    {
        let times = [took.mean_ns, took.p50_ns, took.p99_ns, took.p999_ns, took.max_ns].map(time);
        table.row([label.to_string(), took.count.to_string()].into_iter().chain(times));
    }
    table
}

fn processes(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["PID", "<PROCESS", "<STATE"]);
    let all = &figures.processes;
    let (managed, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|process| process.managed);
    for process in managed.into_iter().chain(waiting).take(MAX_PROCESSES) {
        table.row([process.pid.to_string(), printable(&process.name), process_state(process)]);
    }
    if all.len() > MAX_PROCESSES {
        table.row([String::new(), format!("and {} more", all.len() - MAX_PROCESSES)]);
    }
    table
}

fn process_state(process: &ProcessFigures) -> String {
    let state = match (process.managed, process.forked) {
        (true, true) => "managed, forked",
        (true, false) => "managed",
        (false, _) => "not yet: memory is not short",
    };
    match process.held {
        true => format!("{state}, waits for its turn ({})", time(1_000_000 * process.waiting_ms)),
        false => state.to_string(),
    }
}

fn unmanaged(figures: &RunFigures) -> Table {
    let mut table = Table::new(&["PID", "<UNMANAGED", "MEMORY", "<WHY"]);
    for program in figures.unmanaged.iter().filter(|program| program.running) {
        let (name, memory) = (printable(&program.name), human(program.anonymous_bytes));
        table.row([program.pid.to_string(), name, memory, printable(&program.why)]);
    }
    table
}

/// The command line: the file name of the program, then the arguments, cut where they get long.
fn command(status: &RunStatus) -> String {
    const LONGEST: usize = 60;
    let words = status.command.iter().map(|word| printable(word)).enumerate().map(|(index, word)| match index {
        0 => PathBuf::from(&word).file_name().map_or(word.clone(), |name| name.to_string_lossy().into_owned()),
        _ => word,
    });
    let line = words.collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST { line } else { line.chars().take(LONGEST - 3).collect::<String>() + "..." }
}

fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0 => "-".into(),
        n if n < 1_000_000 => format!("{:.1} us", n as f64 / 1e3),
        n if n < 1_000_000_000 => format!("{:.1} ms", n as f64 / 1e6),
        n => format!("{:.1} s", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(text: Value) -> RunStatus {
        serde_json::from_value(text).expect("a status")
    }

    #[test]
    fn an_empty_answer_makes_tables_and_no_panic() {
        for told in [json!({}), json!({"figures": {"devices": [{}], "processes": [{}]}}), json!({"more": 1})] {
            let answer = answer(told);
            let text = in_tables(&answer, Some(&answer));
            assert!(text.contains("budget") && text.contains("PER SECOND"), "{text}");
            assert_eq!(list(&[answer]).lines().len(), 2);
        }
        // An answer that is no status is refused before it gets into a table.
        for nonsense in [json!(null), json!({"figures": {"devices": 3, "processes": [1, null]}})] {
            assert!(serde_json::from_value::<RunStatus>(nonsense).is_err());
        }
    }

    #[test]
    fn text_of_others_cannot_drive_the_terminal() {
        let told = answer(json!({"command": ["/bin/a\u{1b}[2J", "b\n"], "name": "x"}));
        assert_eq!(command(&told), "a?[2J b?");
        assert!(command(&answer(json!({"command": ["a", "y".repeat(100)]}))).ends_with("..."));
    }

    #[test]
    fn times_read_well() {
        assert_eq!([duration(61_000), duration(3_600_000)], ["1:01", "1:00:00"]);
        assert_eq!([time(0), time(1500), time(2_500_000), time(3_000_000_000)], ["-", "1.5 us", "2.5 ms", "3.0 s"]);
    }
}
