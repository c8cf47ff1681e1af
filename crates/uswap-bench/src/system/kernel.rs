//! Kernel swap for one run: a swap file, zram, or zswap in front of a file. Each is a guard: on
//! drop it restores what it changed, also after an error, an interruption or a panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::measure::proc_text::{ZramUse, parse_mm_stat, swaps};

const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZRAM: &str = "/sys/class/zram-control";
/// Compressors that are tried with zswap; the kernel accepts those that it has.
const COMPRESSORS: [&str; 7] = ["lzo", "lzo-rle", "lz4", "lz4hc", "zstd", "deflate", "842"];

/// Runs a tool of util-linux, which may not be in a user's PATH.
fn tool(name: &str, arguments: &[&str]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let program = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists());
    let program = program.ok_or_else(|| format!("{name} is not installed (package util-linux)"))?;
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|error| format!("{value:?} to {}: {error}", path.display()))
}

/// An active swap area.
#[derive(Debug)]
struct SwapOn(PathBuf);

impl SwapOn {
    fn new(area: &Path) -> Result<Self, String> {
        let text = area.display().to_string();
        tool("mkswap", &[&text])?;
        // The priority makes the kernel use it before any other area.
        tool("swapon", &["--priority", "32767", &text])?;
        Ok(Self(area.to_path_buf()))
    }

    fn used(&self) -> u64 {
        let name = self.0.display().to_string();
        swaps().iter().find(|(area, _)| *area == name).map_or(0, |(_, used)| *used)
    }
}

impl Drop for SwapOn {
    fn drop(&mut self) {
        if let Err(error) = tool("swapoff", &[&self.0.display().to_string()]) {
            eprintln!("uswap-bench: {error}");
        }
    }
}

/// A file that is a swap area.
#[derive(Debug)]
struct BenchSwapFile {
    on: Option<SwapOn>,
    path: PathBuf,
}

impl BenchSwapFile {
    fn new(folder: &Path, bytes: u64) -> Result<Self, String> {
        let path = folder.join(format!("{}{}.swap", crate::measure::cgroup::PREFIX, std::process::id()));
        let mut file = Self { on: None, path };
        // The file is allocated from end to end, because a swap file may have no holes; without
        // writing, where the file system supports that.
        let text = file.path.display().to_string();
        if tool("fallocate", &["-l", &bytes.to_string(), &text]).is_err() {
            let blocks = format!("count={}", bytes.div_ceil(1 << 20));
            tool("dd", &["if=/dev/zero", &format!("of={text}"), "bs=1M", &blocks])?;
        }
        tool("chmod", &["600", &text])?;
        file.on = Some(SwapOn::new(&file.path)?);
        Ok(file)
    }
}

impl Drop for BenchSwapFile {
    fn drop(&mut self) {
        self.on = None;
        let _ = fs::remove_file(&self.path);
    }
}

/// A zram device of this tool, used as swap.
#[derive(Debug)]
struct Zram {
    on: Option<SwapOn>,
    number: u32,
}

impl Zram {
    fn new(algorithm: &str, bytes: u64) -> Result<Self, String> {
        let control = Path::new(ZRAM);
        if !control.exists() {
            let _ = tool("modprobe", &["zram"]);
        }
        let number = fs::read_to_string(control.join("hot_add")).map_err(|error| format!("no zram device: {error}"))?;
        let number = number.trim().parse().map_err(|_| format!("zram says {number:?}"))?;
        let mut zram = Self { on: None, number };
        let folder = zram.folder();
        write(&folder.join("comp_algorithm"), algorithm)
            .map_err(|_| format!("this kernel's zram has no {algorithm}: {}", zram_algorithms().join(" ")))?;
        write(&folder.join("disksize"), &bytes.to_string())?;
        zram.on = Some(SwapOn::new(Path::new(&format!("/dev/zram{number}")))?);
        Ok(zram)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}", self.number))
    }

    fn usage(&self) -> ZramUse {
        let text = fs::read_to_string(self.folder().join("mm_stat")).unwrap_or_default();
        parse_mm_stat(&text).unwrap_or_default()
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        self.on = None;
        // udev may still have the device open for a moment.
        let removed = (0..100).any(|_| {
            let _ = write(&self.folder().join("reset"), "1");
            let gone = write(&Path::new(ZRAM).join("hot_remove"), &self.number.to_string()).is_ok();
            if !gone {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            gone
        });
        if !removed {
            eprintln!("uswap-bench: /dev/zram{} could not be removed", self.number);
        }
    }
}

