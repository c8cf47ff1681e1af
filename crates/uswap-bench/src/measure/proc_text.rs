//! Parsers of the kernel's text files: vmstat, memory.stat, diskstats, meminfo, swaps, mm_stat of
//! zram.

use std::fs;

/// The number after a name, in lines of `name value`; a colon after the name is ignored.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        (first.trim_end_matches(':') == name).then(|| words.next()?.parse().ok())?
    })
}

/// Traffic of the machine since it was booted. Pages have 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Pages read from swap devices.
    pub pswpin: u64,
    /// Pages written to swap devices.
    pub pswpout: u64,
    /// Pages loaded from zswap.
    pub zswpin: u64,
    /// Pages stored into zswap.
    pub zswpout: u64,
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks.
    pub written_bytes: u64,
}

impl Traffic {
    /// The traffic up to now.
    pub fn now() -> Self {
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        Self::parse(&vmstat, &fs::read_to_string("/proc/diskstats").unwrap_or_default())
    }

    fn parse(vmstat: &str, diskstats: &str) -> Self {
        let get = |name| field(vmstat, name).unwrap_or(0);
        let (read_bytes, written_bytes) = disk_bytes(diskstats);
        let (zswpin, zswpout) = (get("zswpin"), get("zswpout"));
        Self { pswpin: get("pswpin"), pswpout: get("pswpout"), zswpin, zswpout, read_bytes, written_bytes }
    }

    /// The traffic between `before` and `self`.
    pub fn since(self, before: Self) -> Self {
        Self {
            pswpin: self.pswpin.saturating_sub(before.pswpin),
            pswpout: self.pswpout.saturating_sub(before.pswpout),
            zswpin: self.zswpin.saturating_sub(before.zswpin),
            zswpout: self.zswpout.saturating_sub(before.zswpout),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

/// Bytes read and written by whole disks: partitions would count twice, and devices in memory are
/// no disks.
fn disk_bytes(diskstats: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in diskstats.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let sectors = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        if words.get(2).is_some_and(|name| is_disk(name)) {
            sums.0 += sectors(5) * 512;
            sums.1 += sectors(9) * 512;
        }
    }
    sums
}

fn is_disk(name: &str) -> bool {
    let partition = match name.strip_prefix("nvme") {
        Some(rest) => rest.contains('p'),
        None => name.ends_with(|c: char| c.is_ascii_digit()),
    };
    !partition && !["loop", "ram", "zram", "sr", "dm-", "md"].iter().any(|kind| name.starts_with(kind))
}

/// The memory use of one zram device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZramUse {
    /// Bytes of stored pages before compression.
    pub original: u64,
    /// The same after compression.
    pub compressed: u64,
    /// The most memory that the device ever used.
    pub memory_peak: u64,
}

/// Reads `mm_stat` of a zram device.
pub fn parse_mm_stat(text: &str) -> Option<ZramUse> {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(ZramUse { original: *numbers.first()?, compressed: *numbers.get(1)?, memory_peak: *numbers.get(4)? })
}

/// Bytes that zswap holds: before and after compression.
pub fn zswap_use() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name| field(&text, name).unwrap_or(0) << 10;
    (kib("Zswapped"), kib("Zswap"))
}

/// Names of the active swap areas, and the used bytes of each.
pub fn parse_swaps(text: &str) -> Vec<(String, u64)> {
    let area = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(((*words.first()?).to_string(), words.get(3)?.parse::<u64>().ok()? << 10))
    };
    text.lines().skip(1).filter_map(area).collect()
}

/// The active swap areas of this machine.
pub fn swaps() -> Vec<(String, u64)> {
    parse_swaps(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "pgmajfault_x 1\npgmajfault 7\nZswap:   12 kB\nodd\n";
        assert_eq!(field(text, "pgmajfault"), Some(7));
        assert_eq!(field(text, "Zswap"), Some(12));
        assert_eq!(field(text, "odd"), None);
        assert_eq!(field(text, "missing"), None);
    }

    #[test]
    fn only_whole_disks_count() {
        let disks = " 254 0 vda 10 0 100 1 20 0 200 1 0 1 1\n 254 1 vda1 10 0 100 1 20 0 200 1\n\
                     252 0 zram0 9 0 900 1 9 0 900\n 259 0 nvme0n1 1 0 8 1 1 0 16 1\n 259 1 nvme0n1p1 1 0 8 1 1 0 16 1\n";
        let traffic = Traffic::parse("pswpin 3\npswpout 4\n", disks);
        assert_eq!((traffic.read_bytes, traffic.written_bytes), (108 * 512, 216 * 512));
        assert_eq!((traffic.pswpin, traffic.pswpout, traffic.zswpin), (3, 4, 0));
        assert_eq!(Traffic::default().since(traffic), Traffic::default());
    }

    #[test]
    fn zram_and_swaps_are_read_and_nonsense_is_not() {
        let told = parse_mm_stat("  4096000 1024000 1200000 0 1300000 7 0 0 0\n").unwrap();
        assert_eq!(told, ZramUse { original: 4_096_000, compressed: 1_024_000, memory_peak: 1_300_000 });
        assert_eq!(parse_mm_stat("12 nonsense"), None);
        let swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 1048572 2048 100\nbroken\n";
        assert_eq!(parse_swaps(swaps), [("/dev/zram0".to_string(), 2048 << 10)]);
        assert!(parse_swaps("").is_empty());
    }
}
