//! The memory cgroup of a process: its limit, and the balance between anonymous memory and file
//! pages under the limit.
//!
//! In a container the limit covers everything: anonymous memory, the page cache of programs and
//! libraries, kernel memory. Usage is always at the limit, because the page cache fills all that is
//! left, so usage gives no information. The number of dropped file pages that are read again does
//! (`workingset_refault_file`): while it grows, the files need more room, and the anonymous budget
//! shrinks; while it does not, the budget grows back. Room that files do not use is lent to
//! anonymous memory, but not while a crowd of processes grows unseen, since it is then what keeps
//! the group below its limit. Files get more than half only while hardly any anonymous page comes
//! back beside them: a linker reads its inputs again and again while most of what it has allocated
//! lies idle.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Least room of file pages; in small cgroups they begin with this.
const MIN_FILE: u64 = 8 << 20;
/// Room that files keep beyond their present size, up to what is theirs. The rest is lent.
const FILE_GROWTH: u64 = 2 << 20;
/// Bytes by which the loan grows in a period.
const LOAN_STEP: u64 = 512 << 10;
/// Anonymous memory keeps an eighth of the limit at least. In small cgroups it keeps this, or a
/// quarter of the limit if that is less.
const MIN_ANONYMOUS: u64 = 48 << 20;
/// Margin that stays unused, for sudden growth of page tables, stacks and sockets.
const SAFETY: u64 = 6 << 20;
/// How often the balance is adjusted.
const PERIOD: Duration = Duration::from_millis(50);
/// File refaults in a period that call for more room (4 MiB per 50 ms).
const MANY_REFAULTS: u64 = 1000;
/// A fault on an anonymous page costs as much as reading this many file pages, which are read many
/// at a time.
const FAULT_IN_FILE_PAGES: u64 = 32;

/// A memory cgroup of version 1 or 2.
#[derive(Clone, Debug)]
pub struct Cgroup {
    directory: PathBuf,
    unified: bool,
    limit: u64,
}

impl Cgroup {
    /// The memory cgroup that limits this process: of its own and all visible ancestors the one
    /// with the lowest limit, if that is below the machine's memory.
    pub fn of_this_process() -> Option<Self> {
        Self::of_process(std::process::id())
    }

    /// The same for any process.
    pub fn of_process(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let machine = machine_memory()?;
        let candidates = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let unified = controllers.is_empty();
            let is_memory = controllers.split(',').any(|controller| controller == "memory");
            let root = mount_point(unified)?;
            (unified || is_memory).then(|| (root, path.trim_start_matches('/').to_string(), unified))
        });
        candidates.filter_map(|(root, path, unified)| Self::tightest(root, &path, unified)).find(|c| c.limit < machine)
    }

    fn tightest(root: &Path, path: &str, unified: bool) -> Option<Self> {
        // In a container with a cgroup namespace the path is that of the host or "/". If it does
        // not exist below the mount, the root of the mount is used.
        let own = if root.join(path).exists() { root.join(path) } else { root.to_path_buf() };
        // Above memory.high no process is killed, but each that allocates is put to sleep, up to
        // two seconds at a time.
        let files: &[&str] = if unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let levels = own.ancestors().take_while(|directory| directory.starts_with(root));
        let limits = levels.filter_map(|directory| {
            let read = |file: &&str| fs::read_to_string(directory.join(file)).ok()?.trim().parse::<u64>().ok();
            let limit = files.iter().filter_map(read).min()?;
            Some(Self { directory: directory.to_path_buf(), unified, limit })
        });
        limits.min_by_key(|cgroup| cgroup.limit)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// 1 or 2.
    pub fn version(&self) -> u32 {
        if self.unified { 2 } else { 1 }
    }

    /// Bytes in use, file pages included.
    pub fn usage(&self) -> Option<u64> {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// Bytes that can still be taken: unused ones, and those of file pages, which the kernel can
    /// drop.
    pub fn room(&self) -> Option<u64> {
        let stat = self.stat()?;
        let file = stat.file.saturating_sub(stat.shmem);
        Some(self.limit.saturating_sub(self.usage()?) + file)
    }

    /// Bytes of shared memory, tmpfs included.
    pub fn shared_memory(&self) -> Option<u64> {
        self.stat().map(|stat| stat.shmem)
    }

    /// Figures of memory.stat.
    fn stat(&self) -> Option<CgroupStat> {
        let text = fs::read_to_string(self.directory.join("memory.stat")).ok()?;
        let get = |names: [&str; 2]| {
            let name = if self.unified { names[1] } else { names[0] };
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok()).unwrap_or(0)
        };
        Some(CgroupStat {
            anonymous: get(["total_rss", "anon"]),
            file: get(["total_cache", "file"]),
            shmem: get(["total_shmem", "shmem"]),
            refaults: get(["total_workingset_refault_file", "workingset_refault_file"]),
        })
    }
}

