//! `uswap status`: one run in tables, or several in a list.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use uswap_core::util::size::human;
use uswap_engine::config::exit;

use crate::client::{self, Run};
use crate::ui::table::Table;

/// Processes shown by default.
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

fn one(run: &Run, json: bool) -> Result<String, String> {
    let status = client::status(run)?;
    Ok(if json { format!("{status:#}\n") } else { in_tables(&status, None) })
}

fn all(json: bool) -> Result<String, String> {
    let runs = client::runs();
    if let ([run], false) = (&runs[..], json) {
        return one(run, false);
    }
    // A run that ends while we ask is none.
    let answers: Vec<Value> = runs.iter().filter_map(|run| client::status(run).ok()).collect();
    if json {
        return Ok(format!("{:#}\n", Value::from(answers)));
    }
    if answers.is_empty() {
        return Err(
            "nothing runs under uswap here (runs of other users and in other network namespaces are not seen)".into()
        );
    }
    Ok(joined(&[list(&answers)]))
}

fn list(answers: &[Value]) -> Table {
    let mut table =
        Table::new(&["<NAME", "PID", "UPTIME", "USED", "LIMIT", "PEAK", "POOL", "SWAP", "PROCESSES", "<COMMAND"]);
    for answer in answers {
        let figures = &answer["figures"];
        let swap: u64 = array(&figures["devices"]).iter().map(|device| number(&device["used_bytes"])).sum();
        table.row([
            text(&answer["name"]),
            number(&answer["pid"]).to_string(),
            duration(number(&answer["uptime_ms"])),
            bytes(&figures["ram_bytes"]),
            bytes(&figures["ram_limit_bytes"]),
            bytes(&figures["ram_peak_bytes"]),
            bytes(&figures["pool_bytes"]),
            human(swap),
            array(&figures["processes"]).len().to_string(),
            command(answer),
        ]);
    }
    table
}

/// Everything of one run. With the answer before it, rates since then.
pub fn in_tables(status: &Value, before: Option<&Value>) -> String {
    let figures = &status["figures"];
    let title = format!(
        "{} (process {}, up {}): {}\n\n",
        text(&status["name"]),
        number(&status["pid"]),
        duration(number(&status["uptime_ms"])),
        command(status)
    );
    let mut tables = vec![
        budget(figures),
        pool(figures),
        devices(figures),
        connections(figures),
        traffic(status, before),
        faults(figures),
    ];
    if array(&figures["groups"]).len() > 1 {
        tables.push(crate::commands::groups::table(&figures["groups"]));
    }
    tables.extend([processes(figures), unmanaged(figures)]);
    title + &joined(&tables)
}

fn joined(tables: &[Table]) -> String {
    let filled = tables.iter().filter(|table| !table.is_empty());
    let texts: Vec<String> = filled.map(|table| table.lines().join("\n") + "\n").collect();
    texts.join("\n")
}

fn budget(figures: &Value) -> Table {
    let mut table = Table::new(&["<MEMORY", "USED", "LIMIT", "PEAK"]);
    let row = ["ram_bytes", "ram_limit_bytes", "ram_peak_bytes"].map(|name| bytes(&figures[name]));
    table.row(std::iter::once("budget".to_string()).chain(row));
    let most = bytes(&figures["mm_stat"]["mem_used_max"]);
    let share = figures["pool_share"].as_str().map_or("pool".into(), |share| format!("pool ({share})"));
    table.row([share, bytes(&figures["pool_bytes"]), bytes(&figures["pool_limit_bytes"]), most]);
    let reserve = &figures["reserve"];
    let row = ["used_bytes", "size_bytes", "peak_bytes"].map(|name| bytes(&reserve[name]));
    table.row(std::iter::once("reserve".to_string()).chain(row));
    table
}

/// The compressed tier: what its pages would take (ratio), what its memory holds beside their bytes (density), and what is
/// saved.
fn pool(figures: &Value) -> Table {
    let mut table =
        Table::new(&["<POOL", "<ALLOCATOR", "PAGES", "SAME-FILLED", "COMPRESSED", "RATIO", "DENSITY", "SAVED"]);
    let (stored, compressed) = (number(&figures["stored_pages"]), number(&figures["pool_stored_bytes"]));
    let (filled, used) = (number(&figures["same_filled_pages"]), number(&figures["pool_bytes"]));
    let plain = stored.saturating_sub(filled) << 12;
    let over = |a: u64, digits: usize| match compressed {
        0 => "-".into(),
        _ => format!("{:.digits$}", a as f64 / compressed as f64),
    };
    table.row([
        text(&figures["compressor"]),
        text(&figures["pool_allocator"]),
        stored.to_string(),
        filled.to_string(),
        human(compressed),
        over(plain, 1),
        over(used, 2),
        human((stored << 12).saturating_sub(used)),
    ]);
    table
}

fn devices(figures: &Value) -> Table {
    let mut table = Table::new(&["<SWAP", "USED", "SIZE", "PRIO", "ERRORS", "<STATE"]);
    for device in array(&figures["devices"]) {
        let errors = number(&device["read_errors"]) + number(&device["write_errors"]);
        let note = device["note"].as_str().map(|note| format!("; {}", text(&note.into()))).unwrap_or_default();
        let state = match ["draining", "latched_off", "out_of_room"].map(|name| device[name] == true) {
            [true, ..] => "being emptied",
            [_, true, _] => "off after write errors",
            [.., true] => "no room on its file system",
            _ => "in use",
        };
        let (used, size) = (bytes(&device["used_bytes"]), bytes(&device["size_bytes"]));
        let priority = device["priority"].as_i64().unwrap_or(0).to_string();
        table.row([text(&device["name"]), used, size, priority, errors.to_string(), format!("{state}{note}")]);
    }
    table
}

