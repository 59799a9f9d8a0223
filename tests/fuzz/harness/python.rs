//! The body of the fuzz target; tests replay the kept inputs with it.

use nestor_python::frame::{Frames, MOST_BYTES, reply};

/// Reads a worker's bytes twice, whole and in pieces whose size the first byte says, and each body as a reply. Both ways
/// must give the same frames and the same fault.
pub fn python(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let whole = frames(bytes, bytes.len().max(1));
    assert_eq!(whole, frames(bytes, usize::from(*size) + 1));
    for body in &whole.0 {
        assert!(body.len() <= MOST_BYTES);
        let id = u64::from(*size);
        if let Ok(nestor_python::reply::Body::Observation(seen)) = reply(body, id) {
            assert!(seen.reward.is_finite());
            assert_eq!(seen.fingerprint(), seen.fingerprint());
        }
    }
}

/// All frames, and the message of what cannot be one.
fn frames(bytes: &[u8], size: usize) -> (Vec<Vec<u8>>, Option<String>) {
    let (mut frames, mut bodies) = (Frames::default(), Vec::new());
    for piece in bytes.chunks(size) {
        frames.push(piece);
        loop {
            match frames.take() {
                Ok(Some(body)) => bodies.push(body),
                Ok(None) => break,
                Err(error) => return (bodies, Some(error.to_string())),
            }
        }
        assert!(frames.rest().len() <= bytes.len());
    }
    (bodies, None)
}
