//! Random valid games.
