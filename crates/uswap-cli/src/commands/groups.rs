//! `uswap group`: groups with limits of their own inside a run.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uswap_core::util::size::{human, unit_hint};

use crate::client::{self, Run};
use crate::commands::orders::{tell, wait_until};
use crate::ui::table::Table;

#[derive(Args, Debug)]
pub struct GroupArguments {
    #[command(subcommand)]
    order: GroupCommand,
}

#[derive(Subcommand, Debug)]
enum GroupCommand {
    /// Make a group
    Create(CreateArguments),
    /// Change the limit of a group
    Limit(LimitArguments),
    /// Put a process, or a group with all that is in it, into another group
    Move(MoveArguments),
    /// Remove a group; its processes go to the group above it
    Remove(RemoveArguments),
    /// Show the groups of a run
    List(ListArguments),
}

#[derive(Args, Debug)]
struct CreateArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The new group: its name, or its path below another group (builds/jobs)
    #[arg(value_name = "GROUP")]
    group: String,
    /// Its limit: a size (512M), a part of the limit above it (50%), or max (none)
    #[arg(long, value_name = "SIZE|PERCENT|max", default_value = "max")]
    limit: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct LimitArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The group
    #[arg(value_name = "GROUP")]
    group: String,
    /// Its limit from now on: a size (512M), a part of the limit above it (50%), or max (none)
    #[arg(value_name = "SIZE|PERCENT|max")]
    limit: String,
    /// How long to wait for the group to get below it, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct MoveArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// A process, by its number (its children stay where they are), or a group
    #[arg(value_name = "PID|GROUP")]
    what: String,
    /// The group to put it in; / is the run itself
    #[arg(value_name = "GROUP")]
    to: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct RemoveArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The group
    #[arg(value_name = "GROUP")]
    group: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ListArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// Print everything the run tells of its groups, as JSON
    #[arg(long)]
    json: bool,
}

/// Carries the order out; returns the exit status.
pub fn run(arguments: &GroupArguments) -> i32 {
    match &arguments.order {
        GroupCommand::Create(order) => create(order),
        GroupCommand::Limit(order) => limit(order),
        GroupCommand::Move(order) => change_place(order),
        GroupCommand::Remove(order) => remove(order),
        GroupCommand::List(order) => list(order),
    }
}

fn ask(name: &str, request: &Value) -> Result<Value, String> {
    client::ask_for(&client::find(name)?, request)
}

fn create(order: &CreateArguments) -> i32 {
    let request = json!({ "request": "group-create", "group": order.group, "limit": order.limit });
    let made = ask(&order.name, &request).map_err(|error| error + &hint(&order.limit));
    tell(made, order.json, |answer| format!("{}: {}", text(&answer["group"]), limit_in_words(&answer["limit_bytes"])))
}

fn limit(order: &LimitArguments) -> i32 {
    let ordered = || {
        let run = client::find(&order.name)?;
        let request = json!({ "request": "group-limit", "group": order.group, "limit": order.limit });
        client::ask_for(&run, &request).map_err(|error| error + &hint(&order.limit))?;
        below_limit(&run, &order.group, Duration::from_secs(order.wait))
    };
    tell(ordered(), order.json, |group| {
        let used = human(number(&group["ram_bytes"]));
        format!("{}: {}, {used} in use", text(&group["name"]), limit_in_words(&group["ram_limit_bytes"]))
    })
}

fn hint(limit: &str) -> String {
    unit_hint(limit, "the limit above it")
}

/// Waits for the group to keep its limit.
fn below_limit(run: &Run, path: &str, wait: Duration) -> Result<Value, String> {
    let path = path.trim_matches('/');
    let deadline = Instant::now() + wait;
    loop {
        let status = client::status(run)?;
        let groups = array(&status["figures"]["groups"]);
        let group = groups.iter().find(|group| group["name"] == path).ok_or("the group was removed meanwhile")?;
        let (used, limit) = (number(&group["ram_bytes"]), group["ram_limit_bytes"].as_u64().unwrap_or(u64::MAX));
        if used <= limit {
            return Ok(group.clone());
        }
        wait_until(deadline, used, limit)?;
    }
}

fn change_place(order: &MoveArguments) -> i32 {
    let request = json!({ "request": "group-move", "what": order.what, "group": order.to });
    tell(ask(&order.name, &request), order.json, |answer| match answer["process"].as_u64() {
        Some(pid) => format!("{pid}: in {}", text(&answer["group"])),
        None => format!("{}: now {}", order.what, text(&answer["group"])),
    })
}

fn remove(order: &RemoveArguments) -> i32 {
    let request = json!({ "request": "group-remove", "group": order.group });
    tell(ask(&order.name, &request), order.json, |answer| {
        let processes = number(&answer["processes"]);
        format!("{}: removed; {processes} process(es) went to the group above it", text(&answer["group"]))
    })
}

fn list(order: &ListArguments) -> i32 {
    let groups = || Ok(client::status(&client::find(&order.name)?)?["figures"]["groups"].take());
    tell(groups(), order.json, |groups| table(groups).lines().join("\n"))
}

/// The groups of a run, a row each.
pub fn table(groups: &Value) -> Table {
    let mut table = Table::new(&["<GROUP", "USED", "LIMIT", "PEAK", "SWAPPED", "PROCESSES"]);
    for group in array(groups) {
        let limit = group["ram_limit_bytes"].as_u64().map_or("-".to_string(), human);
        let [used, peak, swapped] = ["ram_bytes", "ram_peak_bytes", "swapped_bytes"].map(|n| human(number(&group[n])));
        let processes = array(&group["processes"]).len().to_string();
        table.row([text(&group["name"]), used, limit, peak, swapped, processes]);
    }
    table
}

fn limit_in_words(limit: &Value) -> String {
    limit.as_u64().map_or_else(|| "no limit of its own".into(), human)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_limit_shows_none() {
        let groups = json!([
            { "name": "/", "ram_bytes": 3 << 20, "ram_limit_bytes": 64 << 20, "ram_peak_bytes": 0, "processes": [1, 2] },
            { "name": "a\u{1b}", "ram_bytes": 4096, "ram_limit_bytes": null, "swapped_bytes": 8192, "processes": [] },
        ]);
        let lines = table(&groups).lines();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("64.0 MiB") && lines[1].ends_with('2'), "{lines:?}");
        assert!(lines[2].starts_with("a? ") && lines[2].contains(" - ") && lines[2].contains("8.0 KiB"), "{lines:?}");
        assert_eq!(table(&Value::Null).lines().len(), 1);
    }
}
