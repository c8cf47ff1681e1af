//! Tables with aligned columns, as swapon and zramctl print them.

/// The side of its column to which a cell is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Text from another process, without characters that control a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Rows below a header.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. A column whose heading begins with `<` contains text, the others
    /// contain numbers.
    pub fn new<H: AsRef<str>>(headings: &[H]) -> Self {
        let column = |heading: &H| match heading.as_ref().strip_prefix('<') {
            Some(text) => (text.to_string(), Side::Left),
            None => (heading.as_ref().to_string(), Side::Right),
        };
        Self { columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<I: IntoIterator<Item = String>>(&mut self, cells: I) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
    }

    /// The lines of the table, without spaces at their ends.
    pub fn lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| heading.clone()).collect();
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((cell, width), (_, side))| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        std::iter::once(&headings).chain(&self.rows).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["<NAME", "SIZE"]);
        assert!(table.is_empty());
        table.row(["swap file".into(), "1".into()]);
        table.row(["b".into(), "1000000".into()]);
        table.row(["c".into()]);
        assert_eq!(table.lines(), ["NAME          SIZE", "swap file        1", "b          1000000", "c"]);
    }
}
