//! What a journal file holds, read before the engine opens it.
//!
//! The engine takes the first thing in a journal that it cannot read for its end, and cuts the file there. That is right
//! for the last batch of a killed process, which is there in part; it is wrong for a damaged byte with acknowledged
//! batches behind it, which would be gone without a word. Here the two are told apart.
//!
//! A batch is `1, count: u32, number: u64`, then that many changes, then `3, checksum: u64, "FJL\x03"`, all little-endian.
//! A change is `2, type: u8, compression: u8, tree: u64, key: u16, value: u32, stored: u32`, then the bytes of key and
//! stored value; or `4, tree: u64`. The checksum is XXH3 over the changes. A new file is longer than what is in it, and
//! zero there. This is the layout of fjall 3.1, at which the dependency is held.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

/// What a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    /// Where the last whole batch ends.
    pub(super) end: u64,
    /// Bytes of a batch that was begun behind it, as a killed process leaves it.
    pub(super) torn_bytes: u64,
    /// The numbers of the first and the last batch.
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
}

impl Content {
    /// Whether a batch is there in part.
    pub(super) fn is_torn(&self) -> bool {
        self.torn_bytes > 0
    }
}

/// Why a journal must not be cut at its last whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    /// Where the last whole batch before the damage ends.
    pub(super) end: u64,
}

/// Reads a journal whose first batch must have a number above `before`.
pub(super) fn inspect(path: &Path, before: Option<u64>) -> io::Result<Result<Content, Damage>> {
    let mut reader = Reader { file: BufReader::with_capacity(CHUNK, File::open(path)?), at: 0 };
    let (mut end, mut first, mut last) = (0, None, before);
    loop {
        match reader.batch() {
            Ok(number) if last.is_none_or(|last| number > last) => {
                end = reader.at;
                first = first.or(Some(number));
                last = Some(number);
            }
            // The number is not part of the checksum; the engine would leave out what it takes for old.
            Ok(_) => return Ok(Err(Damage { end })),
            Err(stop) => {
                let rest = rest(&mut reader.file, end)?;
                let content = Content { end, torn_bytes: rest.bytes(end), first, last: first.and(last) };
                let is_damaged = match stop {
                    _ if !content.is_torn() => false,
                    Stop::Incomplete => rest.end_markers > 0,
                    // What follows a torn batch was never written.
                    Stop::At(place) => rest.end_markers > 0 || rest.last_byte >= Some(place),
                    Stop::Failed(error) => return Err(error),
                };
                return Ok(if is_damaged { Err(Damage { end }) } else { Ok(content) });
            }
        }
    }
}

/// What is in a journal behind some place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Behind {
    /// Up to the last byte that is not zero.
    pub(super) bytes: u64,
    /// Batches that have an end there.
    pub(super) batches: u64,
}

/// Looks at what is behind a place, whether or not it can be read.
pub(super) fn batches_behind(path: &Path, at: u64) -> io::Result<Behind> {
    let rest = rest(&mut BufReader::with_capacity(CHUNK, File::open(path)?), at)?;
    Ok(Behind { bytes: rest.bytes(at), batches: rest.end_markers })
}

/// Why a batch could not be read.
enum Stop {
    /// The file ends in it.
    Incomplete,
    /// It reads as one up to here.
    At(u64),
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Incomplete } else { Self::Failed(error) }
    }
}

struct Reader {
    file: BufReader<File>,
    at: u64,
}

impl Reader {
    /// Reads a batch and gives its number.
    fn batch(&mut self) -> Result<u64, Stop> {
        let start = self.at;
        if self.take::<1>()? != [START] {
            return Err(Stop::At(start));
        }
        let count = u32::from_le_bytes(self.take()?);
        let number = u64::from_le_bytes(self.take()?);
        let mut checksum = Xxh3::new();
        for _ in 0..count {
            self.change(&mut checksum)?;
        }
        let tail = self.at;
        if self.take::<1>()? != [END] {
            return Err(Stop::At(tail));
        }
        let expected = u64::from_le_bytes(self.take()?);
        let place = self.at;
        let trailer: [u8; 4] = self.take()?;
        let written = TRAILER.iter().zip(trailer).take_while(|(right, byte)| **right == *byte).count();
        if written < TRAILER.len() {
            return Err(Stop::At(place + written as u64));
        }
        if checksum.digest() == expected { Ok(number) } else { Err(Stop::At(tail)) }
    }

