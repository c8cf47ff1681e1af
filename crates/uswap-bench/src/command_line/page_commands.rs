//! The commands that take pages of programs and measure how well they compress: `sample`, `codecs`,
//! `units`; and the command that measures the tables per page: `own-memory`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use uswap_core::{PAGE_SIZE, PageBuf};

use crate::command_line::{BenchRefusal, failed, refused};
use crate::measure::sample;
use crate::studies::{codecs, own_memory, units};

/// `uswap-bench sample`.
#[derive(Args, Debug)]
pub struct SampleArguments {
    /// File for the pages
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Most pages taken
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pages: u32,
    /// Take so many neighbouring pages at a time, aligned
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    neighbours: u32,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

/// `uswap-bench codecs`.
#[derive(Args, Debug)]
pub struct CodecsArguments {
    /// A file of pages. May be repeated
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print only how long the pages become by this compressor, as `BYTES COUNT` for each 32 bytes
    #[arg(long, value_name = "COMPRESSOR")]
    sizes: Option<uswap_store::Compression>,
    /// File for the tables, as Markdown; they are printed in any case
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// `uswap-bench units`.
#[derive(Args, Debug)]
pub struct UnitsArguments {
    /// A file of pages taken with `sample --neighbours 4`. May be repeated
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// `uswap-bench own-memory`.
#[derive(Args, Debug)]
pub struct OwnMemoryArguments {
    /// Numbers of pages
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [16_384, 262_144, 1_048_576],
          value_parser = clap::value_parser!(u64).range(1024..=1 << 26))]
    pages: Vec<u64>,
}

pub(crate) fn own_memory(arguments: &OwnMemoryArguments) -> Result<i32, BenchRefusal> {
    print!("{}", own_memory::tables(&arguments.pages));
    Ok(0)
}

pub(crate) fn sample_pages(arguments: &SampleArguments) -> Result<i32, BenchRefusal> {
    let mut file = File::create(&arguments.out).map_err(|error| failed(&arguments.out, &error))?;
    let here = std::env::current_dir().map_err(|error| failed(Path::new("."), &error))?;
    let most = arguments.pages as usize;
    let sample = sample::take(&arguments.command, &here, most, arguments.neighbours as usize).map_err(refused)?;
    file.write_all(sample.pages.as_flattened()).map_err(|error| failed(&arguments.out, &error))?;
    let [seen, filled] = sample.seen;
    println!("{} of {seen} pages seen; {filled} more were one word repeated", sample.pages.len());
    Ok(0)
}

/// Calls `see` with the name and the pages of each file, and joins the results.
fn each(files: &[PathBuf], mut see: impl FnMut(&str, &[PageBuf]) -> String) -> Result<String, BenchRefusal> {
    let mut text = String::new();
    for path in files {
        let bytes = fs::read(path).map_err(|error| failed(path, &error))?;
        let pages = bytes.as_chunks::<PAGE_SIZE>().0;
        if pages.is_empty() {
            return Err(refused(format!("{} holds no page", path.display())));
        }
        let name = path.file_stem().map(|name| name.to_string_lossy()).unwrap_or_default();
        text += &see(&name, pages);
    }
    Ok(text)
}

pub(crate) fn only_codecs(arguments: &CodecsArguments) -> Result<i32, BenchRefusal> {
    let text = each(&arguments.files, |name, pages| {
        if let Some(compression) = arguments.sizes {
            return codecs::distribution(pages, compression);
        }
        let tables = [codecs::compressors(pages), codecs::allocators(pages)];
        format!(
            "## {name}, {} pages\n{}\nStored bytes over compressed bytes:\n\n{}\n",
            pages.len(),
            tables[0],
            tables[1]
        )
    })?;
    print!("{text}");
    if let Some(path) = &arguments.out {
        fs::write(path, &text).map_err(|error| failed(path, &error))?;
    }
    Ok(0)
}

pub(crate) fn only_units(arguments: &UnitsArguments) -> Result<i32, BenchRefusal> {
    print!("{}", each(&arguments.files, units::table)?);
    Ok(0)
}
