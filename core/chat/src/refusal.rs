//! The refusal of a request, in the form that clients of OpenAI read.

use serde_json::{Value, json};

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The reason and the remedy, in lower case.
    pub message: String,
    /// The key of the request that is at fault.
    pub key: Option<String>,
}

impl Refusal {
    /// A refusal with a status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), key: None }
    }

    /// The refusal of a request for one of its keys.
    pub fn of_key(key: &str, message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), key: Some(key.into()) }
    }

    /// The body of the answer.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            401 | 403 => "authentication_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.key, "code": self.status } })
    }
}