/// Connections of devices on the network.
fn connections(figures: &Value) -> Table {
    let mut table = Table::new(&["<CONNECTION", "<STATE", "IN FLIGHT", "ROUND TRIP", "RECONNECTS", "<LAST ERROR"]);
    for device in array(&figures["devices"]) {
        for (connection, index) in array(&device["connections"]).iter().zip(1..) {
            table.row([
                format!("{} {index}", text(&device["name"])),
                text(&connection["state"]),
                number(&connection["in_flight"]).to_string(),
                time(number(&connection["round_trip_us"]) * 1000),
                number(&connection["reconnects"]).to_string(),
                connection["error"].as_str().map_or("-".into(), |error| text(&error.into())),
            ]);
        }
    }
    table
}

fn traffic(status: &Value, before: Option<&Value>) -> Table {
    // A single answer knows no rates.
    let headings: &[&str] = if before.is_some() { &["<PAGES", "TOTAL", "PER SECOND"] } else { &["<PAGES", "TOTAL"] };
    let mut table = Table::new(headings);
    let figures = &status["figures"];
    let seconds = before.map(|old| {
        let (now, then) = (number(&status["uptime_ms"]), number(&old["uptime_ms"]));
        now.saturating_sub(then).max(1) as f64 / 1000.0
    });
    let rows = [
        ("evicted", "pgsteal"),
        ("soft faults", "soft_faults"),
        ("out to pool", "zswpout"),
        ("in from pool", "zswpin"),
        ("out to swap", "pswpout"),
        ("in from swap", "pswpin"),
        ("refaults", "workingset_refault_anon"),
        ("read ahead, touched", "swap_ra_hit"),
        ("throttled", "throttled"),
        ("throttled, us", "throttled_us"),
        ("held for a turn", "held_faults"),
    ];
    for (label, name) in rows {
        let total = number(&figures[name]);
        let rate = seconds.zip(before).map(|(seconds, old)| {
            let grown = total.saturating_sub(number(&old["figures"][name]));
            format!("{:.0}", grown as f64 / seconds)
        });
        table.row([label.to_string(), total.to_string()].into_iter().chain(rate));
    }
    table
}

fn faults(figures: &Value) -> Table {
    let mut table = Table::new(&["<FAULTS", "COUNT", "MEAN", "P50", "P99", "P99.9", "MAX"]);
    for tier in ["zero", "staged", "pool", "device"] {
        let latency = &figures["fault_latency"][tier];
        let times = ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| time(number(&latency[name])));
        let count = number(&latency["count"]).to_string();
        table.row([tier.to_string(), count].into_iter().chain(times));
    }
    table
}

fn processes(figures: &Value) -> Table {
    let mut table = Table::new(&["PID", "<PROCESS", "<STATE"]);
    let all = array(&figures["processes"]);
    let (managed, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|process| process["managed"] == true);
    for process in managed.iter().chain(&waiting).take(MAX_PROCESSES) {
        let waiting = process["held"] == true;
        let state = match (process["managed"] == true, process["forked"] == true) {
            (true, true) => "managed, forked",
            (true, false) => "managed",
            (false, _) => "not yet: memory is not short",
        };
        let state = match waiting {
            true => format!("{state}, waits for its turn ({})", time(1_000_000 * number(&process["waiting_ms"]))),
            false => state.to_string(),
        };
        table.row([number(&process["pid"]).to_string(), text(&process["name"]), state]);
    }
    if all.len() > MAX_PROCESSES {
        table.row([String::new(), format!("and {} more", all.len() - MAX_PROCESSES)]);
    }
    table
}

fn unmanaged(figures: &Value) -> Table {
    let mut table = Table::new(&["PID", "<UNMANAGED", "MEMORY", "<WHY"]);
    for program in array(&figures["unmanaged"]).iter().filter(|program| program["running"] == true) {
        let (name, memory) = (text(&program["name"]), bytes(&program["anonymous_bytes"]));
        table.row([number(&program["pid"]).to_string(), name, memory, text(&program["why"])]);
    }
    table
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn bytes(value: &Value) -> String {
    human(number(value))
}

/// Text from another process: nothing that a terminal would obey.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The command line: the program by its file name, then the arguments, cut where they get long.
fn command(status: &Value) -> String {
    const LONGEST: usize = 60;
    let words = array(&status["command"]).iter().enumerate().map(|(index, word)| match index {
        0 => PathBuf::from(text(word)).file_name().map_or(text(word), |name| name.to_string_lossy().into_owned()),
        _ => text(word),
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

    #[test]
    fn an_empty_answer_makes_tables_and_no_panic() {
        for answer in [json!(null), json!({}), json!({"figures": {"devices": 3, "processes": [1, null]}})] {
            let text = in_tables(&answer, Some(&answer));
            assert!(text.contains("budget") && text.contains("PER SECOND"), "{text}");
            assert_eq!(list(&[answer]).lines().len(), 2);
        }
    }

    #[test]
    fn text_of_others_cannot_drive_the_terminal() {
        let answer = json!({"command": ["/bin/a\u{1b}[2J", "b\n"], "name": "x"});
        assert_eq!(command(&answer), "a?[2J b?");
        assert!(command(&json!({"command": ["a", "y".repeat(100)]})).ends_with("..."));
    }

    #[test]
    fn times_read_well() {
        assert_eq!([duration(61_000), duration(3_600_000)], ["1:01", "1:00:00"]);
        assert_eq!([time(0), time(1500), time(2_500_000), time(3_000_000_000)], ["-", "1.5 us", "2.5 ms", "3.0 s"]);
    }
}
