//! Traces of every data access in the output format of valgrind's tool lackey (`--trace-mem=yes`).
//! Only for small programs, since lackey makes them some hundred times slower.
//!
//! ```text
//!  L 1ffeffe7d0,8      load of 8 bytes
//!  S 04222cac,4        store
//!  M 0421d8a4,4        load and store
//! I  0401a5b3,2        instruction: not data, passed over
//! ==123== text         valgrind's own words: passed over
//! ```

const PAGE_SHIFT: u32 = 12;

/// The first and the last page of the access in a line; `None` for lines without an access.
///
/// # Errors
/// A sentence: the line begins like an access but is none.
pub fn pages(line: &str) -> Result<Option<(u64, u64)>, String> {
    let Some(rest) = line.strip_prefix(" L ").or(line.strip_prefix(" S ")).or(line.strip_prefix(" M ")) else {
        return Ok(None);
    };
    let malformed = || format!("not an access as lackey tells them: {line:?}");
    let (address, length) = rest.trim_end().split_once(',').ok_or_else(malformed)?;
    let address = u64::from_str_radix(address, 16).map_err(|_| malformed())?;
    let length: u64 = length.parse().map_err(|_| malformed())?;
    let last = address.checked_add(length.saturating_sub(1)).ok_or_else(malformed)?;
    Ok(Some((address >> PAGE_SHIFT, last >> PAGE_SHIFT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_told_by_page_and_other_lines_are_passed_over() {
        assert_eq!(pages(" L 1ffeffe7d0,8"), Ok(Some((0x1ffeffe, 0x1ffeffe))));
        assert_eq!(pages(" S 04222ffc,8\n"), Ok(Some((0x4222, 0x4223))));
        assert_eq!(pages(" M 0,0"), Ok(Some((0, 0))));
        for other in ["I  0401a5b3,2", "==12== Lackey, an example", "", "done"] {
            assert_eq!(pages(other), Ok(None));
        }
    }

    #[test]
    fn malformed_accesses_are_named() {
        for line in [" L xyz,8", " S 1000", " M 1000,x", " L ffffffffffffffff,2"] {
            assert!(pages(line).expect_err("malformed").contains(line.trim()), "{line}");
        }
    }
}
