//! The man page and the shell completions, made from the definition of the command line; facts that
//! the definition does not contain are written here.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use uswap_run::config::Compression;

use crate::Cli;

#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// `uswap completions SHELL`.
pub fn print_completions(arguments: &CompletionsArguments) -> i32 {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "uswap", &mut text);
    crate::print(&String::from_utf8_lossy(&text));
    0
}

/// `uswap man`.
pub fn print_man_page() -> i32 {
    match man_page() {
        Ok(text) => {
            crate::print(&text);
            0
        }
        Err(error) => {
            eprintln!("uswap: {error}");
            uswap_run::config::exit::REFUSED
        }
    }
}

fn man_page() -> std::io::Result<String> {
    let mut command = Cli::command();
    command.build();
    let page = Man::new(command.clone()).section("1");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    description().to_writer(&mut text)?;
    for (name, subcommand) in leaves(&command, "") {
        let mut section = Vec::new();
        let part = Man::new(with_aliases(subcommand));
        part.render_synopsis_section(&mut section)?;
        part.render_options_section(&mut section)?;
        text.extend(as_subsection(&name, &String::from_utf8_lossy(&section)).bytes());
    }
    rest().to_writer(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The command with the aliases of options in their help, since the generator of the page leaves
/// aliases out.
fn with_aliases(command: &clap::Command) -> clap::Command {
    command.clone().mut_args(|option| {
        let names = option.get_visible_aliases().unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| format!("--{name}")).collect();
        match option.get_help() {
            Some(help) if !names.is_empty() => {
                let help = format!("{help} (the same: {})", names.join(", "));
                option.help(help)
            }
            _ => option,
        }
    })
}

/// The commands without subcommands, by their full names.
fn leaves<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    let below = |c: &'a Command| {
        let name = format!("{name} {}", c.get_name()).trim_start().to_string();
        if c.has_subcommands() { leaves(c, &name) } else { vec![(name, c)] }
    };
    shown.flat_map(below).collect()
}

/// Turns the sections of a subcommand's own page into one section of the whole page, with
/// paragraphs as headings.
fn as_subsection(name: &str, page: &str) -> String {
    let mut text = format!(".SH \"USWAP {}\"\n", name.to_uppercase());
    for line in page.lines() {
        match line.strip_prefix(".SH ") {
            Some(heading) => text += &format!(".SS {heading}\n"),
            // Each part defines the apostrophe again.
            None if line.starts_with(".ie") || line.starts_with(".el") => {}
            None => text += &format!("{line}\n"),
        }
    }
    text
}

fn description() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(
        &mut page,
        &[
            "uswap keeps the anonymous memory of a program and of all its children within a budget, without kernel \
             swap and without any change to the program. Cold pages are compressed in memory, then written to a swap \
             file, and come back when they are touched.",
            "The programs are loaded with an agent (LD_PRELOAD), which hands their memory to an engine by \
             userfaultfd(2). While memory is not short nothing is registered, and faults are the kernel's own.",
        ],
    );
    page
}

