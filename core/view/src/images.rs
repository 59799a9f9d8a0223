//! The images of episodes. A step names them by their paths in the run directory, `images/KEY.png`; the page holds each once,
//! in base64, for a `data:` address.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nestor_compare::ReadError;
use nestor_plugin::files;

use crate::read::StoredEpisode;

/// The first bytes of a PNG file.
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Largest file that is shown, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// The key in the path of an image. `None` for any other path: a run's text opens no file but those of its images.
pub(crate) fn key(path: &str) -> Option<&str> {
    path.strip_prefix("images/")?.strip_suffix(".png").filter(|key| is_key(key))
}

/// True for a key, which is safe in a path.
pub(crate) fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn file(dir: &Path, key: &str) -> PathBuf {
    dir.join("images").join(format!("{key}.png"))
}

/// Reads an image of a run in base64. `None` if the run has no such image, or its file is none.
pub(crate) fn read(dir: &Path, key: &str) -> Result<Option<String>, ReadError> {
    if bytes(dir, key) == 0 {
        return Ok(None);
    }
    let path = file(dir, key);
    match files::read(&path, MOST_BYTES) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReadError::Read { path, source }),
        Ok(content) => Ok(content.starts_with(SIGNATURE).then(|| STANDARD.encode(content))),
    }
}

/// Bytes of an image's file; 0 if none can be shown.
fn bytes(dir: &Path, key: &str) -> u64 {
    let found = fs::metadata(file(dir, key)).ok();
    found.filter(|found| found.is_file() && found.len() <= MOST_BYTES).map_or(0, |found| found.len())
}

/// Keys of the images that a page holds already.
#[derive(Default)]
pub(crate) struct Held(HashSet<String>);

impl Held {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The images of these episodes that the page lacks, each once.
    pub fn missing<'a>(&self, episodes: &[(usize, &'a StoredEpisode<'a>)]) -> Vec<&'a str> {
        let paths = episodes.iter().flat_map(|(_, episode)| &episode.steps).flat_map(|step| &step.images);
        let mut seen = HashSet::new();
        paths.filter_map(|path| key(&path.0)).filter(|key| !self.0.contains(*key) && seen.insert(*key)).collect()
    }

    /// Makes the elements of these images, if they take at most `room` bytes of the page. Images without a file have none.
    pub fn elements(&self, dir: &Path, keys: &[&str], room: f64) -> Result<Option<Elements>, ReadError> {
        let least: u64 = keys.iter().map(|key| bytes(dir, key).div_ceil(3) * 4).sum();
        if least as f64 > room {
            return Ok(None);
        }
        let mut elements = Elements::default();
        for key in keys {
            if let Some(data) = read(dir, key)? {
                elements.html += &format!("<script type=\"image/png\" id=\"i-{key}\">{data}</script>\n");
                elements.keys.push((*key).to_owned());
            }
        }
        Ok((elements.html.len() as f64 <= room).then_some(elements))
    }

    /// Notes that the page holds these elements.
    pub fn add(&mut self, elements: Elements) {
        self.0.extend(elements.keys);
    }
}

/// Elements that browsers treat as data, not as scripts.
#[derive(Default)]
pub(crate) struct Elements {
    pub html: String,
    keys: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn only_images_of_a_run_are_named() {
        let name = "0f".repeat(32);
        assert_eq!(key(&format!("images/{name}.png")), Some(&*name));
        for path in [
            format!("images/../{name}.png"),
            format!("/images/{name}.png"),
            format!("images/{name}.svg"),
            format!("images/{}.png", name.to_uppercase()),
            "images/.png".into(),
            format!("images/{}/../{}.png", &name[..30], &name[..30]),
        ] {
            assert_eq!(key(&path), None, "{path}");
        }
    }
}
