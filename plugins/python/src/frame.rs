//! The frames between the plugin and a worker: a length of four bytes, most significant first, and that many bytes of JSON.
//! In a reply with images a null byte follows the JSON, and then their pixels, end to end. No JSON holds a null byte.
//! No input can make the reader panic, or keep more than one frame and what was read with it.

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::ffi;
use serde_json::Value;

use crate::reply::{Body, Reply};

/// Most bytes of a frame's JSON. The worker has the same limit for its replies.
const MOST_JSON: usize = 16 << 20;
/// Most bytes of a frame.
pub const MOST_BYTES: usize = MOST_JSON + 1 + 3 * ffi::MOST_PIXELS as usize;
const HEAD: usize = 4;

/// Puts a body into a frame.
pub fn framed(body: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(body.len()).context("a request to the worker is longer than 4 GiB")?;
    Ok([&length.to_be_bytes(), body].concat())
}

/// Takes bytes in pieces of any size and gives whole frames.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
}

impl Frames {
    /// Adds bytes as they were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame's body, or none if its end is not there yet.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > MOST_BYTES {
            bail!("the worker announces a reply of {length} bytes; the limit is {MOST_BYTES}");
        }
        if rest.len() < length {
            return Ok(None);
        }
        let body = rest[..length].to_vec();
        self.buffer.drain(..HEAD + length);
        Ok(Some(body))
    }

    /// Returns the bytes of a frame that has no end yet.
    pub fn rest(&self) -> &[u8] {
        &self.buffer
    }
}

/// Reads a frame's body as the reply to the request with this number.
pub fn reply(body: &[u8], id: u64) -> Result<Body> {
    let (text, pixels) = match body.iter().position(|&byte| byte == 0) {
        Some(end) => (&body[..end], &body[end + 1..]),
        None => (body, &[][..]),
    };
    ensure!(text.len() <= MOST_JSON, "the worker's reply has {} bytes of text; the limit is {MOST_JSON}", text.len());
    let text = std::str::from_utf8(text).context("the worker's reply is not UTF-8")?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let context = || format!("the worker's reply cannot be read: {}", start_of(text));
    let reply: Reply = serde_path_to_error::deserialize(&mut reader).with_context(context)?;
    reader.end().with_context(context)?;
    if reply.id != id {
        bail!("the worker replied to request {}, not to {id}", reply.id);
    }
    reply.into_body(pixels)
}

fn start_of(text: &str) -> Value {
    text.chars().take(80).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_pieces_of_any_size() {
        let whole = [framed(b"one").unwrap(), framed(b"").unwrap(), framed(b"three").unwrap()].concat();
        for size in 1..=whole.len() {
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            for piece in whole.chunks(size) {
                frames.push(piece);
                while let Some(body) = frames.take().unwrap() {
                    seen.push(body);
                }
            }
            assert_eq!(seen, [b"one".to_vec(), vec![], b"three".to_vec()], "pieces of {size}");
            assert!(frames.rest().is_empty());
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
        let mut frames = Frames::default();
        frames.push(b"Trac");
        assert!(frames.take().unwrap_err().to_string().contains("1416782179 bytes; the limit"));
    }

    #[test]
    fn replies_that_cannot_be_read_are_errors() {
        const SEEN: &str = r#"{"id":2,"type":"observation","data":{"reward":0,"done":false,"truncated":false,"observation":
            {"text":"","task":"","admissible":[],"anchor":null,"metrics":{},"metadata":{},"images":[[2,1]]}}}"#;
        let seen = |pixels: &str| format!("{SEEN}\0{pixels}").into_bytes();
        let Body::Observation(whole) = reply(&seen("abcdef"), 2).unwrap() else { panic!("an observation") };
        assert_eq!((whole.images[0].width(), whole.images[0].rgb()), (2, &b"abcdef"[..]));
        let (short, long) = (seen("abcde"), seen("abcdefg"));
        let text = SEEN.replace("\"metrics\":{}", "\"metrics\":{\"x\":null}");
        let cases: [(&[u8], &str); 12] = [
            (text.as_bytes(), "type `observation` has data of another form: field `observation.metrics.x`"),
            (br#"{"id":2,"type":"count","data":"many"}"#, "type `count` has data of another form: \"many\""),
            (&short, "5 bytes of pixels for images of 2 pixels"),
            (&long, "7 bytes of pixels for images of 2 pixels"),
            (SEEN.as_bytes(), "0 bytes of pixels for images of 2 pixels"),
            (b"{\"id\":2,\"type\":\"count\",\"data\":3}\0abc", "pixels and is no observation"),
            (br#"{"id":1,"type":"count","data":3}"#, "request 1, not to 2"),
            (br#"{"id":2,"type":"count","data":-3}"#, "invalid value"),
            (br#"{"id":2,"type":"moon","data":3}"#, "unknown variant"),
            (br#"{"id":2,"type":"count","data":3}{"#, "trailing characters"),
            (br#"{"id":2,"type":"observation","data":{"reward":1e999}}"#, "out of range"),
            (b"\xff", "not UTF-8"),
        ];
        for (body, message) in cases {
            let error = format!("{:#}", reply(body, 2).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }
}
