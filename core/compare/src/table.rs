//! Tables of text: for a terminal, in Markdown, and as data of a page.

use serde::Serialize;
use textwrap::core::display_width;

/// A table whose first column names the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Sentences below it.
    pub notes: Vec<String>,
}

/// Space between two columns.
const GAP: usize = 2;

impl Table {
    /// The table in lines of at most `width`, if its cells permit: columns that do not fit follow in blocks, each with
    /// the first column.
    pub fn text(&self, width: usize) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| self.lines().map(|row| display_width(&row[at])).max().unwrap_or(0))
            .collect();
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        let mut used = 0;
        for at in 1..widths.len() {
            used += GAP + widths[at];
            match blocks.last_mut().filter(|_| used <= width) {
                Some(block) => block.push(at),
                None => {
                    blocks.push(vec![at]);
                    used = widths[0] + GAP + widths[at];
                }
            }
        }
        let block = |block: &Vec<usize>| {
            let line = |row: &Vec<String>| {
                let cell = |at: usize| " ".repeat(widths[at] - display_width(&row[at]));
                let first = format!("{}{}", row[0], cell(0));
                let others: String =
                    block.iter().map(|&at| format!("{}{}{}", " ".repeat(GAP), cell(at), row[at])).collect();
                format!("{}\n", (first + &others).trim_end())
            };
            self.lines().map(line).collect::<String>()
        };
        let body: Vec<String> = blocks.iter().map(block).collect();
        let folded = |text: &String| format!("{}\n", textwrap::fill(text, width.max(20)));
        folded(&self.title) + &body.join("\n") + &self.notes.iter().map(folded).collect::<String>()
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut lines = self.lines().map(line);
        let head = lines.next().unwrap_or_default();
        let rule = format!("|---|{}\n", "---:|".repeat(self.columns.len().saturating_sub(1)));
        let notes: String = self.notes.iter().map(|note| format!("\n{note}\n")).collect();
        format!("**{}**\n\n{head}{rule}{}{notes}", self.title, lines.collect::<String>())
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.columns).chain(&self.rows)
    }
}
