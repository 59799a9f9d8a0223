//! The secret that the ranks of a run share. A store has no passwords: whoever reaches its port reads and writes all keys.
//! With a secret, ranks ignore values that a stranger wrote.

use std::fmt::{self, Debug, Formatter};

use anyhow::Result;
use hmac::{Hmac, KeyInit, Mac};
use nestor_torch::Store;
use sha2::Sha256;

/// The environment variable of the secret, the same for all ranks. `nestor launch` draws one.
pub const SECRET: &str = "NESTOR_SECRET";
/// Bytes of a signature.
const SIGNATURE: usize = 32;
/// Longest signed value: a store returns the first 4,096 bytes.
const LONGEST: usize = 4_000;

/// The shared secret; none signs nothing and believes everything.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Option<String>);

/// Shows no secret.
impl Debug for Secret {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(if self.is_set() { "a secret" } else { "no secret" })
    }
}

impl Secret {
    pub fn new(text: Option<String>) -> Self {
        Self(text.filter(|text| !text.is_empty()))
    }

    /// A new secret for the environment of ranks.
    pub fn drawn() -> String {
        rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// The prefix of the keys of ranks that share this secret: a stranger cannot guess the keys of c10d's own values.
    pub fn prefix(&self, prefix: &str) -> String {
        match self.mac(prefix.as_bytes(), b"prefix") {
            None => prefix.to_string(),
            Some(mac) => {
                let token: String = mac.finalize().into_bytes()[..16].iter().map(|b| format!("{b:02x}")).collect();
                format!("{prefix}/{token}")
            }
        }
    }

    /// A mark that tells this secret from others, and gives nothing of it away.
    fn mark(&self) -> Vec<u8> {
        self.mac(b"mark", b"").map(|mac| mac.finalize().into_bytes().to_vec()).unwrap_or_default()
    }

    /// Writes a value with a signature. A longer one than 4,000 bytes is cut.
    pub fn set(&self, store: &Store, key: &str, value: &[u8]) -> Result<()> {
        store.set(key, &self.signed(key, value))
    }

    /// Reads a value that a rank wrote; none where the key was never set, or the signature is wrong.
    pub fn get(&self, store: &Store, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(store.get(key)?.and_then(|bytes| self.verified(key, bytes)))
    }

    fn signed(&self, key: &str, value: &[u8]) -> Vec<u8> {
        let value = &value[..value.len().min(LONGEST)];
        let signature = self.mac(key.as_bytes(), value).map(|mac| mac.finalize().into_bytes().to_vec());
        [&signature.unwrap_or_default(), value].concat()
    }

    fn verified(&self, key: &str, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        if self.is_set() {
            let value = bytes.split_off(bytes.len().min(SIGNATURE));
            self.mac(key.as_bytes(), &value)?.verify_slice(&bytes).ok()?;
            return Some(value);
        }
        Some(bytes)
    }

    /// HMAC-SHA256 (RFC 2104) of a key's length, the key and its value.
    fn mac(&self, key: &[u8], value: &[u8]) -> Option<Hmac<Sha256>> {
        // A key of any length is valid.
        let mut mac = Hmac::new_from_slice(self.0.as_ref()?.as_bytes()).ok()?;
        mac.update(&(key.len() as u64).to_le_bytes());
        mac.update(key);
        mac.update(value);
        Some(mac)
    }
}

/// The marks of all ranks' secrets, in a store that all of them reach: ranks with different secrets would else wait for each other
/// without a reason. Strangers may write here too, so the marks only explain a failure.
pub struct Marks(Store);

impl Marks {
    /// Writes the mark of this rank's secret. The store's keys must not depend on the secret.
    pub fn write(store: Store, secret: &Secret, rank: usize) -> Result<Self> {
        store.set(&mark_key(rank), &secret.mark())?;
        Ok(Self(store))
    }

    /// Names the ranks among `world` that have another secret than this one.
    pub fn others(&self, secret: &Secret, world: usize) -> Option<String> {
        let own = secret.mark();
        let differs =
            |rank: &usize| self.0.get(&mark_key(*rank)).is_ok_and(|mark| mark.is_some_and(|mark| mark != own));
        let others: Vec<String> = (0..world).filter(differs).map(|rank| rank.to_string()).collect();
        let [ranks, have] = if others.len() == 1 { ["rank", "has"] } else { ["ranks", "have"] };
        let who = others.join(", ");
        (!others.is_empty())
            .then(|| format!("{ranks} {who} {have} another {SECRET} than this rank: set the same for all"))
    }
}

fn mark_key(rank: usize) -> String {
    format!("secret/{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_with_the_secret_are_believed() {
        let [own, other, none] = ["a", "b", ""].map(|text| Secret::new(Some(text.into())));
        let signed = own.signed("verdict", b"rank 1 failed");
        assert_eq!(own.verified("verdict", signed.clone()).as_deref(), Some(&b"rank 1 failed"[..]));
        assert_eq!(other.verified("verdict", signed.clone()), None);
        assert_eq!(own.verified("beat/0", signed.clone()), None, "the value of another key");
        for forged in [b"".to_vec(), b"HACKED".to_vec(), signed[..40].to_vec(), none.signed("verdict", &[b'x'; 90])] {
            assert_eq!(own.verified("verdict", forged), None);
        }
        assert_eq!(none.verified("verdict", b"plain".to_vec()).as_deref(), Some(&b"plain"[..]));
        assert_ne!(own.prefix("nestor"), other.prefix("nestor"));
        assert_ne!(own.mark(), other.mark());
        assert_eq!(none.prefix("nestor"), "nestor");
        assert_eq!(format!("{own:?}"), "a secret");
    }
}
