//! Random numbers and the zipf distribution.

use crate::content::mix;

/// A sequence of random numbers; the same seed gives the same sequence.
#[derive(Debug)]
pub struct SequenceRandom(u64);

impl SequenceRandom {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Random numbers from 1 to n, where k has a probability proportional to k^-s, by
/// rejection-inversion (Hörmann and Derflinger 1996): no table, constant time.
#[derive(Debug)]
pub struct ZipfSequence {
    n: f64,
    s: f64,
    integral_at_first: f64,
    integral_at_last: f64,
    shortcut: f64,
}

impl ZipfSequence {
    /// The distribution over `n` numbers with exponent `s`, which is not 1.
    pub fn new(n: u64, s: f64) -> Self {
        let mut zipf = Self { n: n as f64, s, integral_at_first: 0.0, integral_at_last: 0.0, shortcut: 0.0 };
        zipf.integral_at_first = zipf.integral(1.5) - 1.0;
        zipf.integral_at_last = zipf.integral(zipf.n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-s));
        zipf
    }

    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.s) - 1.0) / (1.0 - self.s)
    }

    fn inverse(&self, y: f64) -> f64 {
        (1.0 + y * (1.0 - self.s)).max(0.0).powf(1.0 / (1.0 - self.s))
    }

    /// The next number.
    pub fn sample(&self, random: &mut SequenceRandom) -> u64 {
        loop {
            let u = self.integral_at_last + random.unit() * (self.integral_at_first - self.integral_at_last);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - k.powf(-self.s) {
                return k as u64;
            }
        }
    }
}

/// Maps ranks one to one to the numbers below `n`, so that the most frequent pages do not lie
/// together.
pub fn scatter(rank: u64, n: u64) -> u64 {
    let mask = n.next_power_of_two() - 1;
    let mut place = rank;
    loop {
        place = place.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F) & mask;
        if place < n {
            return place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_has_the_stated_frequencies() {
        for s in [0.5, 1.2] {
            let (zipf, mut random) = (ZipfSequence::new(1000, s), SequenceRandom::new(1));
            let mut seen = vec![0u32; 1001];
            (0..200_000).for_each(|_| seen[zipf.sample(&mut random) as usize] += 1);
            let sum: f64 = (1..=1000).map(|k| f64::from(k).powf(-s)).sum();
            for k in [1, 2, 10] {
                let expected = 200_000.0 * f64::from(k).powf(-s) / sum;
                let found = f64::from(seen[k as usize]);
                assert!((found - expected).abs() < 0.1 * expected + 30.0, "s {s}, k {k}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn scatter_visits_every_number_once() {
        let mut places: Vec<u64> = (0..1000).map(|rank| scatter(rank, 1000)).collect();
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..1000));
    }
}