fn rest() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["SWAP PLACES"]);
    let places = uswap_device::kinds::help::manual_entries("4 x the budget");
    let places: Vec<(&str, &str)> = places.iter().map(|(term, text)| (term.as_str(), text.as_str())).collect();
    entries(&mut page, &places);
    page.control("SH", ["COMPRESSION"]);
    let rules = "uswap compressor changes it while the run goes on; what is stored stays as it is. Pages that do not \
                 compress to three quarters of themselves go to a swap place as they are.";
    paragraphs(&mut page, &[&format!("{} {rules}", Compression::manual())]);
    page.control("SH", ["GROUPS"]);
    paragraphs(
        &mut page,
        &[
            "Groups have names like builds or builds/jobs; / is the run. Each process is in one group and its children begin \
             there. A limit holds for the anonymous memory of the processes in the group and in the groups below it, by \
             evicting their pages only; the compressed pool belongs to the run. PERCENT is of the nearest limit above. \
             Pages are charged to the process that has them: a process that is moved takes its pages along, also those \
             that are swapped out.",
        ],
    );
    page.control("SH", ["EXIT STATUS"]);
    paragraphs(&mut page, &["The command's own, 128+N when signal N ended it, and:"]);
    entries(
        &mut page,
        &[
            ("70", "The engine died; all programs of the run were killed."),
            ("71", "Swap space was exhausted and nothing could be freed; all programs of the run were killed."),
            ("72", "An internal rule was broken; all programs were killed before one could read wrong bytes."),
            (
                "125",
                "Refused: wrong usage, or something that is needed is missing. Nothing was started. Of uswap core and orders to a run: \
                 it was not done.",
            ),
            ("126", "The command was found but may not be executed."),
            ("127", "The command was not found."),
        ],
    );
    paragraphs(&mut page, &["uswap doctor: 0 if uswap run works here, else 1."]);
    page.control("SH", ["ENVIRONMENT"]);
    entries(
        &mut page,
        &[
            ("TMPDIR", "Where the swap file is made when --swap is not given; else /var/tmp."),
            ("LD_PRELOAD", "The agent is put in front of what is there already."),
            ("USWAP_NAME", "Set for the command: the name of the run."),
            ("USWAP_FAULT_POINTS", "For tests of uswap: makes the engine slow or breaks one of its rules."),
        ],
    );
    page.control("SH", ["FILES"]);
    entries(
        &mut page,
        &[
            (
                "$TMPDIR or /var/tmp",
                "The default swap file lives there without a name and vanishes with the run. It is sparse, and may grow to half of what is \
                 free on its disk when the run starts.",
            ),
            ("/dev/userfaultfd", "Gives userfaultfds to whoever may open it."),
            ("@uswap/UID/NAME", "The abstract Unix socket by which uswap status asks a run."),
        ],
    );
    page.control("SH", ["EXAMPLES"]);
    examples(&mut page);
    page.control("SH", ["NOTES"]);
    notes(&mut page);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("swapon"),
        roman("(8), "),
        bold("zramctl"),
        roman("(8), "),
        bold("userfaultfd"),
        roman("(2), "),
        bold("cgroups"),
        roman("(7), "),
        bold("ld.so"),
        roman("(8)"),
    ]);
    page
}

fn examples(page: &mut Roff) {
    entries(
        page,
        &[
            ("uswap run --ram 512M -- make -j8", "A build within 512 MiB."),
            (
                "uswap run --ram 2G --swap /data/swap,size=16G --name train -- python3 train.py",
                "With a swap file of its own and a name; then, elsewhere: uswap top train",
            ),
            (
                "uswap run --ram 1G --swap nbds://there/swap,timeout=10 -- ./program",
                "With the memory of another machine behind it.",
            ),
            ("uswap run -- ./server", "In a container: a budget in balance with the container's memory limit."),
            (
                "uswap group create build jobs --limit 40%; uswap group move build 4711 jobs",
                "The process 4711 of the run build, and the children it starts from now on, in two fifths of the budget.",
            ),
            (
                "uswap core build 4711 -o core.4711; gdb ./program core.4711",
                "The process 4711 of the run build as it is now, with what is evicted; it goes on.",
            ),
            ("uswap doctor", "What works here."),
            (
                "uswap lab record -o trace.gz --ram 64M -- make",
                "What the build touches, as far as 64 MiB do not hold it.",
            ),
            (
                "uswap lab replay trace.txt.gz --ram 10%,50% --svg curve.svg",
                "How eviction policies compare on a trace of page numbers.",
            ),
            ("uswap completions bash > /etc/bash_completion.d/uswap", "Install completions."),
        ],
    );
}

