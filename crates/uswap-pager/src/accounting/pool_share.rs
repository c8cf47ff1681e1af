//! The setting `--pool`: how much of the budget the pool may take.

/// How much of the budget the pool may take, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolShare {
    /// This percentage, for the whole run.
    Fixed(f64),
    /// A percentage that follows the cost of faults, up to this one.
    Adaptive(f64),
}

impl PoolShare {
    /// The largest percentage that may be set: the rest is for the working set.
    pub const MAX: f64 = 90.0;
}

impl std::str::FromStr for PoolShare {
    type Err = String;

    /// `auto`, `auto:MAX` or a number, with or without `%`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Adaptive(Self::MAX));
        }
        let (number, kind): (&str, fn(f64) -> Self) = match text.strip_prefix("auto:") {
            Some(most) => (most, Self::Adaptive),
            None => (text, Self::Fixed),
        };
        let percent: Option<f64> = number.strip_suffix('%').unwrap_or(number).parse().ok();
        let percent = percent.filter(|percent| (0.0..=Self::MAX).contains(percent));
        percent.map(kind).ok_or_else(|| "auto, auto:MOST, or between 0 and 90 percent of the budget".into())
    }
}

impl std::fmt::Display for PoolShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(percent) => write!(f, "{percent}"),
            Self::Adaptive(most) if *most >= Self::MAX => write!(f, "auto"),
            Self::Adaptive(most) => write!(f, "auto:{most}"),
        }
    }
}
