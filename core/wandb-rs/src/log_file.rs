//! The transaction log `run-<id>.wandb`: seven header bytes, then records framed as in a LevelDB log.
//!
//! The file is cut into blocks of 32 KiB, counted from its first byte. A record is one chunk, or several if it crosses
//! the end of a block. A chunk is: CRC-32 (IEEE) of type and payload, u32 little-endian; length of the payload, u16
//! little-endian; type, 1 whole, 2 first, 3 middle, 4 last; payload. If fewer than seven bytes are left in a block,
//! they are zero.

use crate::record::{Kind, Record};
use prost::Message;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: usize = 32 * 1024;
const CHUNK_HEADER: usize = 7;
const FILE_HEADER: &[u8; 7] = b":W&B\xe1\xbe\x00";

const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A run file open for appending.
pub(crate) struct LogFile {
    file: File,
    /// Bytes of whole records in the file; the next record goes here.
    end: u64,
    /// Number of the last record.
    num: i64,
    /// Buffers, kept so that a row allocates nothing here.
    message: Vec<u8>,
    framed: Vec<u8>,
}

impl LogFile {
    /// Creates a file; an existing one is an error.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all_at(FILE_HEADER, 0)?;
        Ok(Self::at(file, FILE_HEADER.len() as u64, 0))
    }

    /// Reopens a file after its records up to `keep.end` (see [`read`]), and cuts off the rest.
    pub fn reopen(path: &Path, keep: Position) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(keep.end)?;
        Ok(Self::at(file, keep.end, keep.num))
    }

    fn at(file: File, end: u64, num: i64) -> Self {
        Self { file, end, num, message: Vec::new(), framed: Vec::new() }
    }

    /// Appends one record with one write, so that a killed program leaves whole records behind. After an error the file
    /// is as before, or has a torn tail that readers skip and the next append overwrites.
    pub fn append(&mut self, kind: &Kind) -> io::Result<()> {
        // Encodes the two fields of a `Record` separately, so that the caller keeps `kind`.
        self.message.clear();
        prost::encoding::int64::encode(1, &(self.num + 1), &mut self.message);
        kind.encode(&mut self.message);
        self.framed.clear();
        frame(&self.message, self.end, &mut self.framed);
        if let Err(error) = self.file.write_all_at(&self.framed, self.end) {
            // A full disk may have taken half of it. If the cut also fails, the next append writes over the same place.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        self.end += self.framed.len() as u64;
        self.num += 1;
        Ok(())
    }
}

/// Frames a record that starts `end` bytes into the file.
fn frame(mut rest: &[u8], end: u64, out: &mut Vec<u8>) {
    let mut at = (end % BLOCK as u64) as usize;
    let mut first = true;
    loop {
        let mut room = BLOCK - at;
        if room < CHUNK_HEADER {
            out.resize(out.len() + room, 0);
            room = BLOCK;
        }
        let length = rest.len().min(room - CHUNK_HEADER);
        let (payload, more) = rest.split_at(length);
        let kind = match (first, more.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        out.extend_from_slice(&checksum(kind, payload).to_le_bytes());
        out.extend_from_slice(&(length as u16).to_le_bytes());
        out.push(kind);
        out.extend_from_slice(payload);
        if more.is_empty() {
            return;
        }
        (rest, first, at) = (more, false, 0);
    }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(payload);
    crc.finalize()
}

/// A position between two records.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    /// Bytes from the start of the file.
    pub end: u64,
    /// Number of the record before it.
    pub num: i64,
}

/// Reads a file's whole records in order while `keep` returns true, and returns the position after the last kept one. A
/// torn or damaged record ends the reading: the order of records behind it cannot be trusted.
pub(crate) fn read(path: &Path, mut keep: impl FnMut(&Record) -> bool) -> io::Result<Position> {
    let bytes = std::fs::read(path)?;
    if !bytes.starts_with(FILE_HEADER) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a W&B run file of version 0"));
    }
    let mut position = Position { end: FILE_HEADER.len() as u64, num: 0 };
    let mut at = FILE_HEADER.len();
    let mut message = Vec::new();
    while let Some(next) = next_record(&bytes, at, &mut message) {
        let Ok(record) = Record::decode(message.as_slice()) else { break };
        if !keep(&record) {
            break;
        }
        at = next;
        position = Position { end: next as u64, num: record.num };
    }
    Ok(position)
}

