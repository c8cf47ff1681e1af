//! Sizes as users write them: `512M`, `1.5GiB`, `80%`.

use std::fmt;

/// A memory size as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A part of a whole, in percent.
    Percent(f64),
}

/// Why a size was not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a size: write it like 512M, 1.5GiB or 80%", self.0)
    }
}

impl std::error::Error for SizeError {}

impl std::str::FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = || SizeError(text.to_string());
        let trimmed = text.trim();
        let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let number: f64 = number.parse().map_err(|_| refuse())?;
        if unit.trim() == "%" {
            return if number <= 100.0 { Ok(Self::Percent(number)) } else { Err(refuse()) };
        }
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(refuse()),
        };
        let bytes = number * (1u64 << shift) as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 / 4.0 { Ok(Self::Bytes(bytes as u64)) } else { Err(refuse()) }
    }
}

impl Size {
    /// The size in bytes; percentages are of `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// A hint for a number that has neither a percent sign (for a part of `whole`) nor a unit.
pub fn unit_hint(text: &str, whole: &str) -> String {
    match text.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 100.0 => format!(" ({text}% is a share of {whole}, {text}M a size)"),
        Ok(number) if number > 0.0 => format!(" ({text}M would be MiB)"),
        _ => String::new(),
    }
}

/// A number of bytes for people to read: `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_users_write_and_refuses_the_rest() {
        let bytes = |text: &str| text.parse::<Size>().map(|size| size.of(1000));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("80%"), Ok(800));
        assert_eq!(bytes("64 kb"), Ok(65536));
        for bad in ["", "M", "12X", "-5M", "1e3", "101%", "999999999999T", "nan", "."] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(human(3 << 29), "1.5 GiB");
    }
}