    fn change(&mut self, checksum: &mut Xxh3) -> Result<(), Stop> {
        let start = self.at;
        let tag: [u8; 1] = self.take()?;
        checksum.update(&tag);
        match tag {
            [ITEM] => {
                let head: [u8; 20] = self.take()?;
                checksum.update(&head);
                let [.., k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
                let key = u64::from(u16::from_le_bytes([k0, k1]));
                self.pass(key + u64::from(u32::from_le_bytes([v0, v1, v2, v3])), checksum)
            }
            [CLEAR] => {
                let tree: [u8; 8] = self.take()?;
                checksum.update(&tree);
                Ok(())
            }
            _ => Err(Stop::At(start)),
        }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// Passes by bytes of a length that the file says, without setting room aside for them.
    fn pass(&mut self, length: u64, checksum: &mut Xxh3) -> Result<(), Stop> {
        let mut left = length;
        let mut chunk = [0; 4096];
        while left > 0 {
            let part = &mut chunk[..usize::try_from(left).unwrap_or(usize::MAX).min(4096)];
            self.file.read_exact(part)?;
            checksum.update(part);
            left -= part.len() as u64;
            self.at += part.len() as u64;
        }
        Ok(())
    }
}

/// What is in a file from some place on.
struct Rest {
    /// The place of the last byte that is not zero.
    last_byte: Option<u64>,
    /// How often something there ends a batch: a batch that was cut off has not got that far.
    end_markers: u64,
}

impl Rest {
    /// How many there are from a place on.
    fn bytes(&self, from: u64) -> u64 {
        self.last_byte.map_or(0, |last| last + 1 - from)
    }
}

fn rest(file: &mut BufReader<File>, from: u64) -> io::Result<Rest> {
    let mut rest = Rest { last_byte: None, end_markers: 0 };
    let mut at = file.seek(SeekFrom::Start(from))?;
    let mut chunk = vec![0; OVERLAP + CHUNK];
    loop {
        let (kept, fresh) = chunk.split_at_mut(OVERLAP);
        let length = read_full(file, fresh)?;
        if length == 0 {
            return Ok(rest);
        }
        if fresh[..length] != ZEROS[..length] {
            let last = fresh[..length].iter().rposition(|byte| *byte != 0).unwrap_or(0);
            rest.last_byte = Some(at + last as u64);
        }
        // Most of it is zeros, and no marker ends in zeros that does not begin before them.
        if rest.last_byte.is_some_and(|last| last >= at) || kept.iter().any(|byte| *byte != 0) {
            let is_marker = |window: &[u8]| window[0] == END && window[9..] == TRAILER;
            let markers = chunk[..OVERLAP + length].windows(MARKER_BYTES).filter(|window| is_marker(window));
            rest.end_markers += markers.count() as u64;
        }
        chunk.copy_within(length..length + OVERLAP, 0);
        at += length as u64;
    }
}

fn read_full(file: &mut BufReader<File>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = *b"FJL\x03";
/// The end of a batch: its tag, its checksum and the trailer.
const MARKER_BYTES: usize = 13;
const OVERLAP: usize = MARKER_BYTES - 1;
const CHUNK: usize = 64 * 1024;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch as the engine writes it.
    fn batch(number: u64, values: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![START];
        bytes.extend(u32::try_from(values.len()).unwrap().to_le_bytes());
        bytes.extend(number.to_le_bytes());
        let mut checksum = Xxh3::new();
        for value in values {
            let mut change = vec![ITEM, 0, 0];
            change.extend(1_u64.to_le_bytes());
            change.extend(3_u16.to_le_bytes());
            let length = u32::try_from(value.len()).unwrap().to_le_bytes();
            change.extend(length);
            change.extend(length);
            change.extend(b"key");
            change.extend(*value);
            checksum.update(&change);
            bytes.extend(change);
        }
        bytes.push(END);
        bytes.extend(checksum.digest().to_le_bytes());
        bytes.extend(TRAILER);
        bytes
    }

    fn inspected(bytes: &[u8]) -> Result<Content, Damage> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        inspect(file.path(), None).unwrap()
    }

    #[test]
    fn a_batch_that_was_cut_off_is_torn_with_and_without_the_zeros_of_a_new_file() {
        let first = batch(5, &[b"one", b"two"]);
        let second = batch(6, &[b"three"]);
        let end = first.len() as u64;
        for zeros in [0, 1, 13, CHUNK + 7] {
            for cut in 1..second.len() {
                let mut bytes = [first.as_slice(), &second[..cut]].concat();
                bytes.resize(bytes.len() + zeros, 0);
                let torn_bytes =
                    second[..cut].iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
                let expected = Content { end, torn_bytes, first: Some(5), last: Some(5) };
                assert_eq!(inspected(&bytes), Ok(expected), "cut at {cut}, {zeros} zeros");
            }
        }
    }

    #[test]
    fn no_flipped_bit_passes_for_a_torn_batch() {
        let batches: Vec<Vec<u8>> = (5..8).map(|number| batch(number, &[b"one", b"two", b"three"])).collect();
        let mut bytes = batches.concat();
        bytes.resize(bytes.len() + 100, 0);
        let length = batches.concat().len();
        let whole = Content { end: length as u64, torn_bytes: 0, first: Some(5), last: Some(7) };
        assert_eq!(inspected(&bytes), Ok(whole));
        for bit in 0..length * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            match inspected(&bytes) {
                Err(_) => {}
                // The numbers of the first and the last batch are compared with those the store was closed with.
                Ok(content) => {
                    assert_eq!((content.end, content.is_torn()), (whole.end, false), "bit {bit}");
                    assert_ne!(content, whole, "bit {bit}");
                }
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn an_empty_journal_is_whole() {
        let empty = Content { end: 0, torn_bytes: 0, first: None, last: None };
        assert_eq!(inspected(&[]), Ok(empty));
        assert_eq!(inspected(&[0; 100]), Ok(empty));
    }
}