/// Copies the record that starts at `at` into `message` and returns the position behind it; `None` if no whole record
/// is there.
fn next_record(bytes: &[u8], mut at: usize, message: &mut Vec<u8>) -> Option<usize> {
    message.clear();
    // An empty `message` would not do: with exactly a chunk header left in a block, the first chunk is empty.
    let mut inside = false;
    loop {
        let room = BLOCK - at % BLOCK;
        if room < CHUNK_HEADER {
            at += room;
        }
        let header = bytes.get(at..at + CHUNK_HEADER)?;
        let crc = u32::from_le_bytes(header[..4].try_into().ok()?);
        let length = usize::from(u16::from_le_bytes(header[4..6].try_into().ok()?));
        let kind = header[6];
        at += CHUNK_HEADER;
        let payload = bytes.get(at..at + length)?;
        let fits = matches!((kind, inside), (FULL | FIRST, false) | (MIDDLE | LAST, true));
        if !fits || crc != checksum(kind, payload) {
            return None;
        }
        message.extend_from_slice(payload);
        at += length;
        if kind == FULL || kind == LAST {
            return Some(at);
        }
        inside = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Output;
    use proptest::prelude::*;

    /// A second reader of the framing that shares no code with the first: it reads block by block, as the format is
    /// described, and computes its checksums bit by bit.
    fn payloads(file: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(&file[..7], [0x3a, 0x57, 0x26, 0x42, 0xe1, 0xbe, 0]);
        let (mut found, mut open) = (Vec::new(), None::<Vec<u8>>);
        for (i, block) in file.chunks(32768).enumerate() {
            let mut rest = if i == 0 { &block[7..] } else { block };
            while rest.len() >= 7 {
                let length = usize::from(rest[4]) + 256 * usize::from(rest[5]);
                let (kind, payload) = (rest[6], &rest[7..7 + length]);
                assert_eq!(slow_crc(&rest[6..7 + length]).to_le_bytes(), rest[..4]);
                match kind {
                    1 => found.push(payload.to_vec()),
                    2 => assert!(open.replace(payload.to_vec()).is_none()),
                    3 => open.as_mut().unwrap().extend(payload),
                    4 => found.push([open.take().unwrap().as_slice(), payload].concat()),
                    other => panic!("chunk type {other}"),
                }
                rest = &rest[7 + length..];
            }
            assert!(rest.iter().all(|byte| *byte == 0));
        }
        assert!(open.is_none());
        found
    }

    fn slow_crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc: u32, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
        })
    }

    fn line(length: usize) -> Kind {
        Kind::Output(Output { line: "x".repeat(length), ..Output::default() })
    }

    /// Writes lines of these lengths, reopening the file before each, and reads them back.
    fn round(lengths: &[usize]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run-x.wandb");
        drop(LogFile::create(&path).unwrap());
        for length in lengths {
            let end = read(&path, |_| true).unwrap();
            let mut log = LogFile::reopen(&path, end).unwrap();
            log.append(&line(*length)).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        let expected = lengths.iter().zip(1..).map(|(length, num)| Record { num, kind: Some(line(*length)) });
        let expected: Vec<Record> = expected.collect();
        let found: Vec<Record> =
            payloads(&bytes).iter().map(|bytes| Record::decode(bytes.as_slice()).unwrap()).collect();
        assert!(found == expected);
        let mut own = Vec::new();
        let end = read(&path, |record| {
            own.push(record.clone());
            true
        });
        assert!(own == expected);
        assert_eq!(end.unwrap().end, bytes.len() as u64);
        bytes
    }

    #[test]
    fn the_end_of_a_block_falls_everywhere_in_a_record() {
        for left in 0..=20 {
            let full = (32_700..32_760).find(|length| round(&[*length]).len() == 32_768 - left).unwrap();
            for next in [0, 1, 5, 40_000, 100_000] {
                round(&[full, next, 3]);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_lengths_are_read_back(lengths in prop::collection::vec(prop_oneof![0..50usize, 30_000..70_000usize], 1..12)) {
            round(&lengths);
        }

        #[test]
        fn a_file_cut_or_damaged_anywhere_keeps_the_records_before(cut in 7..80_000usize, flip in any::<bool>()) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("run-x.wandb");
            let mut log = LogFile::create(&path).unwrap();
            let mut ends = vec![log.end];
            for length in [100, 40_000, 5, 30_000, 10_000] {
                log.append(&line(length)).unwrap();
                ends.push(log.end);
            }
            let mut bytes = std::fs::read(&path).unwrap();
            let cut = cut.min(bytes.len() - 1);
            if flip { bytes[cut] ^= 0x10 } else { bytes.truncate(cut) }
            std::fs::write(&path, &bytes).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut as u64).count();
            let position = read(&path, |_| true).unwrap();
            prop_assert_eq!((position.num, position.end), (whole as i64 - 1, ends[whole - 1]));
            LogFile::reopen(&path, position).unwrap().append(&line(50_000)).unwrap();
            prop_assert_eq!(payloads(&std::fs::read(&path).unwrap()).len(), whole);
        }
    }
}
