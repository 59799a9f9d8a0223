//! The API key, and its removal from everything that is written.

use memchr::memmem;
use std::io::{self, Read};
use std::path::Path;

/// The environment's key, if set.
pub(crate) struct Secret {
    key: Option<String>,
}

impl Secret {
    /// Reads `WANDB_API_KEY`. A key of a few characters is ignored: it would occur in any text.
    pub fn from_environment() -> Self {
        Self { key: std::env::var("WANDB_API_KEY").ok().map(|key| key.trim().to_string()).filter(|key| key.len() >= 8) }
    }

    pub fn is_set(&self) -> bool {
        self.key.is_some()
    }

    /// Replaces the key in a text.
    pub fn clean(&self, text: String) -> String {
        match &self.key {
            Some(key) if memmem::find(text.as_bytes(), key.as_bytes()).is_some() => text.replace(key, "***"),
            _ => text,
        }
    }

    /// Returns true if a file contains the key.
    pub fn is_in(&self, path: &Path) -> io::Result<bool> {
        let Some(key) = &self.key else { return Ok(false) };
        let mut file = std::fs::File::open(path)?;
        let mut window = Vec::new();
        loop {
            // The end of the last piece stays: the key may span two pieces.
            let keep = window.len().min(key.len() - 1);
            window.drain(..window.len() - keep);
            if file.by_ref().take(1 << 20).read_to_end(&mut window)? == 0 {
                return Ok(false);
            }
            if memmem::find(&window, key.as_bytes()).is_some() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_found_across_the_edge_of_two_pieces() {
        let secret = Secret { key: Some("0123456789abcdef".into()) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for start in [(1 << 20) - 16, (1 << 20) - 1, 1 << 20, 3 << 20] {
            let mut bytes = vec![b'x'; start];
            bytes.extend_from_slice(b"0123456789abcde");
            std::fs::write(&path, &bytes).unwrap();
            assert!(!secret.is_in(&path).unwrap());
            bytes.extend_from_slice(b"f, and more");
            std::fs::write(&path, &bytes).unwrap();
            assert!(secret.is_in(&path).unwrap(), "at {start}");
        }
        assert_eq!(secret.clean("a 0123456789abcdef b".into()), "a *** b");
    }
}