struct CgroupStat {
    anonymous: u64,
    file: u64,
    shmem: u64,
    refaults: u64,
}

/// Total memory of the machine in bytes, as it was when it was first asked for.
pub fn machine_memory() -> Option<u64> {
    static TOTAL: OnceLock<Option<u64>> = OnceLock::new();
    *TOTAL.get_or_init(|| meminfo("MemTotal:"))
}

/// Memory that the machine could still give, in bytes.
pub fn free_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Shared memory of the whole machine in bytes, tmpfs included.
pub fn shared_memory_of_machine() -> Option<u64> {
    meminfo("Shmem:")
}

fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The budget in bytes where no cgroup limits the run. `machine`: bytes of the machine's memory.
pub fn without_cgroup(machine: u64) -> u64 {
    machine / 10 * 8
}

/// Mount point of the memory cgroups, of version 2 if `unified`, else of version 1. It is read
/// once: an engine has the value that its keeper read.
fn mount_point(unified: bool) -> Option<&'static Path> {
    static POINTS: OnceLock<[Option<PathBuf>; 2]> = OnceLock::new();
    let points = POINTS.get_or_init(|| {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        [false, true].map(|unified| mount_point_in(&mounts, unified))
    });
    points[usize::from(unified)].as_deref()
}

fn mount_point_in(mounts: &str, unified: bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, point, kind, options, ..] = fields[..] else { return None };
        let fits = if unified {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        };
        fits.then(|| PathBuf::from(point))
    })
}

/// Steers the anonymous budget under a cgroup's limit.
#[derive(Debug)]
pub struct Balance {
    cgroup: Cgroup,
    file_room: u64,
    /// The part of `file_room` that is lent to anonymous memory.
    lent: u64,
    refaults: u64,
    anonymous_faults: u64,
    looked: Instant,
}

impl Balance {
    /// A balance in which files begin with a thirty-second of the limit: if they need more, that
    /// shows within 50 ms.
    pub fn new(cgroup: Cgroup) -> Self {
        let refaults = cgroup.stat().map_or(0, |stat| stat.refaults);
        let file_room = (cgroup.limit / 32).max(MIN_FILE);
        Self { cgroup, file_room, lent: 0, refaults, anonymous_faults: 0, looked: Instant::now() }
    }

    /// The budget to begin with, in bytes.
    pub fn initial_limit(&self) -> u64 {
        let fixed = self.file_room + SAFETY + self.kernel_bytes();
        self.cgroup.limit.saturating_sub(fixed).max(self.cgroup.limit / 4)
    }

    /// Bytes that anonymous memory, the engine's included, keeps however much room files need.
    fn least_anonymous(&self) -> u64 {
        (self.cgroup.limit / 8).max(MIN_ANONYMOUS).min(self.cgroup.limit / 4)
    }

    fn kernel_bytes(&self) -> u64 {
        let (Some(usage), Some(stat)) = (self.cgroup.usage(), self.cgroup.stat()) else { return 0 };
        usage.saturating_sub(stat.anonymous + stat.file) + stat.shmem
    }

