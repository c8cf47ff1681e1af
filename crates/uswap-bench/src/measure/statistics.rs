//! Median and spread of few values, and the confidence interval of a ratio from pairs.

/// Median and spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
}

impl Summary {
    /// `None` when there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            n if n % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { count: sorted.len(), median, least: sorted[0], most: sorted[sorted.len() - 1] })
    }
}

/// A ratio with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean of the ratios of the pairs.
    pub ratio: f64,
    /// Lower end of the interval; 0 with one pair.
    pub low: f64,
    /// Upper end of the interval; infinite with one pair.
    pub high: f64,
}

impl Ratio {
    /// The ratio of the second value to the first of each pair, by Student's t on the logarithms:
    /// each pair is one measurement, so a disturbance that slowed both values of a pair alike
    /// cancels out. `None` without pairs, or when a value is not positive.
    pub fn of_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        if pairs.is_empty() || pairs.iter().any(|(base, new)| !(*base > 0.0 && *new > 0.0)) {
            return None;
        }
        let logs: Vec<f64> = pairs.iter().map(|(base, new)| (new / base).ln()).collect();
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        if logs.len() == 1 {
            return Some(Self { ratio: mean.exp(), low: 0.0, high: f64::INFINITY });
        }
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let half = student_t(logs.len() - 1) * (variance / n).sqrt();
        Some(Self { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
    }

    /// The meaning of the interval for the second values of the pairs, in words.
    pub fn verdict(&self) -> &'static str {
        match (self.low > 1.0, self.high < 1.0) {
            (true, _) => "slower",
            (_, true) => "faster",
            _ => "no difference shown",
        }
    }
}

/// The 97.5 % quantile of Student's t distribution.
fn student_t(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or(1.96 + 2.4 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).unwrap(), Summary { count: 3, median: 2.0, least: 1.0, most: 3.0 });
        assert!((Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-12);
    }

    #[test]
    fn a_common_disturbance_of_both_drops_out() {
        let pairs: Vec<(f64, f64)> = [1.0, 2.0, 5.0, 1.5].iter().map(|slow| (*slow, 1.1 * slow)).collect();
        let ratio = Ratio::of_pairs(&pairs).unwrap();
        assert!((ratio.ratio - 1.1).abs() < 1e-9 && ratio.high - ratio.low < 1e-6);
        assert_eq!(ratio.verdict(), "slower");
    }

    #[test]
    fn the_interval_is_that_of_the_t_distribution() {
        // Logarithms -0.1, 0, 0.1: standard error 0.1 / sqrt 3, t of two degrees of freedom 4.303.
        let pairs = [(1.0, (-0.1f64).exp()), (1.0, 1.0), (1.0, 0.1f64.exp())];
        let ratio = Ratio::of_pairs(&pairs).unwrap();
        assert!((ratio.high.ln() - 4.303 * 0.1 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(ratio.verdict(), "no difference shown");
    }

    #[test]
    fn little_or_odd_data_shows_nothing() {
        assert_eq!(Ratio::of_pairs(&[]), None);
        assert_eq!(Ratio::of_pairs(&[(1.0, 0.0)]), None);
        assert_eq!(Ratio::of_pairs(&[(1.0, f64::NAN)]), None);
        assert_eq!(Ratio::of_pairs(&[(1.0, 9.0)]).unwrap().verdict(), "no difference shown");
    }
}
