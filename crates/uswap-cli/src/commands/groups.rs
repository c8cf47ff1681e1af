//! `uswap group`: groups with their own limits: of processes inside a run, of folders in a mount.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use uswap_core::util::size::{human, unit_hint};
use uswap_run::control::protocol::Request;
use uswap_run::control::protocol::answer::{GroupLimited, GroupMoved, GroupRemoved};
use uswap_run::control::protocol::status::GroupFigures;

use crate::client::{self, RunningRun};
use crate::commands::orders::{tell, wait_until};
use crate::ui::table::{Table, printable};

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
    Limit(GroupLimitArguments),
    /// Put a process, or a group with all that is in it, into another group
    Move(MoveArguments),
    /// Remove a group; its processes (of a mount: its files) go to the group above it
    Remove(RemoveArguments),
    /// Show the groups of a run or mount
    List(ListArguments),
}

#[derive(Args, Debug)]
struct CreateArguments {
    /// Name of the run or mount
    #[arg(value_name = "NAME")]
    name: String,
    /// The new group: its name, or its path below another group (builds/jobs); of a mount: a
    /// folder, by its path in the mount
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
struct GroupLimitArguments {
    /// Name of the run or mount
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
    /// Name of the run or mount
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
    /// Name of the run or mount
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
    /// Name of the run or mount
    #[arg(value_name = "NAME")]
    name: String,
    /// Print everything that is told of the groups, as JSON
    #[arg(long)]
    json: bool,
}

/// Executes the command; returns the exit status.
pub fn run(arguments: &GroupArguments) -> i32 {
    match &arguments.order {
        GroupCommand::Create(order) => create(order),
        GroupCommand::Limit(order) => limit(order),
        GroupCommand::Move(order) => change_place(order),
        GroupCommand::Remove(order) => remove(order),
        GroupCommand::List(order) => list(order),
    }
}

fn ask<A: DeserializeOwned>(name: &str, request: &Request) -> Result<A, String> {
    client::ask_for(&client::find(name)?, request)
}

fn create(order: &CreateArguments) -> i32 {
    let request = Request::GroupCreate { group: order.group.clone(), limit: Some(order.limit.clone()) };
    let made = ask(&order.name, &request).map_err(|error| error + &hint(&order.limit));
    tell(made, order.json, |made: &GroupLimited| {
        format!("{}: {}", printable(&made.group), limit_in_words(made.limit_bytes))
    })
}

fn limit(order: &GroupLimitArguments) -> i32 {
    let ordered = || {
        let run = client::find(&order.name)?;
        let request = Request::GroupLimit { group: order.group.clone(), limit: order.limit.clone() };
        client::ask_for::<GroupLimited>(&run, &request).map_err(|error| error + &hint(&order.limit))?;
        below_limit(&run, &order.group, Duration::from_secs(order.wait))
    };
    tell(ordered(), order.json, |group| {
        let (name, used) = (printable(&group.name), human(group.ram_bytes));
        format!("{name}: {}, {used} in use", limit_in_words(group.ram_limit_bytes))
    })
}

fn hint(limit: &str) -> String {
    unit_hint(limit, "the limit above it")
}

/// Waits until the group keeps its limit.
fn below_limit(run: &RunningRun, path: &str, wait: Duration) -> Result<GroupFigures, String> {
    let path = path.trim_matches('/');
    let deadline = Instant::now() + wait;
    loop {
        let groups = client::status(run)?.figures.groups;
        let group = groups.into_iter().find(|group| group.name == path).ok_or("the group was removed meanwhile")?;
        let (used, limit) = (group.ram_bytes, group.ram_limit_bytes.unwrap_or(u64::MAX));
        if used <= limit {
            return Ok(group);
        }
        wait_until(deadline, used, limit)?;
    }
}

fn change_place(order: &MoveArguments) -> i32 {
    let request = Request::GroupMove { what: order.what.clone(), group: order.to.clone() };
    tell(ask(&order.name, &request), order.json, |moved: &GroupMoved| match moved.process {
        Some(pid) => format!("{pid}: in {}", printable(&moved.group)),
        None => format!("{}: now {}", order.what, printable(&moved.group)),
    })
}

fn remove(order: &RemoveArguments) -> i32 {
    let request = Request::GroupRemove { group: order.group.clone() };
    tell(ask(&order.name, &request), order.json, |removed: &GroupRemoved| {
        let (count, what) = removed.files.map_or((removed.processes, "process(es)"), |files| (files, "file(s)"));
        format!("{}: removed; {count} {what} went to the group above it", printable(&removed.group))
    })
}

fn list(order: &ListArguments) -> i32 {
    let groups = || Ok(client::status(&client::find(&order.name)?)?.figures.groups);
    tell(groups(), order.json, |groups: &Vec<GroupFigures>| table(groups).lines().join("\n"))
}

/// The groups of a run or mount, one row each.
pub fn table(groups: &[GroupFigures]) -> Table {
    let members = if groups.iter().any(|group| group.files.is_some()) { "FILES" } else { "PROCESSES" };
    let mut table = Table::new(&["<GROUP", "USED", "LIMIT", "PEAK", "SWAPPED", members]);
    for group in groups {
        let limit = group.ram_limit_bytes.map_or("-".to_string(), human);
        let [used, peak, swapped] = [group.ram_bytes, group.ram_peak_bytes, group.swapped_bytes].map(human);
        let members = group.files.unwrap_or(group.processes.len() as u64).to_string();
        table.row([printable(&group.name), used, limit, peak, swapped, members]);
    }
    table
}

fn limit_in_words(limit: Option<u64>) -> String {
    limit.map_or_else(|| "no limit of its own".into(), human)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_limit_shows_none() {
        let groups: Vec<GroupFigures> = serde_json::from_value(serde_json::json!([
            { "name": "/", "ram_bytes": 3 << 20, "ram_limit_bytes": 64 << 20, "ram_peak_bytes": 0, "processes": [1, 2] },
            { "name": "a\u{1b}", "ram_bytes": 4096, "ram_limit_bytes": null, "swapped_bytes": 8192, "processes": [] },
        ]))
        .expect("groups");
        let lines = table(&groups).lines();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains("64.0 MiB") && lines[1].ends_with('2'), "{lines:?}");
        assert!(lines[2].starts_with("a? ") && lines[2].contains(" - ") && lines[2].contains("8.0 KiB"), "{lines:?}");
        assert_eq!(table(&[]).lines().len(), 1);
        let lines = table(&[GroupFigures { files: Some(7), ..GroupFigures::default() }]).lines();
        assert!(lines[0].ends_with("FILES") && lines[1].ends_with('7'), "{lines:?}");
    }
}