    /// The new budget in bytes. `pages`: pages of the tree and the engine by the engine's own
    /// count; `anonymous_faults`: number of faults since the run began that were served from the
    /// pool or a device; `calm`: whether no crowd has grown unseen lately. To be called often:
    /// memory of processes that the governor does not know yet shows in the cgroup's usage at once.
    pub fn steer(&mut self, pages: i64, anonymous_faults: u64, calm: bool) -> Option<u64> {
        let (usage, stat) = (self.cgroup.usage()?, self.cgroup.stat()?);
        let files = stat.file.saturating_sub(stat.shmem);
        let is_due = self.looked.elapsed() >= PERIOD;
        if is_due {
            self.looked = Instant::now();
            self.make_room_for_files(stat.refaults, anonymous_faults);
        }
        self.lend(if is_due { LOAN_STEP } else { 0 }, files, calm);
        // Memory that is neither file pages nor in the engine's own count: kernel memory, and
        // processes outside the tree.
        let ours = (pages.max(0) as u64) << 12;
        let others = usage.saturating_sub(files + ours);
        let fixed = self.file_room - self.lent + SAFETY + others;
        Some(self.cgroup.limit.saturating_sub(fixed).max(self.least_anonymous()))
    }

    /// Lends `more` bytes, as far as `files`, the bytes of file pages, leave them unused, and takes
    /// back what they need by now. Where a crowd grows unseen it takes back all.
    fn lend(&mut self, more: u64, files: u64, calm: bool) {
        let unused = self.file_room.saturating_sub(files + FILE_GROWTH);
        self.lent = if calm { (self.lent + more).min(unused) } else { 0 };
    }

    /// Gives files more room while dropped file pages are read again, and takes some back when none
    /// are. Above a half of the limit files get room only while their refaults cost more than the
    /// faults on anonymous pages.
    fn make_room_for_files(&mut self, refaults: u64, anonymous_faults: u64) {
        let refaulted = refaults.saturating_sub(self.refaults);
        let faulted = anonymous_faults.saturating_sub(self.anonymous_faults);
        (self.refaults, self.anonymous_faults) = (refaults, anonymous_faults);
        let (half, most) = (self.cgroup.limit / 2, self.cgroup.limit - self.least_anonymous());
        let files_suffer = refaulted > faulted * FAULT_IN_FILE_PAGES;
        let more = self.file_room + self.file_room / 8;
        if refaulted > MANY_REFAULTS && (files_suffer || self.file_room <= half) {
            self.file_room = more.min(if files_suffer { most } else { half });
        } else if refaulted == 0 || (self.file_room > half && !files_suffer) {
            self.file_room = (self.file_room - self.file_room / 64).max(MIN_FILE.min(half));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with files like those of a cgroup hierarchy.
    struct Pretended(PathBuf);

    impl Pretended {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("uswap-cgroup-{name}-{}", std::process::id()));
            for (file, text) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            Self(folder)
        }
    }

    impl Drop for Pretended {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_of_max_and_high_of_all_levels_counts() {
        let files = [
            ("a/memory.max", "max\n"),
            ("a/memory.high", "300000000\n"),
            ("a/b/memory.max", "200000000\n"),
            ("a/b/memory.high", "max\n"),
            ("a/b/c/memory.max", "max\n"),
            ("a/b/c/memory.high", "max\n"),
            ("d/memory.max", "500000000\n"),
            ("d/memory.high", "400000000\n"),
            ("e/memory.max", "max\n"),
            ("e/memory.high", "max\n"),
        ];
        let root = Pretended::new("levels", &files);
        let limit = |path: &str| Cgroup::tightest(&root.0, path, true).map(|cgroup| (cgroup.limit(), cgroup.version()));
        assert_eq!(limit("a"), Some((300_000_000, 2)));
        assert_eq!(limit("a/b/c"), Some((200_000_000, 2)));
        assert_eq!(limit("d"), Some((400_000_000, 2)));
        assert_eq!(limit("e"), None);
    }