/// zswap's previous parameters, restored on drop.
#[derive(Debug)]
struct Zswap {
    before: Vec<(&'static str, String)>,
}

impl Zswap {
    /// Switches zswap on with this compressor, or off; does nothing where the kernel has no zswap
    /// and none is wanted.
    fn set(compressor: Option<&str>) -> Result<Self, String> {
        let folder = Path::new(ZSWAP);
        if !folder.exists() {
            return match compressor {
                None => Ok(Self { before: Vec::new() }),
                Some(_) => Err("this kernel has no zswap".into()),
            };
        }
        let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_string();
        // The compressor is set first, while zswap is still on: then the kernel reports whether it
        // accepts it.
        let guard = Self { before: vec![("compressor", read("compressor")), ("enabled", read("enabled"))] };
        let Some(compressor) = compressor else {
            write(&folder.join("enabled"), "N")?;
            return Ok(guard);
        };
        write(&folder.join("enabled"), "Y")?;
        write(&folder.join("compressor"), compressor)
            .map_err(|_| format!("this kernel's zswap has no compressor {compressor}"))?;
        match read("compressor") {
            now if now == compressor => Ok(guard),
            now => Err(format!("zswap takes {now} instead of {compressor}")),
        }
    }
}

impl Drop for Zswap {
    fn drop(&mut self) {
        for (name, value) in &self.before {
            if let Err(error) = write(&Path::new(ZSWAP).join(name), value) {
                eprintln!("uswap-bench: {error}");
            }
        }
    }
}

/// The swap area that holds the pages.
#[derive(Debug)]
enum SwapArea {
    File(BenchSwapFile),
    Zram(Zram),
}

/// Active kernel swap. The area is switched off before zswap is restored.
#[derive(Debug)]
pub struct KernelSwap {
    area: SwapArea,
    _zswap: Zswap,
}

/// The kind of kernel swap to set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapPlan {
    /// A swap file alone.
    SwapFile,
    /// A swap file with zswap and this compressor in front.
    Zswap(String),
    /// A zram device with this algorithm.
    Zram(String),
}

impl KernelSwap {
    /// Sets up swap of this many bytes; a swap file is made in `folder`.
    ///
    /// # Errors
    /// A sentence about the first step that failed; all steps before it are undone.
    pub fn new(plan: &SwapPlan, folder: &Path, bytes: u64) -> Result<Self, String> {
        let compressor = if let SwapPlan::Zswap(compressor) = plan { Some(compressor.as_str()) } else { None };
        let zswap = Zswap::set(compressor)?;
        let area = match plan {
            SwapPlan::Zram(algorithm) => SwapArea::Zram(Zram::new(algorithm, bytes)?),
            _ => SwapArea::File(BenchSwapFile::new(folder, bytes)?),
        };
        Ok(Self { area, _zswap: zswap })
    }

    /// Bytes of the area that are in use.
    pub fn used(&self) -> u64 {
        let on = match &self.area {
            SwapArea::File(file) => &file.on,
            SwapArea::Zram(zram) => &zram.on,
        };
        on.as_ref().map_or(0, SwapOn::used)
    }

    /// The figures of the zram device, if there is one.
    pub fn zram(&self) -> Option<ZramUse> {
        if let SwapArea::Zram(zram) = &self.area { Some(zram.usage()) } else { None }
    }
}

/// The compressors that this kernel's zswap accepts; the query switches zswap on for a moment.
pub fn zswap_compressors() -> Vec<&'static str> {
    let has = |name: &&str| Zswap::set(Some(name)).is_ok();
    COMPRESSORS.into_iter().filter(has).collect()
}

/// The compressor that zswap currently uses.
pub fn zswap_default() -> String {
    let set = fs::read_to_string(Path::new(ZSWAP).join("compressor")).unwrap_or_default();
    if set.trim().is_empty() { "lzo".into() } else { set.trim().into() }
}

/// The algorithms of this kernel's zram, read from a new device.
pub fn zram_algorithms() -> Vec<String> {
    let told = fs::read_dir("/sys/block").into_iter().flatten().flatten().find_map(|entry| {
        let is_zram = entry.file_name().to_string_lossy().starts_with("zram");
        is_zram.then(|| fs::read_to_string(entry.path().join("comp_algorithm")).ok())?
    });
    let text = told.unwrap_or_default();
    text.split_whitespace().map(|name| name.trim_matches(['[', ']']).to_string()).collect()
}
