//! The amount of memory that a policy gets: a number of pages, or a share of the distinct pages of
//! a trace.

use std::fmt;
use std::str::FromStr;

/// Maximum number of pages: those that a `u32` can number.
const MAX: u64 = u32::MAX as u64;

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryShareOf {
    /// Percent of the trace's distinct pages, above 0 and at most 100.
    Percent(f64),
    /// Number of pages.
    Pages(u64),
}

impl MemoryShareOf {
    /// The number of pages for a trace with this many distinct pages: rounded, at least one.
    pub fn of(self, distinct: usize) -> usize {
        match self {
            Self::Percent(percent) => ((distinct as f64 * percent / 100.0).round() as usize).max(1),
            Self::Pages(pages) => pages as usize,
        }
    }
}

impl FromStr for MemoryShareOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "{text:?} is not an amount of memory: percent of the trace's pages (10%) or a count of pages (5000)"
            )
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.parse().map_err(|_| refused())?;
            let sound = percent > 0.0 && percent <= 100.0;
            return if sound { Ok(Self::Percent(percent)) } else { Err(refused()) };
        }
        match text.parse() {
            Ok(pages @ 1..=MAX) => Ok(Self::Pages(pages)),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for MemoryShareOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Pages(pages) => write!(f, "{pages}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written() {
        for text in ["10%", "0.5%", "100%", "1", "5000"] {
            assert_eq!(text.parse::<MemoryShareOf>().map(|ram| ram.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("25%".parse::<MemoryShareOf>().unwrap().of(1011), 253);
        assert_eq!("1%".parse::<MemoryShareOf>().unwrap().of(3), 1);
        assert_eq!("7".parse::<MemoryShareOf>().unwrap().of(3), 7);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "%", "0", "0%", "101%", "-1", "NaN%", "inf%", "1.5", "10 %", "4294967296", "64M"] {
            let error = text.parse::<MemoryShareOf>().unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