    #[test]
    fn figures_of_both_versions_are_read() {
        let v2 = "anon 100\nfile 50\nkernel 7\nshmem 20\nworkingset_refault_anon 9\nworkingset_refault_file 3\n";
        let v1 = "cache 1\nrss 2\ntotal_cache 50\ntotal_rss 100\ntotal_shmem 20\ntotal_workingset_refault_file 3\n";
        let files = [
            ("v2/memory.max", "1000\n"),
            ("v2/memory.current", "157\n"),
            ("v2/memory.stat", v2),
            ("v1/memory.limit_in_bytes", "1000\n"),
            ("v1/memory.usage_in_bytes", "157\n"),
            ("v1/memory.stat", v1),
        ];
        let root = Pretended::new("figures", &files);
        for (path, unified) in [("v2", true), ("v1", false)] {
            let cgroup = Cgroup::tightest(&root.0, path, unified).expect("a limit");
            let stat = cgroup.stat().expect("figures");
            assert_eq!((cgroup.limit(), cgroup.usage()), (1000, Some(157)), "{path}");
            assert_eq!((stat.anonymous, stat.file, stat.shmem, stat.refaults), (100, 50, 20, 3), "{path}");
        }
    }

    const MIB: u64 = 1 << 20;

    fn balance(limit: u64) -> Balance {
        let cgroup = Cgroup { directory: PathBuf::from("/nowhere"), unified: false, limit };
        Balance { cgroup, file_room: MIN_FILE, lent: 0, refaults: 0, anonymous_faults: 0, looked: Instant::now() }
    }

    /// Simulates a hundred periods with these refaults and faults. Returns the room of files after
    /// them.
    fn settles(balance: &mut Balance, refaults: u64, faults: u64) -> u64 {
        for _ in 0..100 {
            let (refaults, faults) = (balance.refaults + refaults, balance.anonymous_faults + faults);
            balance.make_room_for_files(refaults, faults);
        }
        balance.file_room
    }

    /// The case of a linker: its anonymous memory lies idle, and its inputs do not fit into half of
    /// the limit.
    #[test]
    fn files_get_more_than_half_only_while_hardly_an_anonymous_page_comes_back() {
        let mut balance = balance(282 * MIB);
        assert_eq!(settles(&mut balance, 10_000, 10), (282 - 48) * MIB);
        let half = settles(&mut balance, 10_000, 5000);
        assert!((282 * MIB / 2 - 4 * MIB..=282 * MIB / 2).contains(&half), "{half}: both suffer");
        assert_eq!(settles(&mut balance, 10_000, 5000), half, "which is where it stays");
        assert!(settles(&mut balance, 0, 0) < half / 3, "nobody reads files again");
        (0..5).for_each(|_| _ = settles(&mut balance, 0, 0));
        assert_eq!(balance.file_room, MIN_FILE);
    }

    #[test]
    fn anonymous_memory_keeps_an_eighth_and_in_small_groups_a_quarter() {
        for (limit, least) in [(64, 16), (192, 48), (256, 48), (1024, 128)] {
            let mut balance = balance(limit * MIB);
            assert_eq!(settles(&mut balance, 10_000, 0), (limit - least) * MIB, "{limit} MiB");
        }
    }

    /// Room that files do not use is lent step by step, and given back at once.
    #[test]
    fn room_that_files_do_not_use_is_lent() {
        let mut balance = balance(256 * MIB);
        let mut after = |steps: u64, files: u64, calm| {
            balance.lend(steps * LOAN_STEP, files, calm);
            balance.lent
        };
        assert_eq!(after(2, MIB, true), MIB, "two steps");
        assert_eq!(after(100, MIB, true), MIN_FILE - 3 * MIB, "all that files do not use");
        assert_eq!(after(0, 5 * MIB, true), MIB, "files have grown");
        assert_eq!(after(1, 20 * MIB, true), 0, "files have more than their room");
        assert_eq!(after(4, MIB, true), 2 * MIB);
        assert_eq!(after(1, MIB, false), 0, "a crowd grows unseen");
    }
}
