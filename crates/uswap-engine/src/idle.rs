//! Which part of the time the machine's processors were idle, from /proc/stat.

use std::fs::File;
use std::io::Read;

/// Fields of the line `cpu` (proc_stat(5)): time idle, and idle while a transfer is waited for.
const IDLE: [usize; 2] = [3, 4];
/// Fields that add up to all time; the later ones are contained in the first.
const FIELDS: usize = 8;

/// What was read last.
#[derive(Debug, Default)]
pub struct Idle {
    before: Option<[u64; 2]>,
}

impl Idle {
    /// The idle part, 0 to 1, of the time since the last call. 1 where it is not known.
    pub fn part(&mut self) -> f64 {
        // The line is the first.
        let mut text = [0; 256];
        let length = File::open("/proc/stat").and_then(|mut file| file.read(&mut text)).unwrap_or(0);
        let now = std::str::from_utf8(&text[..length]).ok().and_then(times);
        let before = std::mem::replace(&mut self.before, now);
        let (Some([idle, all]), Some([idle_before, all_before])) = (now, before) else { return 1.0 };
        match all.saturating_sub(all_before) {
            0 => 1.0,
            passed => (idle.saturating_sub(idle_before) as f64 / passed as f64).min(1.0),
        }
    }
}

/// Idle time and all time.
fn times(text: &str) -> Option<[u64; 2]> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let mut times = [0; FIELDS];
    let mut fields = line.split_ascii_whitespace();
    for time in &mut times {
        *time = fields.next()?.parse().ok()?;
    }
    Some([IDLE.map(|field| times[field]).iter().sum(), times.iter().sum()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_guests_count_once() {
        assert_eq!(times("cpu  100 1 50 800 40 2 3 4 99 1\ncpu0 1 2\n"), Some([840, 1000]));
        assert_eq!(times("cpu  100 1"), None);
        assert_eq!(times("cpu0 1 1 1 1 1 1 1 1\n"), None);
    }

    #[test]
    fn a_part_is_between_none_and_all() {
        let mut idle = Idle::default();
        assert_eq!(idle.part(), 1.0, "nothing to compare with");
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!((0.0..=1.0).contains(&idle.part()));
    }
}
