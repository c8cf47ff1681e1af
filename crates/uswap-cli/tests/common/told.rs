//! Runs of `on_order`: processes that hold memory and execute the commands that they get.

use std::io::Write;

use serde_json::Value;

use super::victims::victim;
use super::{Outcome, Running, Scratch, under};

/// A run of `on_order`.
pub struct Told {
    pub running: Running,
    pub folder: Scratch,
    pub name: String,
    pub pids: Vec<u32>,
}

impl Told {
    /// Starts this many processes with this much memory each (in MiB); returns once all have filled
    /// it.
    pub fn start(test: &str, ram: &str, processes: u32, memory: &str, options: &[(&str, &str)]) -> Self {
        Self::start_with("audit", test, ram, processes, memory, options)
    }

    /// The same with these fault points.
    pub fn start_with(
        faults: &str,
        test: &str,
        ram: &str,
        processes: u32,
        memory: &str,
        options: &[(&str, &str)],
    ) -> Self {
        let (name, folder) = (format!("told-{test}-{}", std::process::id()), Scratch::new());
        let mut launch = under(ram).deadline(150).option("--name", &name).faults(faults);
        for (option, value) in options {
            launch = launch.option(option, value);
        }
        let program = victim("on_order");
        let place = folder.path("orders");
        std::fs::create_dir(&place).expect("a folder");
        let (place, count) = (place.display().to_string(), processes.to_string());
        let words = ["--folder", place.as_str(), "--processes", count.as_str(), "--memory", memory, "--timeout", "130"];
        let running = launch.start(std::iter::once(program.as_os_str()).chain(words.iter().map(|word| word.as_ref())));
        let mut told = Self { running, folder, name, pids: Vec::new() };
        told.pids = (1..=processes).map(|number| told.number_after(&format!("{number} is "))).collect();
        told
    }

    /// The number that follows these words on the standard output, once they are there.
    pub fn number_after(&self, words: &str) -> u32 {
        self.running.until(words, || {
            let text = self.running.stdout();
            let rest = text.lines().find_map(|line| line.strip_prefix(words))?;
            rest.parse().ok()
        })
    }

    /// Sends a command to a process and waits until it is executed.
    pub fn order(&self, process: usize, order: &str) {
        let done = format!("{process} {order} done");
        let before = self.running.stdout().matches(&done).count();
        self.send(process, order);
        let look = || (self.running.stdout().matches(&done).count() > before).then_some(());
        self.running.until(&done, look);
    }

    /// Sends a command to a process.
    pub fn send(&self, process: usize, order: &str) {
        let pipe = self.folder.path("orders").join(process.to_string());
        let mut pipe = std::fs::OpenOptions::new().write(true).open(pipe).expect("the process's pipe");
        writeln!(pipe, "{order}").expect("room");
    }

    /// The figures of the run.
    pub fn figures(&self) -> Value {
        super::figures(&self.name)
    }

    /// Waits until `is_so` returns `true`.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        self.running.until(what, || is_so().then_some(()));
    }

    /// Makes all processes check all of their memory and end.
    pub fn end(self) -> Outcome {
        (1..=self.pids.len()).for_each(|process| self.send(process, "end"));
        let outcome = self.running.wait();
        outcome.expect(0);
        assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
        outcome
    }
}
