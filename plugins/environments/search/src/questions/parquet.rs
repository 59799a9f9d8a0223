//! Parquet files, as `datasets` and pandas write them.

use std::any::Any;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use nestor_plugin::files;
use parquet::basic::Type;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use super::columns::{Column, Columns, Row};

/// Most values of a column in a row group. Writers end a row group after a million rows; a page of a few bytes can claim
/// two thousand million values, for which the crate would take memory.
const MOST_VALUES: u64 = 1 << 25;

/// A column of texts, or of lists of texts.
struct Leaf {
    index: usize,
    name: String,
}

/// Reads a file, of which only the needed columns are decoded.
///
/// The crate `parquet` (60.1) panics at some damaged pages; such a panic is an error like the others.
pub fn read(path: &Path, columns: &Columns) -> Result<Vec<Row>> {
    let place = || path.display().to_string();
    let file = files::open(path).with_context(|| format!("cannot read {}", place()))?;
    let read = || {
        let reader = SerializedFileReader::new(Whole(file)).context("this is no whole Parquet file")?;
        rows(&reader, columns)
    };
    let message = |panic: Box<dyn Any + Send>| match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "unknown".to_owned(),
    };
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|panic| bail!("the file is damaged, copy or write it again: {}", message(panic)))
        .with_context(place)
}

fn rows(reader: &SerializedFileReader<Whole>, columns: &Columns) -> Result<Vec<Row>> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let find = |column| locate(schema, column, columns);
    let question = find(Column::Question)?.context("no column of questions")?;
    let answers = find(Column::Answers)?.context("no column of answers")?;
    let source = find(Column::Source)?;
    let mut rows = Vec::new();
    for group in 0..reader.num_row_groups() {
        let first = rows.len() as u64 + 1;
        let texts = |leaf: &Leaf| {
            let lists = lists(reader, group, leaf, first)?;
            let one = |(at, list): (usize, Vec<String>)| {
                let text: Option<String> = list.into_iter().next();
                text.with_context(|| format!("row {}: column {} is null", first + at as u64, leaf.name))
            };
            lists.into_iter().enumerate().map(one).collect::<Result<Vec<String>>>()
        };
        let questions = texts(&question)?;
        let sources = source.as_ref().map(texts).transpose()?;
        let answers = lists(reader, group, &answers, first)?;
        let mut sources = sources.map(Vec::into_iter);
        for (question, answers) in questions.into_iter().zip(answers) {
            let source = sources.as_mut().and_then(Iterator::next);
            rows.push(Row { number: rows.len() as u64 + 1, question, answers, source });
        }
    }
    Ok(rows)
}

/// Finds a column: the one of that path, or for answers the only one inside it.
fn locate(schema: &SchemaDescriptor, column: Column, columns: &Columns) -> Result<Option<Leaf>> {
    let paths: Vec<String> = schema.columns().iter().map(|it| it.path().string()).collect();
    let find = |name: &str| {
        let inside = format!("{name}.");
        let index = paths.iter().position(|path| path == name || path.starts_with(&inside))?;
        Some(Leaf { index, name: name.to_owned() })
    };
    let Some(leaf) = column.locate(columns, find, || paths.join(", "))? else { return Ok(None) };
    let found = schema.column(leaf.index);
    let fits = found.path().string() == leaf.name || column == Column::Answers;
    let deepest = if column == Column::Answers { 1 } else { 0 };
    let (name, wanted) = (&leaf.name, if deepest == 1 { "a list of texts" } else { "a text" });
    ensure!(
        fits && found.physical_type() == Type::BYTE_ARRAY && found.max_rep_level() <= deepest,
        "column {name} must be {wanted}, found {}{} in {}",
        "lists of ".repeat(usize::try_from(found.max_rep_level()).unwrap_or_default()),
        if found.physical_type() == Type::BYTE_ARRAY { "texts".to_owned() } else { found.physical_type().to_string() },
        found.path().string()
    );
    Ok(Some(leaf))
}

/// The texts of each row of a row group. A null is no text.
fn lists(reader: &SerializedFileReader<Whole>, group: usize, leaf: &Leaf, first: u64) -> Result<Vec<Vec<String>>> {
    let group = reader.get_row_group(group)?;
    let count = usize::try_from(group.metadata().num_rows()).context("a row group has a negative number of rows")?;
    let pages = group.get_column_page_reader(leaf.index).with_context(|| format!("column {}", leaf.name))?;
    let descriptor = group.metadata().column(leaf.index).column_descr_ptr();
    let reader = get_column_reader(descriptor.clone(), Box::new(Bounded { pages, values: 0 }));
    let ColumnReader::ByteArrayColumnReader(mut reader) = reader else { bail!("column {} has no texts", leaf.name) };
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (records, _, levels) = reader
        .read_records(count, Some(&mut definitions), Some(&mut repetitions), &mut values)
        .with_context(|| format!("column {} after row {}", leaf.name, first - 1))?;
    ensure!(records == count, "column {} has {records} rows of {count} in a row group: the file is damaged", leaf.name);

    let mut lists: Vec<Vec<String>> = Vec::with_capacity(count);
    let mut values = values.into_iter();
    for level in 0..levels {
        if repetitions.get(level).is_none_or(|&it| it == 0) {
            lists.push(Vec::new());
        }
        if definitions.get(level).is_some_and(|&it| it < descriptor.max_def_level()) {
            continue;
        }
        let row = first + lists.len() as u64 - 1;
        let place = || format!("row {row}: column {}", leaf.name);
        let value = values.next().with_context(place)?;
        let text = std::str::from_utf8(value.data()).ok().context("this is no UTF-8").with_context(place)?;
        lists.last_mut().with_context(place)?.push(text.to_owned());
    }
    ensure!(lists.len() == count, "column {} has {} rows of {count}: the file is damaged", leaf.name, lists.len());
    Ok(lists)
}

/// The pages of a column, of which those of too many values are errors.
struct Bounded {
    pages: Box<dyn PageReader>,
    values: u64,
}

impl PageReader for Bounded {
    fn get_next_page(&mut self) -> parquet::errors::Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.values += u64::from(page.num_values());
        }
        if self.values > MOST_VALUES {
            let values = self.values;
            return Err(ParquetError::General(format!("a row group claims {values} values: the file is damaged")));
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> parquet::errors::Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> parquet::errors::Result<()> {
        self.pages.skip_next_page()
    }
}

impl Iterator for Bounded {
    type Item = parquet::errors::Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// A file whose end is an error. A damaged header may claim a list of two thousand million numbers, and the crate skips
/// those behind the end of a plain file one by one.
struct Whole(File);

impl Length for Whole {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Whole {
    type T = BufReader<Whole>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let mut file = self.0.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(Whole(file)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        if count == 0 && !buffer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
    }
}