fn notes(page: &mut Roff) {
    paragraphs(
        page,
        &[
            "Required: Linux 6.11, x86-64, and CAP_SYS_PTRACE in the initial user namespace (fork events of \
             userfaultfd). In a container: docker run --cap-add SYS_PTRACE --device /dev/userfaultfd.",
            "The agent is brought to programs of 8 MiB and more that have not loaded it (static ones such as all Go \
             programs, cleared environments), by ptrace(2) of one thread for some hundred microseconds. Unmanaged \
             stay 32-bit programs, programs with seccomp filters of their own, and those that are traced or may not \
             be traced: their memory counts against the budget but cannot be evicted; the summary names them.",
            "Not managed: thread stacks, mappings below 256 KiB, locked, shared and file-backed memory, and processes \
             below 4 MiB.",
            "An evicted page cannot be read by ptrace(2) or /proc/PID/mem (EIO), is zero in core dumps and, without a word, for \
             gcore(1), gdb(1) -p and py-spy, and FUTEX_LOCK_PI and FUTEX_WAKE_OP on it answer EFAULT.",
            "The agent is a process of its own beside each program, uswap-agent in ps(1). Where it had to be made a \
             thread of its program, unshare(CLONE_NEWUSER) and setns to a user namespace fail in that program.",
            "uswap core writes what gcore(1) would, with evicted pages: the program's threads are stopped until it is written, no \
             page comes back for it, and the program goes on. The file is made beside its place under another name and renamed \
             when it is whole. What has MADV_DONTDUMP is left out, as are the agent and its memory; /proc/PID/coredump_filter \
             holds. The process id is as seen from where it is called, in the pid namespace of the run or above it.",
            "Runs are found by abstract Unix sockets, which belong to a network namespace: ask about a run in a \
             container from inside the container.",
        ],
    );
}

fn paragraphs(page: &mut Roff, texts: &[&str]) {
    for text in texts {
        page.control("PP", []);
        page.text([roman(*text)]);
    }
}

fn entries(page: &mut Roff, entries: &[(&str, &str)]) {
    for (term, text) in entries {
        page.control("TP", []);
        page.text([bold(*term)]);
        page.text([roman(*text)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// The registry of compressors is the source of the help and the man page.
    #[test]
    fn each_compressor_is_named() {
        let page = man_page().expect("a page").replace("\\-", "-");
        let command = Cli::command();
        let help = |name: &str| {
            let found =
                command.find_subcommand(name).expect("a command").get_arguments().find(|a| a.get_id() == "compressor");
            found.and_then(|argument| argument.get_help()).expect("its help").to_string()
        };
        for name in Compression::each().map(Compression::name) {
            assert!(help("run").contains(name) && help("attach").contains(name) && help("compressor").contains(name));
            assert!(page.matches(name).count() >= 4, "{name}: three options and the section");
        }
        assert!(help("run").starts_with("Compressor of the pool: lz4, "));
        assert!(help("run").contains("zstd[:LEVEL] with a level from 1 to 22 (smaller and slower)"));
        assert!(
            help("compressor").contains("zstd[:LEVEL] with a level from 1 to 22") && !help("compressor").contains('(')
        );
        let begin = "lz4, the default, is fast; zstd[:LEVEL], with a level from 1 to 22 (3 where none is given), \
                     makes pages smaller and takes two to three times as long at low levels";
        assert!(page.contains(begin) && page.contains(". uswap compressor changes it"));
    }

    #[test]
    fn the_page_has_all_sections_and_options() {
        let page = man_page().expect("a page");
        for word in [
            "NAME",
            "\"USWAP RUN\"",
            "\"USWAP DOCTOR\"",
            "\"USWAP LAB REPLAY\"",
            "\"USWAP LAB GENERATE\"",
            "\"USWAP GROUP LIMIT\"",
            "\"USWAP CORE\"",
            "\"EXIT STATUS\"",
            "FILES",
            "EXAMPLES",
            "NOTES",
            "\"SEE ALSO\"",
        ] {
            assert!(page.contains(&format!(".SH {word}")), "{word}");
        }
        assert!(page.contains("\\-\\-swap") && !page.contains("UNRELEASED"));
        assert_eq!(page.matches(".TH ").count(), 1);
    }
}
