//! The share of the processors' time that is idle.

use std::time::{Duration, Instant};

use uswap_sys::{process, procfs};

/// Measures it between two looks.
#[derive(Clone, Copy, Debug)]
pub struct IdleShare {
    looked: Instant,
    /// Idle time of all processors together until then.
    idle: Duration,
}

impl Default for IdleShare {
    fn default() -> Self {
        Self { looked: Instant::now(), idle: idle_time() }
    }
}

impl IdleShare {
    /// The idle share, from 0 to 1, of the time since the last look.
    pub fn look(&mut self) -> f64 {
        let before = std::mem::take(self);
        let passed = before.looked.elapsed().as_secs_f64() * process::processors() as f64;
        (self.idle.saturating_sub(before.idle).as_secs_f64() / passed.max(1e-6)).clamp(0.0, 1.0)
    }
}

/// Where it cannot be read, processors never seem idle.
fn idle_time() -> Duration {
    procfs::idle_time().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_share() {
        let mut idle = IdleShare::default();
        std::thread::sleep(Duration::from_millis(30));
        let share = idle.look();
        assert!((0.0..=1.0).contains(&share), "{share}");
        assert!(idle.idle >= Duration::from_millis(10), "{idle:?}");
    }
}
